"""Runs that are cut off, and what is compared of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from helpers.ranks import train_rank
from helpers.times import without_times
from raytrain import (
    CNN,
    Augment,
    Batch,
    Checkpoint,
    Classification,
    Cosine,
    Digits,
    Experiment,
    Run,
)
from raytrain.data.loader import Loaded
from raytrain.training.losses import Step
from raytrain.training.trainer import Trainer

BASE = Experiment(
    model=CNN(channels=(8, 16), batch_norm=True, dropout=0.2),
    data=Digits(augment=Augment(crop="random_resized", scale=(0.6, 1.0), flip=0.5)),
    schedule=Cosine(warmup_epochs=0.5),
    checkpoint=Checkpoint(every_steps=5),
    batch_size=64,
    epochs=2,
)


class Cut(Exception):
    """Stands for a kill: the process leaves without another word."""


@dataclass(frozen=True)
class CutAt(Classification):
    """Fails in the given call of `loss`, on all ranks."""

    call: int = 0

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        _CALLS.append(1)
        if len(_CALLS) == self.call:
            raise Cut
        return super().loss(model, batch)


_CALLS: list[int] = []


def cut_rank(rank: int, world: int, e: Experiment, run: Path, call: int) -> None:
    _CALLS.clear()
    with pytest.raises(Cut):
        train_rank(rank, world, replace(e, task=CutAt(call=call)), run)


def cut_between_steps_rank(rank: int, world: int, e: Experiment, run: Path, call: int) -> None:
    """For a pipeline, where one rank alone computes losses and the others would wait for it."""
    step, left = Trainer.step, [call - 1]

    def step_and_look(worker: Trainer, loaded: Loaded) -> Step:
        if not left[0]:
            raise Cut
        left[0] -= 1
        return step(worker, loaded)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Cut):
        patch.setattr(Trainer, "step", step_and_look)
        train_rank(rank, world, e, run)


def weights(run: Path) -> str:
    state = Run(run).model("last").state_dict()
    return hashlib.sha256(b"".join(value.numpy().tobytes() for _, value in sorted(state.items()))).hexdigest()


def rows(run: Path) -> list[dict]:
    """All metrics but the times of steps and epochs."""
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [without_times(row) for row in found]
