"""Schedules, optimizers and models of users, written as one writes them for a plain loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.ranks import Ranks, losses, new_run, on_workers, train_rank
from torch import nn

from raytrain import (
    DDP,
    FSDP,
    MLP,
    SGD,
    Data,
    Digits,
    Experiment,
    Field,
    Index,
    Model,
    Optimizer,
    Parallel,
    Regression,
    Schedule,
)

E = Experiment(MLP(hidden=(16,)), Digits(), optimizer=SGD(lr=0.05, momentum=0.9), batch_size=256, epochs=2)


def resumed(ranks: Ranks, folder: Path, e: Experiment) -> tuple[np.ndarray, np.ndarray]:
    """The losses of a run of four epochs, and of one that went on after two."""
    whole, cut = new_run(folder / "whole", e), new_run(folder / "cut", e)
    for run, epochs in ((whole, 4), (cut, 2), (cut, 4)):
        assert ranks.run(1, train_rank, replace(e, epochs=epochs), run) == ["completed"]
    return losses(whole), losses(cut)


@dataclass(frozen=True)
class NumPyWaves(Schedule):
    def factor(self, step: int, steps_per_epoch: int, epochs: float) -> float:
        return 1 + 0.5 * np.cos(step)  # a NumPy float


def test_a_schedule_may_return_numpys_floats(ranks: Ranks, tmp_path: Path) -> None:
    np.testing.assert_array_equal(*resumed(ranks, tmp_path, replace(E, schedule=NumPyWaves())))


class Counting(torch.optim.Optimizer):
    """Keeps something that belongs to no parameter."""

    def __init__(self, parameters: Any, lr: float):
        super().__init__(parameters, {"lr": lr})
        own: Any = self.state
        own["steps"] = {"count": 0}

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        own: Any = self.state
        own["steps"]["count"] += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] / own["steps"]["count"] * parameter.grad


@dataclass(frozen=True)
class Counted(Optimizer):
    def build(self, parameters: Any) -> torch.optim.Optimizer:
        return Counting(parameters, self.lr)


def test_an_optimizer_may_keep_what_belongs_to_no_parameter(ranks: Ranks, tmp_path: Path) -> None:
    np.testing.assert_array_equal(*resumed(ranks, tmp_path, replace(E, optimizer=Counted())))


@dataclass(frozen=True)
class Points(Data):
    """193 of them for training: with batches of 48 the last one has a single point."""

    def index(self) -> dict[str, Index]:
        fields = (Field("x", (6,), "float32"), Field("y", (), "float32"))
        rows = {"train": np.arange(193), "val": np.arange(193, 200)}
        return {split: Index(rows=rows[split], split=split, fields=fields) for split in rows}

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        points = np.random.default_rng(0).normal(size=(200, 7)).astype(np.float32)[index.rows[samples]]
        return {"x": points[:, :6], "y": points[:, 6]}


class UnitLength(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input / input.norm(dim=1, keepdim=True))


@dataclass(frozen=True)
class Directions(Model):
    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(UnitLength(6, 8), nn.Tanh(), nn.Linear(8, 1))


@pytest.mark.parametrize(
    ("parallel", "world"),
    [(DDP(), 2), (DDP(reduction="torch"), 3), (FSDP(block_parameters=10), 2)],
    ids=["shared", "torch", "fsdp"],
)
def test_a_pass_without_samples_gives_no_nan_where_zeros_would(
    ranks: Ranks, tmp_path: Path, parallel: Parallel, world: int
) -> None:
    e = Experiment(Directions(), Points(), task=Regression(), batch_size=48, micro_batch_size=4, epochs=2)
    alone, several = new_run(tmp_path / "alone", e), new_run(tmp_path / "several", e)
    ranks.run(1, train_rank, e, alone)
    ranks.run(world, train_rank, on_workers(replace(e, parallel=parallel), world), several)
    np.testing.assert_allclose(losses(several), losses(alone), rtol=1e-5)
