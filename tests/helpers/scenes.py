"""A small source of every kind of target, and models for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from raytrain import SGD, Batch, Classification, Data, Experiment, Field, Index, Model, Task

SIDE, CLASSES = 6, 4


@dataclass(frozen=True)
class Scenes(Data):
    """Pictures with a label, a mask in which a varying number of pixels is 255, yes-or-no answers, and numbers."""

    wanted: str = "mask"

    def index(self) -> dict[str, Index]:
        known = {
            "mask": Field("mask", (SIDE, SIDE), "uint8", kind="mask", fill=255),
            "tags": Field("tags", (5,), "uint8"),
            "sizes": Field("sizes", (2,), "float64"),
            "size": Field("size", (), "float32"),
            "tag": Field("tag", (), "uint8"),
        }
        fields = (Field("image", (1, SIDE, SIDE), kind="image"), *(known[name] for name in self.wanted.split()))
        found = {}
        for split, count in (("train", 45), ("val", 21)):
            labels = np.random.default_rng(count).integers(0, CLASSES, count)
            found[split] = Index(labels, ("a", "b", "c", "d"), split=split, fields=fields)
        return found

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        found = index.empty(len(samples))
        for place, sample in enumerate(samples):
            random = np.random.default_rng((len(index), int(sample)))
            image = random.integers(0, 256, (1, SIDE, SIDE))
            mask = image[0] // 64
            mask[random.random((SIDE, SIDE)) < random.random()] = 255
            all_ = {
                "image": image,
                "mask": mask,
                "tags": image[0, 0, :5] > 100,
                "sizes": image[0, :2].mean(1) / 100,
                "size": image.mean() / 100,
                "tag": image[0, 0, 0] > 100,
            }
            for name, array in found.items():
                array[place] = all_[name]
        return found


@dataclass(frozen=True)
class Small(Model):
    """A convolution for masks, and a linear layer for all else."""

    outputs: int = CLASSES
    dense: bool = False

    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        if self.dense:
            return nn.Conv2d(sample[0], self.outputs, 3, padding=1)
        return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE * sample[0], self.outputs))


class Joined(nn.Module):
    """Linear layers of an image, and of numbers beside it, added."""

    def __init__(self, pixels: int, outputs: int):
        super().__init__()
        self.of_image, self.of_numbers = nn.Linear(pixels, outputs), nn.Linear(2, outputs)

    def forward(self, images: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return self.of_image(images.flatten(1)) + self.of_numbers(numbers.float())


@dataclass(frozen=True)
class Join(Model):
    """A model of two inputs."""

    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return Joined(SIDE * SIDE * sample[0], classes)


@dataclass(frozen=True)
class Joining(Classification):
    """Gives a model the image and two numbers."""

    def forward(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return model(batch.images, batch["sizes"])


def experiment(task: Task, wanted: str, outputs: int, dense: bool = False, **more: Any) -> Experiment:
    """An experiment of a task whose target is in the fields `wanted`."""
    model = Join() if isinstance(task, Joining) else Small(outputs, dense)
    return Experiment(model, Scenes(wanted=wanted), task, SGD(lr=0.1), batch_size=12, epochs=2, **more)
