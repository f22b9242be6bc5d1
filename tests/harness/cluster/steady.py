"""The experiment that hosts train: digits, a step of which takes a third of a second while the file `slow` is there,
so that what is done to the hosts comes between steps; without dropout or BatchNorm, so that the number of workers
changes no more than last bits, nor max-pooling, where ties make more of these."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from raytrain import MLP, SGD, Batch, Checkpoint, Classification, Digits, Experiment, Scaling


@dataclass(frozen=True)
class Steady(Classification):
    """Classification that takes its time."""

    slow: str = ""
    """The file."""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        """The loss, after a while."""
        if self.slow and model.training and Path(self.slow).exists():
            time.sleep(0.3)
        return super().loss(model, batch)


experiment = Experiment(
    model=MLP(hidden=(64,)),
    data=Digits(),
    task=Steady(),
    optimizer=SGD(lr=0.01, momentum=0.9),
    scaling=Scaling(workers=3, cpus_per_worker=1.5, threads_per_worker=1, resize_seconds=5),
    checkpoint=Checkpoint(every_steps=10),
    batch_size=96,
    epochs=4,
)
