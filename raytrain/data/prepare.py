"""From stored arrays to what a model and a task see: crop, augmentation, normalisation."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from raytrain import order
from raytrain.data.augment import mixed_field
from raytrain.data.changes import change_images, change_masks, change_normalised
from raytrain.data.drawn import Changes, Drawn
from raytrain.data.geometry import resized
from raytrain.data.source import Data, Field, Index
from raytrain.data.transforms import (
    Normalise,
    apply_erase,
    apply_policy,
    center_crop,
    crop_and_flip,
    full_range,
    mix_numbers,
    mix_pairs,
)

_OPERATION = 4 << 32
"""Purpose of the key of an operation's random numbers; see `drawn.py`."""
_CACHED = 1 << 20
"""Bytes of float32 images that operations change at a time on a CPU, whose cache they fit."""

Tensors = dict[str, torch.Tensor]
"""The arrays of some samples on the device, by name; `label` is int64 [n]."""


class Prepare:
    """Crop, augment and normalise the samples of one split as its source declares.

    Each field is returned in memory of its own. The last bits of a matrix product depend on the address of its input,
    and a slice of a batch begins at an address that depends on the number of ranks.

    Args:
        cropped: whether the arrays that are augmented are random crops of whole images already.
    """

    def __init__(
        self,
        data: Data,
        index: Index,
        device: torch.device | str = "cpu",
        memory_format: torch.memory_format = torch.contiguous_format,
        cropped: bool = False,
    ):
        self.augment = data.augment.after_crop if cropped else data.augment
        self.data, self.index, self.device, self.memory_format = data, index, device, memory_format
        self.fields, self.classes = index.fields, len(index.classes)
        self.mixed = mixed_field(index) if data.augment.mixes else None

        def normalise(field: Field, dtype: str) -> Normalise:
            return Normalise(*data.normalisation(field.shape[0]), device, memory_format, dtype)

        images = [field for field in index.fields if field.kind == "image"]
        self.normalise = {field.name: normalise(field, field.dtype) for field in images}
        self.normalise_units = {field.name: normalise(field, "float32") for field in images}
        """For what operations return: float32 in [0, 1], whatever the stored type is."""

    def plain(self, arrays: Tensors) -> Tensors:
        """Return the arrays without augmentation, as copies."""
        side = self.data.input_side

        def cut(field: Field, values: torch.Tensor) -> torch.Tensor:
            return center_crop(values, side)

        changed = dict(arrays) | self._cut(arrays, cut)
        for name, normalise in self.normalise.items():
            changed[name] = normalise(changed[name])
        return changed

    def evaluated(self, arrays: Tensors, keys: np.ndarray) -> Tensors:
        """Return the arrays of samples as an evaluation sees them."""
        return self.plain(arrays)

    def augmented(
        self, arrays: Tensors, keys: np.ndarray, seed: int, epoch: int, mixed: bool, epochs: int | None = None
    ) -> Tensors:
        """Return the arrays with augmentation, as copies.

        Args:
            keys: int64 [n], what randomness is keyed by besides seed and epoch: the samples, or their positions.
            mixed: whether pairs may be mixed, which adds `target`, float32 [n, classes], or makes the numbers of
                `mixed_field` float32.
            epochs: the number of epochs, by which progressive resizing chooses a size; None keeps the whole one.
        """
        augment, drawn = self.augment, Drawn(self.augment, seed, epoch, keys)
        size = self._size(epoch, epochs) if augment.progressive.on and epochs is not None else None
        if augment.operations:
            changed = self._operated(arrays, keys, seed, epoch, size)
        else:
            changed = self._simply(arrays, drawn, lambda one: apply_policy(augment, one, seed, epoch, keys), size)
        return self._mixed(changed, drawn) if mixed else changed

    def recorded(self, arrays: Tensors, changes: Changes) -> Tensors:
        """Return the arrays of a full batch with augmentation, as copies, by operations of the device alone; see
        `recorded.why_not`.

        Args:
            changes: random numbers on the device.
        """
        return self._mixed(self._simply(arrays, changes), changes)

    def _mixed(self, changed: Tensors, changes: Changes) -> Tensors:
        """Return the arrays after pairs are mixed, if they are; that adds `target`, or mixes the samples' numbers."""
        if self.augment.mixes:
            (name,), numbers = self.normalise, self.mixed
            if numbers:
                changed[numbers] = mix_numbers(self.augment, changed[name], changed[numbers].float(), changes)
                return changed
            target = mix_pairs(self.augment, changed[name], changed["label"], self.classes, changes)
            assert target is not None
            changed["target"] = target
        return changed

    def _size(self, epoch: int, epochs: int) -> int:
        """Return the side to which progressive resizing shrinks images in an epoch."""
        stored = next(field.shape[-1] for field in self.fields if field.kind == "image")
        return self.augment.progressive.side(epoch, epochs, self.data.input_side or stored)

    def _simply(
        self,
        arrays: Tensors,
        changes: Changes,
        policy: Callable[[torch.Tensor], torch.Tensor] = lambda images: images,
        size: int | None = None,
    ) -> Tensors:
        """Crop, flip, apply the policy, resize, normalise and erase."""
        augment, side, places = self.augment, self.data.input_side, changes.places()

        def cut(field: Field, values: torch.Tensor) -> torch.Tensor:
            found = crop_and_flip(augment, values, side, places, None if field.kind == "image" else field.fill)
            return resized(found, size, size, blended=False) if size and field.kind == "mask" else found

        changed = dict(arrays) | self._cut(arrays, cut)
        for name, normalise in self.normalise.items():
            images = policy(changed[name])
            images = normalise(resized(images.float(), size, size, blended=True) if size else images)
            apply_erase(augment, images, changes)
            changed[name] = images
        return changed

    def _operated(self, arrays: Tensors, keys: np.ndarray, seed: int, epoch: int, size: int | None) -> Tensors:
        """Apply the operations, resize and normalise, some images at a time, which stay in a CPU's cache."""
        operations, side, found = self.augment.operations, self.data.input_side, dict(arrays)
        draws = [
            order.uniform(order.key(seed, _OPERATION, number), epoch, keys, one.draws)
            for number, one in enumerate(operations)
        ]
        moved = [field for field in self.fields if field.kind != "plain"]
        rows = self._rows(next(iter(arrays.values())).device)
        parts: dict[str, list[torch.Tensor]] = {field.name: [] for field in moved}
        for start in range(0, max(1, len(keys)), rows):
            part = slice(start, start + rows)
            numbers = [one[part] for one in draws]
            for field in moved:
                values = arrays[field.name][part]
                if field.kind == "image":
                    images = change_images(operations, values, full_range(field.dtype), numbers, side, size)
                    images = self.normalise_units[field.name](images)
                    parts[field.name].append(change_normalised(operations, images, numbers, side))
                else:
                    parts[field.name].append(change_masks(operations, values, field.fill, numbers, side, size))
        for field in self.fields:
            if field.kind == "plain":
                found[field.name] = arrays[field.name].clone(memory_format=torch.contiguous_format)
            else:
                layout = self.memory_format if field.kind == "image" else torch.contiguous_format
                found[field.name] = torch.cat(parts[field.name]).contiguous(memory_format=layout)
        return found

    def _rows(self, device: torch.device) -> int:
        """Return how many samples are changed at a time."""
        if device.type != "cpu":
            return 1 << 30
        values = max(math.prod(field.shape) for field in self.fields if field.kind == "image")
        return max(1, _CACHED // (4 * values))

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
