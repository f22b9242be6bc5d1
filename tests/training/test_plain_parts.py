"""Plain optimizers and schedulers in training: equal to a loop in PyTorch, also after a kill in mid-epoch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cut_runs import cut_rank, rows, weights
from helpers.plain_parts import Counting, Net, rmsprop, stages
from helpers.ranks import Ranks, new_run, on_workers, train_rank
from torch import nn

from raytrain import (
    FSDP,
    SGD,
    Adam,
    AdamW,
    Checkpoint,
    Cosine,
    CosineRestarts,
    Deterministic,
    Digits,
    Experiment,
    ExponentialLR,
    LinearLR,
    MultiStepLR,
    OneCycle,
    Optimizer,
    Plateau,
    PolynomialLR,
    Run,
    Schedule,
    SequentialLR,
    StepLR,
    TorchModel,
    TorchOptimizer,
    TorchSchedule,
    WarmUp,
    order,
)
from raytrain.data.transforms import Normalise

optim, schedulers = torch.optim, torch.optim.lr_scheduler
BASE = Experiment(
    model=TorchModel(Net, widths=[12]),
    data=Digits(),
    optimizer=SGD(lr=0.1),
    batch_size=128,
    epochs=3,
    checkpoint=Checkpoint(every_steps=5),
)
Torchs = Callable[[Any], Any]


def plain(e: Experiment, optimizer: Torchs, scheduler: Torchs | None = None, every: str = "epoch") -> Any:
    """The same training as a loop in PyTorch: losses, learning rates and the model."""
    train, val = (e.data.index()[split] for split in ("train", "val"))
    images, answers = (
        Normalise(e.data.mean, e.data.std)(torch.from_numpy(e.data.read(index, np.arange(len(index)))))
        for index in (train, val)
    )
    labels, wanted = torch.from_numpy(train.labels), torch.from_numpy(val.labels)
    torch.manual_seed(order.key(e.seed, 0) >> 1)
    model = Net(widths=[12], num_classes=10)
    step_by = optimizer(model.parameters())
    schedule: Any = scheduler(step_by) if scheduler else None
    losses, rates, steps = [], [], -(-len(train) // e.batch_size)
    for epoch in range(e.epochs):
        for step in range(steps):
            positions = np.arange(step * e.batch_size, min((step + 1) * e.batch_size, len(train)))
            ids = order.samples(e.seed, epoch, len(train), positions)
            step_by.zero_grad()
            loss = nn.functional.cross_entropy(model(images[ids]), labels[ids])
            loss.backward()
            losses.append(loss.item())
            rates.append(step_by.param_groups[0]["lr"])
            step_by.step()
            if schedule and every == "step":
                schedule.step()
        if isinstance(schedule, schedulers.ReduceLROnPlateau):
            with torch.no_grad():
                schedule.step(nn.functional.cross_entropy(model(answers), wanted))
        elif schedule and every == "epoch":
            schedule.step()
    return losses, rates, model


def trained(ranks: Ranks, folder: Path, e: Experiment, world: int) -> Path:
    """A run that is killed in the middle of its second epoch, and goes on."""
    e, run = on_workers(e, world), new_run(folder, e)
    ranks.run(world, cut_rank, e, run, 19)
    ranks.run(world, train_rank, e, run)
    return run


def equal(run: Path, expected: Any) -> None:
    losses, rates, model = expected
    steps = Run(run).metrics("step")
    np.testing.assert_allclose(steps["lr"].to_pylist(), rates, rtol=1e-6)
    np.testing.assert_allclose(steps["loss"].to_pylist(), losses, rtol=2e-5, atol=1e-6)
    found = Run(run).model("last").state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=2e-5)


OPTIMIZERS: dict[str, tuple[Optimizer, Torchs]] = {
    "RMSprop": (
        TorchOptimizer(optim.RMSprop, lr=1e-3, alpha=0.9, momentum=0.5),
        lambda p: optim.RMSprop(p, lr=1e-3, alpha=0.9, momentum=0.5),
    ),
    "Adagrad": (
        TorchOptimizer(optim.Adagrad, initial_accumulator_value=0.1),
        lambda p: optim.Adagrad(p, initial_accumulator_value=0.1),
    ),
    "NAdam": (TorchOptimizer(optim.NAdam, weight_decay=0.01), lambda p: optim.NAdam(p, weight_decay=0.01)),
    "Adadelta": (TorchOptimizer(optim.Adadelta), optim.Adadelta),
    "Rprop, which has no weight_decay": (TorchOptimizer(optim.Rprop, lr=1e-4), lambda p: optim.Rprop(p, lr=1e-4)),
    "Counting, whose state is no tensor": (TorchOptimizer(Counting, decay=0.1), lambda p: Counting(p, decay=0.1)),
    "a function": (TorchOptimizer(rmsprop, lr=1e-3), lambda p: rmsprop(p, lr=1e-3)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_equals_torchs_after_a_kill(ranks: Ranks, tmp_path: Path, name: str) -> None:
    declared, theirs = OPTIMIZERS[name]
    e = replace(BASE, optimizer=declared)
    world = 1 + list(OPTIMIZERS).index(name) % 2
    run = trained(ranks, tmp_path / "run", e, world)
    equal(run, plain(e, theirs))


@pytest.mark.parametrize("name", ["Adagrad", "Counting, whose state is no tensor"])
def test_a_killed_run_is_bit_identical_under_deterministic(ranks: Ranks, tmp_path: Path, name: str) -> None:
    e = replace(BASE, optimizer=OPTIMIZERS[name][0], parallel=Deterministic(), schedule=Plateau(gamma=0.5, patience=0))
    cut = new_run(tmp_path / "cut", on_workers(e, 2))
    ranks.run(2, cut_rank, on_workers(e, 2), cut, 2 * 19)
    ranks.run(1, train_rank, on_workers(e, 1), cut)
    whole = new_run(tmp_path / "whole", on_workers(e, 4))
    ranks.run(4, train_rank, on_workers(e, 4), whole)
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["RMSprop", "NAdam", "Adagrad"])
def test_a_sharded_optimizer_equals_torchs(ranks: Ranks, tmp_path: Path, name: str) -> None:
    declared, theirs = OPTIMIZERS[name]
    e = replace(BASE, optimizer=declared, parallel=FSDP(block_parameters=500))
    equal(trained(ranks, tmp_path / "run", e, 2), plain(e, theirs))


SCHEDULES: dict[str, tuple[Schedule, Torchs, str]] = {
    "plateau": (
        Plateau(gamma=0.5, patience=0, threshold=0.6),
        lambda o: schedulers.ReduceLROnPlateau(o, "min", 0.5, 0, 0.6),
        "epoch",
    ),
    "torch's plateau": (
        TorchSchedule(schedulers.ReduceLROnPlateau, factor=0.5, patience=0, threshold=0.6, min_lr=0.06),
        lambda o: schedulers.ReduceLROnPlateau(o, "min", 0.5, 0, 0.6, min_lr=0.06),
        "epoch",
    ),
    "one cycle": (
        TorchSchedule(schedulers.OneCycleLR, max_lr=0.2, cycle_momentum=False, every="step"),
        lambda o: schedulers.OneCycleLR(o, 0.2, 36, cycle_momentum=False),
        "step",
    ),
    "a function": (TorchSchedule(stages, first=0.3), lambda o: stages(o, 0.3), "epoch"),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_equals_torchs_after_a_kill(ranks: Ranks, tmp_path: Path, name: str) -> None:
    declared, theirs, every = SCHEDULES[name]
    e = replace(BASE, schedule=declared, task=replace(BASE.task, monitor="val_loss"))
    world = 1 + list(SCHEDULES).index(name) % 2
    expected = plain(e, lambda p: optim.SGD(p, lr=0.1), theirs, every)
    assert len({*expected[1]}) > 1, "the rate changes"
    equal(trained(ranks, tmp_path / "run", e, world), expected)


# Every entry on every number of ranks


OWN_OPTIMIZERS: dict[str, tuple[Optimizer, Torchs]] = {
    "SGD": (
        SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda p: optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    ),
    "Adam": (Adam(lr=2e-3, weight_decay=0.01), lambda p: optim.Adam(p, lr=2e-3, weight_decay=0.01)),
    "AdamW": (AdamW(lr=2e-3, weight_decay=0.1), lambda p: optim.AdamW(p, lr=2e-3, weight_decay=0.1)),
}
PER_EPOCH, STEPS = 12, 36
FOR_ALL = replace(BASE, batch_size=120)
"""Of batches that 1, 2, 3 and 4 ranks share."""
OWN_SCHEDULES: dict[str, tuple[Schedule, Torchs, str]] = {
    "StepLR": (StepLR(1, 0.5), lambda o: schedulers.StepLR(o, 1, 0.5), "epoch"),
    "MultiStepLR": (MultiStepLR((1, 2)), lambda o: schedulers.MultiStepLR(o, [1, 2]), "epoch"),
    "ExponentialLR": (ExponentialLR(0.8), lambda o: schedulers.ExponentialLR(o, 0.8), "epoch"),
    "LinearLR": (LinearLR(0.1, 1.0, 2), lambda o: schedulers.LinearLR(o, 0.1, 1.0, 2 * PER_EPOCH), "step"),
    "PolynomialLR": (PolynomialLR(2.0), lambda o: schedulers.PolynomialLR(o, STEPS, 2.0), "step"),
    "Cosine": (Cosine(), lambda o: schedulers.CosineAnnealingLR(o, STEPS), "step"),
    "CosineRestarts": (
        CosineRestarts(1, 2, final=0.1),
        lambda o: schedulers.CosineAnnealingWarmRestarts(o, PER_EPOCH, 2, eta_min=0.01),
        "step",
    ),
    "OneCycle": (
        OneCycle(),
        lambda o: schedulers.OneCycleLR(o, 0.1, STEPS, cycle_momentum=False),
        "step",
    ),
    "SequentialLR": (
        SequentialLR((LinearLR(0.1, 1.0, 1), StepLR(1, 0.5)), (1,)),
        lambda o: schedulers.SequentialLR(
            o, [schedulers.LinearLR(o, 0.1, 1.0, PER_EPOCH), schedulers.StepLR(o, PER_EPOCH, 0.5)], [PER_EPOCH]
        ),
        "step",
    ),
    "WarmUp": (
        WarmUp(StepLR(1, 0.5), epochs=1),
        lambda o: schedulers.SequentialLR(
            o,
            [schedulers.LinearLR(o, 1 / PER_EPOCH, 1.0, PER_EPOCH - 1), schedulers.StepLR(o, PER_EPOCH, 0.5)],
            [PER_EPOCH],
        ),
        "step",
    ),
}


def check_everywhere(ranks: Ranks, folder: Path, e: Experiment, expected: Any) -> None:
    """On 1 to 4 ranks, each with a kill; and begun by 4 and ended by 2 ranks under `deterministic`."""
    for world in (1, 2, 3, 4):
        equal(trained(ranks, folder / str(world), e, world), expected)
    e = replace(e, parallel=Deterministic())
    run = new_run(folder / "deterministic", on_workers(e, 4))
    ranks.run(4, cut_rank, on_workers(e, 4), run, 19)
    ranks.run(2, train_rank, on_workers(e, 2), run)
    equal(run, expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OPTIMIZERS, *OWN_OPTIMIZERS])
def test_every_optimizer_equals_torchs_on_any_number_of_ranks(ranks: Ranks, tmp_path: Path, name: str) -> None:
    declared, theirs = (OPTIMIZERS | OWN_OPTIMIZERS)[name]
    e = replace(FOR_ALL, optimizer=declared)
    check_everywhere(ranks, tmp_path, e, plain(e, theirs))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SCHEDULES, *OWN_SCHEDULES])
def test_every_schedule_equals_torchs_on_any_number_of_ranks(ranks: Ranks, tmp_path: Path, name: str) -> None:
    declared, theirs, every = (SCHEDULES | OWN_SCHEDULES)[name]
    e = replace(FOR_ALL, schedule=declared, task=replace(BASE.task, monitor="val_loss"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The epoch parameter in", UserWarning)  # torch's SequentialLR gives it
        expected = plain(e, lambda p: optim.SGD(p, lr=0.1), theirs, every)
    check_everywhere(ranks, tmp_path, e, expected)
