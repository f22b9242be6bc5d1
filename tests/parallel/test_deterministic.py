"""`deterministic`: the same bits on 1, 2 and 4 workers, and of a run that goes on with another number of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cut_runs import cut_rank, rows
from helpers.ranks import Ranks, losses, new_run, on_workers, train_rank
from torch import nn

from raytrain import (
    CNN,
    DDP,
    SGD,
    AdamW,
    Augment,
    Batch,
    Checkpoint,
    Classification,
    Cosine,
    Deterministic,
    Digits,
    Experiment,
    Index,
    Model,
    Optimizer,
    order,
)
from raytrain.checkpoint import checkpoints, layout
from raytrain.parallel import tree
from raytrain.parallel.tree import Gradients, Tree

WORLDS = (1, 2, 4)


@dataclass(frozen=True)
class Few(Digits):
    """Six batches of 64, and one of two samples, which only two of the four shards have."""

    def index(self) -> dict[str, Index]:
        index = super().index()
        return {"train": index["train"].take(np.arange(6 * 64 + 2)), "val": index["val"].take(np.arange(64 + 30))}


BASE = Experiment(
    model=CNN(channels=(8, 16), batch_norm=True, dropout=0.2),
    data=Few(augment=Augment(crop="random_resized", scale=(0.6, 1.0), flip=0.5)),
    optimizer=SGD(lr=0.05, momentum=0.9),
    schedule=Cosine(warmup_epochs=0.5),
    checkpoint=Checkpoint(every_steps=3),
    batch_size=64,
    epochs=2,
    ema_decay=0.9,
    parallel=Deterministic(),
)


def ran(ranks: Ranks, folder: Path, e: Experiment, world: int, function: Callable[..., Any] = train_rank) -> Path:
    """The directory of a run on so many workers."""
    e = on_workers(e, world)
    run = new_run(folder / f"{world}", e)
    ranks.run(world, function, e, run)
    return run


def bits(run: Path) -> tuple[list[dict], str]:
    """What a run leaves: its metrics but for times, and a hash of its last checkpoint with the optimizer's state."""
    path, digest = layout.newest(run / "checkpoints"), hashlib.sha256()
    assert path is not None

    def add(state: Any) -> None:
        if isinstance(state, torch.Tensor):
            digest.update(state.numpy().tobytes())
        elif isinstance(state, dict):
            for name in sorted(state, key=str):
                add(state[name])
        elif isinstance(state, list):
            for value in state:
                add(value)
        else:
            digest.update(repr(state).encode())

    add([checkpoints.load_model(path), checkpoints.load_optimizer(path)])
    return rows(run), digest.hexdigest()


def check(ranks: Ranks, folder: Path, e: Experiment) -> Path:
    """Trains on each number of workers, and compares all bits."""
    one, *others = (ran(ranks, folder, e, world) for world in WORLDS)
    assert len(losses(one)) == 14 and np.isfinite(losses(one)).all()
    for other in others:
        assert bits(other) == bits(one)
    return one


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("optimizer", [SGD(lr=0.05, momentum=0.9), AdamW()])
def test_any_number_of_workers_gives_the_same_bits(
    ranks: Ranks, tmp_path: Path, precision: Any, optimizer: Optimizer
) -> None:
    check(ranks, tmp_path, replace(BASE, precision=precision, optimizer=optimizer))


def test_with_all_augmentation_accumulation_and_clipping(ranks: Ranks, tmp_path: Path) -> None:
    augment = Augment(crop="random_resized", flip=0.5, policy="randaugment", erase=0.5, mixup=0.4, cutmix=1.0)
    e = replace(BASE, data=Few(augment=augment), micro_batch_size=8, clip_norm=0.5, on_nonfinite="skip")
    check(ranks, tmp_path, replace(e, task=Classification(label_smoothing=0.1)))


class OddNet(nn.Module):
    """A layer that only some shards use, one that none does, a frozen one, weights of two types, and a buffer that
    decides what comes out and changes with every pass, as in spectral normalisation."""

    def __init__(self, features: int, classes: int):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(features, 32), nn.BatchNorm1d(32), nn.ReLU())
        self.sometimes, self.never = nn.Linear(32, 32), nn.Linear(3, 3)
        self.frozen = nn.Linear(32, 32).requires_grad_(False)
        self.head = nn.Linear(32, classes).double()
        self.seen: torch.Tensor
        self.mask: torch.Tensor
        self.register_buffer("seen", torch.ones(32))
        self.register_buffer("mask", torch.full((32,), torch.finfo(torch.float32).min) > 0)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return self.head((self.body(images) * self.seen).double()).float()
        x = self.body(images if len(images) > 1 else images.expand(2, -1, -1, -1))[: len(images)]
        x = x * self.seen.clone() + self.frozen(x).masked_fill(self.mask, 0)
        x = x + self.sometimes(x) if torch.rand(()) < 0.5 else x
        self.seen.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return self.head(x.double()).float()


@dataclass(frozen=True)
class Odd(Model):
    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        return OddNet(int(np.prod(sample)), classes)


@pytest.mark.parametrize("reduction", ["shared", "torch"])
def test_shards_may_use_other_layers_and_buffers(ranks: Ranks, tmp_path: Path, reduction: Any) -> None:
    e = replace(BASE, model=Odd(), parallel=Deterministic(reduction=reduction), optimizer=AdamW(lr=0.01))
    one = layout.newest(check(ranks, tmp_path, replace(e, memory_format="contiguous")) / "checkpoints")
    assert one is not None
    torch.manual_seed(order.key(e.seed, 0) >> 1)
    never = checkpoints.load_model(one)["never.weight"]
    assert torch.equal(never, OddNet(64, 10).never.weight), "what has no gradient does not decay"


@dataclass(frozen=True)
class Wild(Classification):
    """Losses of all sizes, whose sums depend on their order also in float64."""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        sizes = torch.pow(10.0, -2.0 * batch.labels.double())
        each = nn.functional.cross_entropy(model(batch.images).double(), batch.labels, reduction="none")
        return (each * sizes).sum(), len(batch)

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        return super().sums(model, batch) | {"loss": self.loss(model, batch)[0]}


def test_losses_and_metrics_that_float64_rounds(ranks: Ranks, tmp_path: Path) -> None:
    check(ranks, tmp_path, replace(BASE, task=Wild(), micro_batch_size=2))


@pytest.mark.parametrize("reduction", ["auto", "torch"])
def test_resume_on_other_workers_keeps_the_bits(ranks: Ranks, tmp_path: Path, reduction: Any) -> None:
    e = replace(BASE, parallel=Deterministic(reduction=reduction), data=Few(augment=Augment(flip=0.5, mixup=0.4)))
    e = replace(e, checkpoint=Checkpoint(every_steps=2))
    whole, moved = ran(ranks, tmp_path / "whole", e, 2), new_run(tmp_path / "moved", e)
    for world, call in ((4, 4), (2, 6), (1, 17)):  # within steps 4, 5 and 9; on one worker there are 4 passes in a step
        ranks.run(world, cut_rank, on_workers(e, world), moved, call)
    newest = layout.newest(moved / "checkpoints")
    assert newest is not None and newest.name == "step_00000008"
    ranks.run(4, train_rank, on_workers(e, 4), moved)
    assert bits(moved) == bits(whole)


def test_losses_are_close_to_four_ddp_workers(ranks: Ranks, tmp_path: Path) -> None:
    """With BatchNorm and dropout, too."""
    four = ran(ranks, tmp_path / "four", replace(BASE, parallel=DDP()), 4)
    one = ran(ranks, tmp_path / "one", BASE, 1)
    np.testing.assert_allclose(losses(one), losses(four), rtol=1e-4)


def test_losses_are_close_to_any_ddp_workers(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(BASE, model=CNN(channels=(8, 16)))
    without = ran(ranks, tmp_path / "without", replace(e, parallel=DDP()), 1)
    with_ = ran(ranks, tmp_path / "with", e, 1)
    np.testing.assert_allclose(losses(with_), losses(without), rtol=1e-5)
    assert (losses(with_) != losses(without)).any()


class Sequential(Tree):
    """Adds up one after the other what comes: first a rank's shards, then the ranks."""

    def put(self, leaf: Gradients) -> None:
        self.branches.append((1, leaf))
        self.branches = [(1, self.take())]


def sequential_rank(rank: int, world: int, e: Experiment, run: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "Tree", Sequential)
        train_rank(rank, world, e, run)


def test_sums_that_are_grouped_by_ranks_would_be_noticed(ranks: Ranks, tmp_path: Path) -> None:
    one, two = (ran(ranks, tmp_path, BASE, world, sequential_rank) for world in (1, 2))
    np.testing.assert_allclose(losses(one), losses(two), rtol=1e-4)
    assert (losses(one) != losses(two)).any() and bits(one)[1] != bits(two)[1]
