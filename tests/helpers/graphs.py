"""What stands for a CUDA graph on a CPU, and a hook that lets a run capture its passes with it."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from raytrain import Hook
from raytrain.training.graph import CapturedPass
from raytrain.training.trainer import Trainer


class Replayed:
    """Does what a CUDA graph does: a capture has no effect, and each replay writes to the tensors of the capture."""

    seconds = 0.0

    def capture(self, work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        self.work, self.tensors = work, work()
        return self.tensors

    def replay(self) -> None:
        time.sleep(self.seconds)
        for tensor, found in zip(self.tensors, self.work(), strict=True):
            with torch.no_grad():
                tensor.copy_(found)


class Slow(Replayed):
    seconds = 0.05


class Capture(Hook):
    """Lets a run on a CPU capture its passes."""

    def __init__(self, kind: type[Replayed] = Replayed):
        self.kind = kind

    def start(self, trainer: Trainer) -> None:
        self.passes = trainer.forward_backward = CapturedPass(trainer, self.kind)
