"""The loader: a rank's part of every global batch, moved to its device, augmented and normalised there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from raytrain import order
from raytrain.data.augment import DRAWS, Normalise, center_crop
from raytrain.data.reader import Epoch
from raytrain.data.source import Data, Index


class Reader(Protocol):
    """Where images come from, such as `Resident` and `Streaming`."""

    def read(self, epoch: Epoch) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(samples int64 [k], images uint8 [k, ...]) of each step."""
        ...


@dataclass
class Loaded:
    """One rank's part of one step's global batch.

    Attributes:
        step: the step in its epoch.
        size: how many samples all ranks have together.
        ids: int64 [n], this rank's samples, on the host.
        images: uint8 [n, channels, height, width] as stored, on the device.
        labels: int64 [n], on the device.
        prepare: turns (images, ids) into the float32 images that the model sees.
    """

    step: int
    size: int
    ids: np.ndarray
    images: torch.Tensor
    labels: torch.Tensor
    prepare: Callable[[torch.Tensor, np.ndarray], torch.Tensor]

    def micro_batches(self, size: int) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
        """(ids, float32 images, labels) of at most `size` samples each."""
        for start in range(0, len(self.ids), size):
            part = slice(start, start + size)
            yield self.ids[part], self.prepare(self.images[part], self.ids[part]), self.labels[part]


class Loader:
    """Gives one rank its part of the global batches of a split.

    Args:
        data: the source, for its crop, augmentation and normalisation.
        index: the split's samples.
        reader: where images come from.
        batch: size of the global batch.
        train: whether to shuffle and augment.
        memory_format: how the images that the model sees lie in memory.
    """

    def __init__(
        self,
        data: Data,
        index: Index,
        reader: Reader,
        batch: int,
        seed: int,
        rank: int,
        world: int,
        device: torch.device,
        train: bool,
        memory_format: torch.memory_format = torch.contiguous_format,
    ):
        self.data, self.reader, self.seed, self.device, self.train = data, reader, seed, device, train
        self.shard = order.Shard(len(index), batch, rank, world)
        self.labels = index.labels
        self.normalise, self.memory_format = Normalise(data.mean, data.std, device), memory_format

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return self.shard.steps

    def epoch(self, number: int, first_step: int = 0) -> Iterator[Loaded]:
        """The steps of an epoch from `first_step` on."""
        way = Epoch(self.shard, self.seed, number if self.train else None, first_step)
        prepare = self._augmented(number) if self.train and self.data.augment.random else self._plain
        for step, (ids, images) in enumerate(self.reader.read(way), first_step):
            yield Loaded(
                step,
                self.shard.size(step),
                ids,
                self._to_device(torch.from_numpy(images)),
                self._to_device(torch.from_numpy(self.labels[ids])),
                prepare,
            )

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else tensor

    def _plain(self, images: torch.Tensor, ids: np.ndarray) -> torch.Tensor:
        return self._finish(center_crop(images, self.data.crop))

    def _finish(self, images: torch.Tensor) -> torch.Tensor:
        return self.normalise(images.contiguous(memory_format=self.memory_format))

    def _augmented(self, epoch: int) -> Any:
        def prepare(images: torch.Tensor, ids: np.ndarray) -> torch.Tensor:
            draws = order.uniform(self.seed, epoch, ids, DRAWS)
            return self._finish(self.data.augment(images, self.data.crop, draws))

        return prepare
