"""An experiment that every strategy can train, and a task in which something happens at one sample."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from raytrain import (
    CNN,
    FSDP,
    SGD,
    Augment,
    Batch,
    Classification,
    Cosine,
    Digits,
    Experiment,
    Model,
)

BASE = Experiment(
    model=CNN(channels=(8, 16)),
    data=Digits(augment=Augment(crop="random", padding=1, flip=0.5)),
    optimizer=SGD(lr=0.05, momentum=0.9),
    schedule=Cosine(warmup_epochs=0.5),
    batch_size=64,
    micro_batch_size=8,
    memory_format="channels_last",
    epochs=2,
    clip_norm=1.0,
)
SHORT = replace(BASE, batch_size=128, micro_batch_size=16, optimizer=SGD(lr=0.1, momentum=0.9))
"""Of 12 steps an epoch, of which the last has 29 samples."""

BLOCKS = FSDP(block_parameters=500)


@dataclass(frozen=True)
class VisionTransformer(Model):
    """A small one of torchvision."""

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        from torchvision.models import VisionTransformer

        module = VisionTransformer(sample[1], 4, 2, 4, 32, 64, num_classes=classes)
        module.conv_proj = nn.Conv2d(sample[0], 32, 4, 4)
        nn.init.normal_(module.heads[0].weight, std=0.1)  # type: ignore[arg-type]
        return module


@dataclass(frozen=True)
class Eventful(Classification):
    """What happens when one sample is trained on: its rank's loss is multiplied, or a stop is asked for."""

    sample: int = 700
    factor: float = 1.0
    stop: str = ""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        loss, count = super().loss(model, batch)
        if model.training and self.sample in batch.ids:
            loss = loss * self.factor
            if self.stop:
                Path(self.stop).touch()
        return loss, count
