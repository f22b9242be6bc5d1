"""Runs counted in steps: validations inside epochs, ends within one, ends by time, and all of it through kills."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cut_runs import BASE, Cut, cut_rank, rows, weights
from helpers.ranks import Ranks, losses, new_run, on_workers, reference, train_rank
from torch import nn

from raytrain import (
    CNN,
    DDP,
    FSDP,
    SGD,
    Augment,
    Checkpoint,
    Constant,
    Cosine,
    Deterministic,
    Digits,
    Experiment,
    Hook,
    Parallel,
    Run,
    config,
)
from raytrain.checkpoint import layout
from raytrain.data.transforms import Normalise
from raytrain.optim.schedules import Rising
from raytrain.training.progress import Progress
from raytrain.training.timing import Timing
from raytrain.training.trainer import Trainer

PER_EPOCH = 23
RISING = replace(
    BASE,
    model=CNN(channels=(8,), batch_norm=True, dropout=0.2),
    optimizer=SGD(lr=1.0, momentum=0.5),
    schedule=Rising(steps=60, low=1e-2, high=3.0),
    parallel=DDP(reduction="torch"),
    steps=60,
    validate_every_steps=7,
    checkpoint=Checkpoint(every_steps=5),
)
"""The best validation lies inside an epoch: after it the learning rate is too high."""
VALIDATED = [7, 14, 21, 23, 28, 35, 42, 46, 49, 56, 60]


@dataclass(frozen=True)
class CutAfter(Hook):
    """Stands for a kill, on all ranks, after so many steps and validations of a session."""

    at: int = 0
    seen: list[int] = field(default_factory=list)

    def _count(self) -> None:
        self.seen.append(1)
        if len(self.seen) == self.at:
            raise Cut

    def after_step(self, trainer: Trainer) -> None:
        self._count()

    def after_validation(self, trainer: Trainer, row: Mapping[str, Any]) -> None:
        self._count()

    def after_epoch(self, trainer: Trainer, row: Mapping[str, Any]) -> None:
        self._count()


def cut_after_rank(rank: int, world: int, e: Experiment, run: Path, at: int) -> None:
    with pytest.raises(Cut):
        train_rank(rank, world, e, run, hooks=[CutAfter(at)])


def of_kind(run: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in rows(run) if row["kind"] == kind]


def pointer(run: Path, name: str) -> dict[str, Any]:
    return json.loads((run / name).read_text())


# Against a plain loop


@pytest.mark.parametrize("world", [1, 2])
def test_losses_and_validations_are_those_of_a_plain_loop(ranks: Ranks, tmp_path: Path, world: int) -> None:
    e = Experiment(
        model=CNN(channels=(8, 16)),
        data=Digits(augment=Augment(crop="random_resized", scale=(0.6, 1.0), flip=0.5)),
        optimizer=SGD(lr=0.05, momentum=0.9),
        schedule=Cosine(warmup_epochs=0.5),
        steps=30,
        validate_every_steps=10,
    )
    run = new_run(tmp_path / "run", on_workers(e, world))
    assert ranks.run(world, train_rank, on_workers(e, world), run)[0] == "completed"
    index, found = e.data.index()["val"], []
    images = Normalise(e.data.mean, e.data.std)(torch.from_numpy(e.data.read(index, np.arange(len(index)))))
    labels = torch.from_numpy(index.labels)

    def evaluate(model: nn.Module) -> None:
        with torch.no_grad():
            logits = model.eval()(images)
        model.train()
        right = (logits.argmax(1) == labels).sum().item()
        found.append((right, nn.functional.cross_entropy(logits, labels).item()))

    expected, _ = reference(e, 30, each=evaluate)
    np.testing.assert_allclose(losses(run), expected, rtol=1e-4)
    inside, ends = of_kind(run, "validation"), of_kind(run, "epoch")
    assert [row["step"] for row in inside] == [10, 20, 30] and [row["epoch"] for row in inside] == [1, 1, 2]
    assert [row["step"] for row in ends] == [23]
    for row in inside + ends:
        right, loss = found[row["step"] - 1]
        assert row["val_accuracy"] == right / len(labels) and row["val_loss"] == pytest.approx(loss, rel=1e-4)
        first = 0 if row["epoch"] == 1 else PER_EPOCH
        sizes = [64 if step % PER_EPOCH else 1438 % 64 for step in range(first + 1, row["step"] + 1)]
        mean = np.average(expected[first : row["step"]], weights=sizes)
        assert row["train_loss"] == pytest.approx(mean, rel=1e-4)
    assert [row["step"] for row in rows(run) if row["kind"] == "step"] == list(range(1, 31))
    lr = [row["lr"] for row in of_kind(run, "step")]
    assert lr == [0.05 * e.schedule.factor(step, PER_EPOCH, 30 / PER_EPOCH) for step in range(30)]  # type: ignore[arg-type]
    summary = Run(run).summary
    assert (summary["steps"], summary["epochs"], summary["status"]) == (30, 1, "completed")
    assert "stopped_early" not in summary and pointer(run, "last.json")["step"] == 30
    assert summary["seconds"] == pytest.approx(sum(row["seconds"] for row in Run(run).metrics().to_pylist()) +
                                               Run(run).metrics("validation").to_pylist()[-1]["seconds"])  # fmt: skip


@pytest.mark.parametrize(
    ("world", "parallel"),
    [(1, DDP()), (2, DDP(reduction="torch")), (2, FSDP()), pytest.param(4, DDP(), marks=pytest.mark.slow)],
)
def test_validations_inside_epochs_change_no_bit_of_training(
    ranks: Ranks, tmp_path: Path, world: int, parallel: Parallel
) -> None:
    base = replace(RISING, parallel=parallel, ema_decay=0.9, schedule=Constant(), optimizer=SGD(lr=0.1))
    plain = on_workers(replace(base, validate_every_steps=None), world)
    seen = replace(plain, validate_every_steps=7, checkpoint=Checkpoint(every_minutes=1e-9))
    first, second = new_run(tmp_path / "plain", plain), new_run(tmp_path / "seen", seen)
    ranks.run(world, train_rank, plain, first)
    ranks.run(world, train_rank, seen, second)
    assert [row for row in rows(second) if row["step"] not in VALIDATED or row["kind"] != "validation"] == [
        row for row in rows(first) if row["kind"] != "validation"
    ]
    assert [row["step"] for row in rows(second) if row["kind"] != "step"] == VALIDATED
    assert weights(first) == weights(second)


def test_deterministic_validates_alike_on_1_2_and_4_ranks(ranks: Ranks, tmp_path: Path) -> None:
    found = []
    for world in (1, 2, 4):
        e = on_workers(replace(RISING, parallel=Deterministic(), steps=30), world)
        ranks.run(world, train_rank, e, run := new_run(tmp_path / str(world), e))
        found.append((rows(run), weights(run)))
    assert found[0] == found[1] == found[2] and len(found[0][0]) == 30 + 6


# Kills and resumes


@pytest.mark.parametrize("world", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_run_killed_20_times_ends_with_equal_bits(ranks: Ranks, tmp_path: Path, world: int) -> None:
    e, draw = on_workers(RISING, world), random.Random(world)
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(world, train_rank, e, whole)
    for _ in range(20):
        newest = layout.newest(cut / "checkpoints")
        left = 60 - (layout.step_of(newest.name) or 0 if newest else 0)
        ranks.run(world, cut_after_rank, e, cut, draw.randint(1, min(8, left)))
    assert ranks.run(world, train_rank, e, cut) == ["completed"] * world
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)
    assert [row["step"] for row in rows(cut) if row["kind"] != "step"] == VALIDATED
    best = max((row for row in rows(whole) if row["kind"] != "step"), key=lambda row: row["val_accuracy"])
    assert best["kind"] == "validation" and best["step"] < 60, "the case shows nothing otherwise"
    for run in (whole, cut):
        name = f"step_{best['step']:08d}"
        assert Run(run).checkpoint("best").name == name == pointer(run, "best.json")["checkpoint"]
        summary = Run(run).summary
        assert (summary["best_step"], summary["best_epoch"]) == (best["step"], best["epoch"])
        assert summary["val_accuracy"] == best["val_accuracy"]
    kept = sorted(path.name for path in (cut / "checkpoints").iterdir())
    assert kept == sorted(path.name for path in (whole / "checkpoints").iterdir()) and len(kept) == 3


def stopped_rank(rank: int, world: int, e: Experiment, run: Path, step: int) -> str:
    """Asks for a stop after a step, as a signal does."""

    @dataclass(frozen=True)
    class Stop(Hook):
        def after_step(self, trainer: Trainer) -> None:
            if trainer.progress.step == step and rank == 0:
                (run / "stop").touch()
            trainer.losses._every = 1  # look after each step

    status = train_rank(rank, world, e, run, hooks=[Stop()])
    (run / "stop").unlink(missing_ok=True)
    return status


def test_a_stop_at_any_step_leaves_out_no_validation(ranks: Ranks, tmp_path: Path) -> None:
    e = on_workers(replace(RISING, checkpoint=Checkpoint()), 2)
    ranks.run(2, train_rank, e, whole := new_run(tmp_path / "whole", e))
    for step in (9, 14, 23, 59):
        cut = new_run(tmp_path / f"cut-{step}", e)
        assert ranks.run(2, stopped_rank, e, cut, step) == ["interrupted"] * 2
        assert pointer(cut, "last.json")["step"] == step
        ranks.run(2, train_rank, e, cut)
        assert rows(cut) == rows(whole) and weights(cut) == weights(whole), step


def test_a_longer_run_goes_on_with_equal_bits(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(RISING, schedule=Constant(), optimizer=SGD(lr=0.1, momentum=0.9), validate_every_steps=None)
    whole, longer = new_run(tmp_path / "whole", e), new_run(tmp_path / "longer", e)
    ranks.run(1, train_rank, e, whole)
    ranks.run(1, train_rank, replace(e, steps=30), longer)
    assert Run(longer).summary["steps"] == 30 and Run(longer).checkpoint("last").name == "step_00000030"
    ranks.run(1, train_rank, e, longer)
    extra = [row for row in rows(longer) if row not in rows(whole)]
    assert [(row["kind"], row["step"], row["epoch"]) for row in extra] == [("validation", 30, 2)]
    assert [row for row in rows(longer) if row not in extra] == rows(whole) and weights(longer) == weights(whole)


def test_a_run_that_is_to_end_where_it_stands_is_validated_there(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(RISING, checkpoint=Checkpoint())
    run = new_run(tmp_path / "run", e)
    assert ranks.run(1, stopped_rank, e, run, 32) == ["interrupted"]
    assert ranks.run(1, train_rank, replace(e, steps=20), run) == ["completed"]
    assert len(of_kind(run, "step")) == 32 and rows(run)[-1]["kind"] == "validation" and rows(run)[-1]["step"] == 32
    assert pointer(run, "last.json")["step"] == 32 and Run(run).summary["steps"] == 32


def test_steps_take_the_place_of_epochs_either_way(ranks: Ranks, tmp_path: Path) -> None:
    whole, in_steps = replace(BASE, epochs=2), replace(BASE, epochs=7, steps=46)
    first, second = new_run(tmp_path / "epochs", whole), new_run(tmp_path / "steps", in_steps)
    ranks.run(1, train_rank, whole, first)
    ranks.run(1, train_rank, in_steps, second)
    assert rows(first) == rows(second) and weights(first) == weights(second)


# Ends by time, checkpoints by time


def timed_rank(rank: int, world: int, e: Experiment, run: Path) -> str:
    """Fails where another rank than the first one looks at its clock."""
    asks = Timing.asks

    def asks_on_rank_0(due: Timing, *arguments: Any) -> Any:
        assert rank == 0
        return asks(due, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Timing, "asks", asks_on_rank_0)
        return train_rank(rank, world, e, run)


@pytest.mark.parametrize("world", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_run_out_of_time_ends_whole_and_goes_on_with_equal_bits(ranks: Ranks, tmp_path: Path, world: int) -> None:
    base = on_workers(replace(BASE, parallel=DDP(reduction="torch")), world)
    whole, late = new_run(tmp_path / "whole", base), new_run(tmp_path / "late", base)
    ranks.run(world, train_rank, base, whole)
    short = replace(base, max_hours=1e-9)
    assert ranks.run(world, timed_rank, short, late) == ["completed"] * world
    summary = Run(late).summary
    assert summary["out_of_time"] is True and "stopped_early" not in summary
    step = summary["steps"]
    assert 1 <= step < 46 and pointer(late, "last.json")["step"] == step
    assert [row["step"] for row in of_kind(late, "validation")] == [step] and summary["best_step"] == step
    ranks.run(world, timed_rank, short, late)  # as workers that are started again after the end
    assert Run(late).summary["steps"] == step and len(of_kind(late, "validation")) == 1
    ranks.run(world, timed_rank, replace(base, max_hours=1.0), late)
    assert "out_of_time" not in Run(late).summary
    assert [row for row in rows(late) if row["kind"] != "validation"] == rows(whole) and weights(late) == weights(whole)


@pytest.mark.parametrize("world", [1, 2])
def test_checkpoints_by_time_bound_what_a_kill_costs(ranks: Ranks, tmp_path: Path, world: int) -> None:
    e = on_workers(replace(BASE, checkpoint=Checkpoint(every_minutes=1e-9), parallel=DDP(reduction="torch")), world)
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(world, timed_rank, e, whole)
    ranks.run(world, cut_rank, e, cut, 15)
    newest = layout.newest(cut / "checkpoints")
    assert newest is not None and 0 < (layout.step_of(newest.name) or 0) < 15
    ranks.run(world, train_rank, e, cut)
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)


# Patience, hooks, old checkpoints


def test_patience_counts_validations_inside_epochs(ranks: Ranks, tmp_path: Path) -> None:
    still = replace(RISING, model=CNN(channels=(8,)), schedule=Constant(), optimizer=SGD(lr=1e-12), patience=3)
    run = new_run(tmp_path / "run", still)
    ranks.run(1, train_rank, still, run)
    summary = Run(run).summary
    assert (summary["steps"], summary["best_step"], summary["stalled"]) == (23, 7, 3)
    assert summary["stopped_early"] is True


@dataclass(frozen=True)
class Notes(Hook):
    """Adds a column to each validation, and counts them."""

    def after_validation(self, trainer: Trainer, row: Mapping[str, Any]) -> Mapping[str, Any]:
        self.state["inside"] = self.state.get("inside", 0) + 1
        return {"inside": self.state["inside"]}

    def after_epoch(self, trainer: Trainer, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"inside": 0}


def test_hooks_see_each_validation_once_and_add_columns(ranks: Ranks, tmp_path: Path) -> None:
    e = on_workers(replace(RISING, hooks=(Notes(),)), 2)
    run = new_run(tmp_path / "run", e)
    for at in (9, 17, 12):
        ranks.run(2, cut_after_rank, e, run, at)
    ranks.run(2, train_rank, e, run)
    assert [row["inside"] for row in of_kind(run, "validation")] == list(range(1, 10))
    best = pointer(run, "best.json")
    (row,) = [row for row in of_kind(run, "validation") if row["step"] == best["step"]]
    assert best["inside"] == row["inside"] > 0
    assert Run(run).metrics("validation")["step"].to_pylist() == [step for step in VALIDATED if step not in (23, 46)]


NEW = ("validated", "stalled", "epoch_validating")


def old(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name not in NEW}


def test_progress_of_an_older_version_is_completed() -> None:
    best = {"epoch": 1, "step": 23}
    inside = Progress.from_state(old(vars(Progress(step=50, epoch=2, epoch_seconds=0.1, best=best))))
    ended = Progress.from_state(old(vars(Progress(step=46, epoch=2, best=best))))
    assert (inside.validated, inside.stalled, ended.validated, ended.stalled) == (0, 1, 46, 1)
    assert (Progress.from_state({}).validated, Progress.from_state({}).stalled) == (0, 0)
    for bad in ({"validated": 2, "step": 1}, {"validated": -1}, {"stalled": -1, "validated": 0}):
        with pytest.raises(ValueError, match="progress"):
            Progress.from_state(bad)


def old_rank(rank: int, world: int, e: Experiment, run: Path, at: int) -> None:
    """Writes checkpoints without the fields of this version, and is cut off."""
    from raytrain.training import resume

    state_of = resume.state_of

    def older(*arguments: Any) -> dict[str, Any]:
        found = state_of(*arguments)
        return found | {"progress": old(found["progress"])}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resume, "state_of", older)
        cut_after_rank(rank, world, e, run, at)


@pytest.mark.parametrize("at", [13, 27])
def test_checkpoints_of_an_older_version_resume_with_equal_bits(ranks: Ranks, tmp_path: Path, at: int) -> None:
    whole, cut = new_run(tmp_path / "whole", BASE), new_run(tmp_path / "cut", BASE)
    ranks.run(1, train_rank, BASE, whole)
    ranks.run(1, old_rank, BASE, cut, at)
    newest = layout.newest(cut / "checkpoints")
    assert newest is not None and not {*NEW} & layout.load_state(newest)["progress"].keys()
    ranks.run(1, train_rank, BASE, cut)
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)


def test_the_json_of_an_older_experiment_loads() -> None:
    plain = config.to_dict(BASE)
    new = {name: plain.pop(name) for name in ("steps", "validate_every_steps", "max_hours")}
    assert set(new.values()) == {None} and plain["checkpoint"].pop("every_minutes") is None
    assert config.from_dict(Experiment, plain, "a file") == BASE
