"""A rank that hangs in real training, joined to the others by gloo: it is named, and not those that wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.ranks import Ranks, losses, new_run, on_workers, train_rank
from torch import nn

from raytrain import CNN, DDP, SGD, Batch, Classification, Data, Digits, Experiment, Index
from raytrain.data.blocks import Arrays
from raytrain.data.checks import checked_read
from raytrain.data.reader import Epoch
from raytrain.parallel.strategy import RankContext
from raytrain.training.trainer import Trainer
from raytrain.watchdog import Hang, Watchdog

_FREE = threading.Event()


def deadlock() -> None:
    _FREE.wait(60)


class Stops(torch.autograd.Function):
    """Does nothing, and never ends its backward pass."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        deadlock()
        return grads[0]


@dataclass(frozen=True)
class Hanging(Classification):
    """Hangs on a rank at a pass, in its forward or backward pass or in the validation, until the watchdog says so."""

    rank: int = 0
    where: str = ""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        loss, count = super().loss(model, batch)
        if self._now("forward", 5):
            deadlock()
        return Stops.apply(loss) if self._now("backward", 5) else loss, count

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        if self._now("validation", 2):
            deadlock()
        return super().sums(model, batch)

    def _now(self, where: str, number: int) -> bool:
        if where != self.where or dist.get_rank() != self.rank:
            return False
        _PASSES.append(0)
        return len(_PASSES) == number


_PASSES: list[int] = []


class Starving:
    """A reader that has a rank wait for the fifth batch."""

    def __init__(self, data: Data, index: Index, rank: int):
        self.data, self.index, self.rank = data, index, rank

    def read(self, epoch: Epoch) -> Iterator[tuple[np.ndarray, Arrays]]:
        for number, samples in enumerate(epoch.steps()):
            if (number, epoch.number, dist.get_rank()) == (4, 0, self.rank):
                deadlock()
            yield samples, checked_read(self.data, self.index, samples)


BASE = Experiment(model=CNN(channels=(8,)), data=Digits(), optimizer=SGD(lr=0.05), batch_size=256, epochs=2)


def watched(rank: int, world: int, e: Experiment, run: Path) -> list[Hang]:
    """Train as a rank under a watchdog that frees what hangs."""
    assert isinstance(e.task, Hanging)
    found: list[Hang] = []

    def hung(hang: Hang) -> None:
        found.append(hang)
        _FREE.set()

    _FREE.clear()
    _PASSES.clear()
    store: Any = dist.group.WORLD.get_group_store().clone()  # type: ignore[union-attr]
    with Watchdog(rank, world, 2.0, store, hung):
        if e.task.where != "data":
            train_rank(rank, world, e, run)
        else:
            indices, place = e.data.index(), RankContext(rank, world, torch.device("cpu"))
            readers = {split: Starving(e.data, index, e.task.rank) for split, index in indices.items()}
            Trainer(e, run, indices, readers, None, place, time.time()).fit()
    return found


@pytest.fixture(scope="module")
def whole(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The losses of a run that nothing happens to; the ranks have imported all that they need by then."""
    e = on_workers(BASE, 2)
    run = new_run(tmp_path_factory.mktemp("hang") / "whole", e)
    ranks.run(2, train_rank, e, run)
    return losses(run)


@pytest.mark.parametrize(
    ("reduction", "rank", "where", "what", "step"),
    [
        ("shared", 0, "forward", "in a forward pass", 4),
        ("torch", 1, "forward", "in a forward pass", 4),
        ("shared", 1, "backward", "in a backward pass", 4),
        ("torch", 0, "backward", "in a backward pass", 4),
        ("shared", 1, "validation", "validating", 6),
        ("torch", 0, "data", "waited in vain for data", 4),
    ],
)
def test_a_rank_that_hangs_is_named_alone_and_no_loss_changes(
    ranks: Ranks, tmp_path: Path, whole: np.ndarray, reduction: str, rank: int, where: str, what: str, step: int
) -> None:
    e = on_workers(replace(BASE, parallel=DDP(reduction=reduction)), 2)  # type: ignore[arg-type]
    run = new_run(tmp_path / "run", e)
    found = ranks.run(2, watched, replace(e, task=Hanging(rank=rank, where=where)), run)
    (hang,) = found[rank]
    assert not found[1 - rank]
    assert what in hang.error and f"after step {step}" in hang.error and "as did" not in hang.error
    line = deadlock.__code__.co_firstlineno + 1
    assert hang.at == f"{__file__}:{line}, in deadlock"
    np.testing.assert_array_equal(losses(run), whole)
