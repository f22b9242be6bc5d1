"""Decisions that the device makes by itself on a GPU: whether a step counts, and what the EMA makes of it.

`Precision.reads` is off, as on a GPU, so that no step reads a number from the device: the operator that does so is
refused. Runs that read have the same bits.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from helpers.ranks import new_run
from torch.utils._python_dispatch import TorchDispatchMode

from raytrain import (
    MLP,
    SGD,
    AdamW,
    Batch,
    Classification,
    Digits,
    Experiment,
    Field,
    GradientNorm,
    Hook,
    Index,
    Model,
    Scaling,
)
from raytrain.data.checks import checked_read
from raytrain.data.reader import Resident
from raytrain.optim.optimizers import Optimizer
from raytrain.parallel.strategy import RankContext
from raytrain.training.averages import EMA
from raytrain.training.losses import Reduced
from raytrain.training.precision import Precision
from raytrain.training.timing import Ask
from raytrain.training.trainer import Trainer

CPU = torch.device("cpu")
READS = ("aten._local_scalar_dense", "aten.is_nonzero", "aten.item")


class NoReads(TorchDispatchMode):
    """Refuses operators that read a number from a tensor, for which the host would wait on a GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert not str(func).startswith(READS), f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Spoil(Hook):
    """Makes the gradients of some steps infinite."""

    steps: tuple[int, ...] = ()

    def after_backward(self, trainer: Any) -> None:
        if trainer.progress.step in self.steps:
            trainer.parameters[0].grad.fill_(float("inf"))


E = Experiment(
    model=MLP(hidden=(16,)),
    data=Digits(),
    scaling=Scaling(threads_per_worker=1),
    ema_decay=0.75,
    hooks=(Spoil(steps=(0, 7, 8)), GradientNorm()),
    steps=20,
)


def trained(folder: Path, e: Experiment, reads: bool) -> tuple[list[Reduced], dict[str, Any]]:
    """The steps and the snapshot of a run of 20 steps, in one process."""
    indices = e.data.index()
    readers = {
        split: Resident(checked_read(e.data, indices[split], np.arange(len(indices[split])))) for split in indices
    }
    trainer = Trainer(e, new_run(folder, e), indices, readers, None, RankContext(0, 1, CPU), time.time())
    trainer.precision.reads = reads
    if e.precision == "fp16":  # the first steps overflow, and the scale grows again
        trainer.precision.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=3)
    with trainer.started():
        for loaded in trainer.batches():
            with nullcontext() if reads else NoReads():
                step = trainer.step(loaded)
            trainer.losses.add(step)
        steps, _ = trainer.losses.reduce(Ask.NOTHING)
        tensors = trainer.snapshot()
    assert tensors is not None
    return steps, tensors | {"precision": trainer.precision.state_dict()}


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1, momentum=0.9), AdamW(lr=0.01)])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_steps_that_read_nothing_have_the_same_bits(
    tmp_path: Path, optimizer: Optimizer, precision: Literal["fp16", "fp32"], clip: float | None
) -> None:
    skip = "error" if precision == "fp16" else "skip"
    e = replace(E, optimizer=optimizer, precision=precision, clip_norm=clip, on_nonfinite=skip)
    (read, one), (device, other) = (trained(tmp_path / str(reads), e, reads) for reads in (True, False))
    assert [step.updated for step in read] == [step.updated for step in device]
    skipped = [step.step for step in read if not step.updated]
    assert {1, 8, 9} <= set(skipped) if precision == "fp32" else len(skipped) > 3, "the test has steps to skip"
    assert len(skipped) < 18 and [step.total for step in read] == [step.total for step in device]
    assert one["precision"] == other["precision"] and one["ema"]["updates"] == other["ema"]["updates"]
    assert one["ema"]["updates"] == 20 - len(skipped)
    for name, weight in one["ema"]["trained"].items():
        assert torch.equal(weight, other["ema"]["trained"][name])
    for name, average in one["model"].items():
        torch.testing.assert_close(average, other["model"][name], rtol=1e-6, atol=1e-7)
    for number, state in one["optimizer"]["state"].items():  # Adam's count of steps, too
        for name, value in state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(other["optimizer"]["state"][number][name]))


@dataclass(frozen=True)
class Damaged(Digits):
    """Digits as floats, of which one is not a number."""

    def index(self) -> dict[str, Index]:
        field = Field("image", (1, 8, 8), "float32", "image")
        return {
            split: Index(labels=found.labels, classes=found.classes, rows=found.rows, split=split, fields=(field,))
            for split, found in super().index().items()
        }

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        found = super().read(index, samples).astype(np.float32) / 255
        if index.split == "train":
            found[samples == 3] = np.nan
        return found


@dataclass(frozen=True)
class Normalised(Model):
    def build(self, sample: tuple[int, ...], classes: int) -> torch.nn.Module:
        layers = torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(144, classes)
        return torch.nn.Sequential(*layers)


@pytest.mark.parametrize("reads", [True, False])
def test_statistics_of_a_step_that_is_left_out_stay_finite(tmp_path: Path, reads: bool) -> None:
    e = replace(E, model=Normalised(), data=Damaged(), hooks=(), steps=25, on_nonfinite="skip")
    steps, tensors = trained(tmp_path / "run", e, reads)
    assert [step.updated for step in steps].count(False) == 1
    last = next(step for step in steps if not step.updated).step
    assert last < 23, "others follow in this epoch"
    model = tensors["model"]
    assert all(value.isfinite().all() for value in model.values()), model
    assert not torch.equal(model["1.running_mean"], torch.zeros(4)) and model["1.num_batches_tracked"] == len(steps)


@dataclass(frozen=True)
class Parts(Classification):
    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, float]:  # type: ignore[override]
        return super().loss(model, batch)[0], len(batch) * 0.03


def test_samples_may_count_a_part_of_one(tmp_path: Path) -> None:
    e = replace(E, hooks=(), steps=23)
    assert len({size * 0.03 / size for size in (64, 30)}) == 2, "by rounding"
    assert len(trained(tmp_path / "run", replace(e, task=Parts()), True)[0]) == 23


def test_an_optimizer_without_a_fused_form_skips_the_step_too() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.full((3,), float("inf"))
    one, optimizer = Precision("fp32", CPU), torch.optim.RMSprop([weight])
    one.reads = False
    updated = one.step(optimizer, torch.tensor(False))
    assert isinstance(updated, torch.Tensor) and not updated and torch.equal(weight, torch.ones(3))


def test_an_average_follows_updates_that_the_device_decides() -> None:
    module = torch.nn.Linear(5, 4)
    here, averages = {id(weight) for weight in module.parameters()}, (EMA(0.9), EMA(0.9))
    for average in averages:
        average.start(module, lambda whole, _: whole, here)
    for updated in (False, True, False, True, True):
        with torch.no_grad():
            for weight in module.parameters():
                weight += torch.randn_like(weight) if updated else 0
        averages[0].after_step(updated)
        averages[1].after_step(torch.tensor(updated))
    assert averages[0].state_dict(module)["updates"] == averages[1].state_dict(module)["updates"] == 3
    for one, other in zip(averages[0].averages, averages[1].averages, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
