"""Discs on noise, and a mask of each: image and mask are cropped and flipped alike."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from raytrain import SGD, Augment, Batch, Data, Experiment, Field, Index, Model, Task

SIDE = 24


@dataclass(frozen=True)
class Discs(Data):
    def index(self) -> dict[str, Index]:
        fields = (Field("image", (3, SIDE, SIDE), kind="image"), Field("mask", (SIDE, SIDE), "int64", kind="mask"))
        parts = {"train": np.arange(90), "val": np.arange(1000, 1030)}
        return {split: Index(rows=rows, split=split, fields=fields) for split, rows in parts.items()}

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        found = index.empty(len(samples))
        down, across = np.mgrid[:SIDE, :SIDE]
        for number, row in enumerate(index.rows[samples]):
            random = np.random.default_rng(int(row))
            inside = (down - random.uniform(6, 18)) ** 2 + (across - random.uniform(6, 18)) ** 2 < random.uniform(9, 36)
            found["image"][number] = random.integers(0, 100, (3, SIDE, SIDE)) + 150 * inside
            found["mask"][number] = inside
        return found


@dataclass(frozen=True)
class Pixels(Model):
    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(sample[0], 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1))


@dataclass(frozen=True)
class Segmentation(Task):
    directions: ClassVar[Mapping[str, Literal["min", "max"]]] = {"iou": "max"}
    monitor: str = "val_iou"

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        each = cross_entropy(model(batch.images), batch["mask"], reduction="none")
        return each.mean(dim=(1, 2)).sum(), len(batch)

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        answer, mask = model(batch.images).argmax(dim=1) == 1, batch["mask"] == 1
        return super().sums(model, batch) | {"both": (answer & mask).sum(), "either": (answer | mask).sum()}

    def results(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        return super().results(sums) | {"iou": float(sums["both"] / max(sums["either"], 1))}


augment = Augment(crop="random", padding=2, flip=0.5)
experiment = Experiment(Pixels(), Discs(augment=augment), Segmentation(), SGD(lr=0.5), batch_size=16, epochs=2)
