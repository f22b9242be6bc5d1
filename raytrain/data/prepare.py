"""From stored arrays to what a model and a task see: crop, augmentation, normalisation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from raytrain import order
from raytrain.data.source import Data, Field, Index
from raytrain.data.transforms import (
    DRAWS,
    Normalise,
    apply_erase,
    apply_policy,
    center_crop,
    crop_and_flip,
    mix_pairs,
)

Tensors = dict[str, torch.Tensor]
"""The arrays of some samples on the device, by name; `label` is int64 [n]."""


class Prepare:
    """Crop, augment and normalise the samples of one split as its source declares.

    Each field is returned in memory of its own. The last bits of a matrix product depend on the address of its input,
    and a slice of a batch begins at an address that depends on the number of ranks.
    """

    def __init__(
        self,
        data: Data,
        index: Index,
        device: torch.device | str = "cpu",
        memory_format: torch.memory_format = torch.contiguous_format,
    ):
        self.data, self.fields, self.classes = data, index.fields, len(index.classes)
        self.normalise = {
            field.name: Normalise(*data.normalisation(field.shape[0]), device, memory_format, field.dtype)
            for field in index.fields
            if field.kind == "image"
        }

    def plain(self, arrays: Tensors) -> Tensors:
        """Return the arrays without augmentation, as copies."""
        side = self.data.side

        def cut(field: Field, values: torch.Tensor) -> torch.Tensor:
            return center_crop(values, side)

        changed = dict(arrays) | self._cut(arrays, cut)
        for name, normalise in self.normalise.items():
            changed[name] = normalise(changed[name])
        return changed

    def augmented(self, arrays: Tensors, ids: np.ndarray, seed: int, epoch: int, mixed: bool) -> Tensors:
        """Return the arrays with augmentation, as copies.

        Args:
            ids: int64 [n], the samples.
            mixed: whether pairs may be mixed, which adds `target`, float32 [n, classes].
        """
        augment, side, draws = self.data.augment, self.data.side, order.uniform(seed, epoch, ids, DRAWS)

        def cut(field: Field, values: torch.Tensor) -> torch.Tensor:
            return crop_and_flip(augment, values, side, draws, None if field.kind == "image" else field.fill)

        changed = dict(arrays) | self._cut(arrays, cut)
        for name, normalise in self.normalise.items():
            images = normalise(apply_policy(augment, changed[name], seed, epoch, ids))
            apply_erase(augment, images, seed, epoch, ids)
            changed[name] = images
        if mixed and augment.mixes:
            (name,) = self.normalise
            target = mix_pairs(augment, changed[name], changed["label"], self.classes, seed, epoch, ids)
            assert target is not None
            changed["target"] = target
        return changed

    def _cut(self, arrays: Tensors, cut: Callable[[Field, torch.Tensor], torch.Tensor]) -> Tensors:
        """Return all fields: images and masks after a crop of [n, channels, height, width], and plain ones as they are.

        Masks and plain fields are copied here, images when they are normalised.
        """
        found = {}
        for field in self.fields:
            values = arrays[field.name]
            if field.kind == "image":
                found[field.name] = cut(field, values)
                continue
            if field.kind == "mask":
                values = cut(field, values[:, None])[:, 0] if len(field.shape) == 2 else cut(field, values)
            found[field.name] = values.clone(memory_format=torch.contiguous_format)
        return found
