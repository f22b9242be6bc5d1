"""progress: what an epoch's row says, and which epoch is the best one."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import pytest

from raytrain import Classification, Task
from raytrain.training.progress import Progress

TASK = Classification(monitor="val_loss")


def test_a_metric_that_is_not_finite_is_none_and_never_the_best() -> None:
    progress, rows = Progress(), []
    for loss in (math.nan, 0.5, -math.inf, 0.4, math.nan):
        progress.step += 1
        progress.add(2.0, 4)
        rows.append(progress.end_epoch(TASK, {"loss": loss}, 1.0, 5))
    assert [row["val_loss"] for row in rows] == [None, 0.5, None, 0.4, None]
    assert progress.best["epoch"] == 4 and progress.best["checkpoint"] == "step_00000004"


@dataclass(frozen=True)
class Regression(Task):
    directions = {"error": "min", "r2": "max"}  # noqa: RUF012
    monitor: str = "val_error"


@pytest.mark.parametrize(("monitor", "best", "end"), [("val_error", 3, 5), ("val_r2", 2, 4), ("val_loss", 1, 3)])
def test_best_and_patience_follow_the_declared_direction(monitor: str, best: int, end: int) -> None:
    task, progress = Regression(monitor), Progress()
    for error, r2, loss in ((0.9, 0.1, 1.0), (0.5, 0.8, 2.0), (0.2, 0.7, 3.0), (0.3, 0.6, 4.0), (0.4, 0.5, 5.0)):
        if progress.over(9, 2):
            break
        progress.add(2.0, 4)
        progress.end_epoch(task, {"error": error, "r2": r2, "loss": loss}, 1.0, 9)
    assert (progress.best["epoch"], progress.epoch) == (best, end)


def test_first_epoch_is_best_if_no_metric_is_finite() -> None:
    progress = Progress()
    for _ in range(2):
        progress.add(2.0, 4)
        progress.end_epoch(TASK, {"loss": math.nan}, 1.0, 2)
    assert progress.best["epoch"] == 1 and progress.summary()["val_loss"] is None


@pytest.mark.parametrize(
    ("losses", "patience", "end"),
    [
        ([3.0, 2.0, 1.0, 0.5], 1, 4),
        ([1.0, 2.0, 0.5, 0.5], 1, 2),
        ([1.0, 2.0, 0.5, 0.5], 2, 4),
        ([1.0, 1.0, 1.0, 0.5], 2, 3),
        ([math.nan, math.nan, 1.0, 2.0], 2, 4),
        ([1.0, math.nan, math.nan, 2.0], 3, 4),
        ([1.0, 2.0, 2.0, 2.0], None, 4),
    ],
)
def test_run_ends_after_patience_epochs_without_a_better_one(
    losses: list[float], patience: int | None, end: int
) -> None:
    progress = Progress()
    for loss in losses:
        if progress.over(4, patience):
            break
        progress.add(2.0, 4)
        progress.end_epoch(TASK, {"loss": loss}, 1.0, 4)
    assert progress.over(4, patience) and progress.epoch == end


@pytest.mark.parametrize(("epochs", "rate"), [(1, 8.0), (3, 16.0)])
def test_steady_speed_leaves_out_the_first_epoch(epochs: int, rate: float) -> None:
    progress = Progress()
    for epoch in range(epochs):
        progress.add(2.0, 4)
        progress.epoch_seconds += 0.5 if epoch == 0 else 0.25
        row = progress.end_epoch(TASK, {"loss": 1.0}, 1.0, epochs)
        assert row["train_loss"] == 0.5
    assert progress.summary()["samples_per_second"] == rate


def test_progress_is_read_from_its_json_only() -> None:
    kept = Progress(step=3, epoch=1, epoch_loss=0.1, best={"epoch": 1}, tried={"fp32": 1.5, "bf16": None})
    assert Progress.from_state(json.loads(json.dumps(vars(kept)))) == kept
    assert Progress.from_state({"seconds": 3}).seconds == 3  # a whole number of seconds
    for bad in ([], {"step": 1.0}, {"step": True}, {"more": 1}, {"seconds": math.inf}, {"best": None}, {"step": -1}):
        with pytest.raises(ValueError, match="progress"):
            Progress.from_state(bad)


def test_the_history_of_validations_is_kept_and_checked() -> None:
    kept = Progress(step=9, history=[[3, 0.5], [6, None], [9, 1]])
    assert Progress.from_state(json.loads(json.dumps(vars(kept)))) == kept
    assert Progress.from_state({"step": 3}).history == [], "as of an older version"
    found = kept.validations(Classification())
    assert found.values == ((3, 0.5), (6, None), (9, 1)) and found.highest_is_best
    assert found.after(3).values == ((3, None), (6, 1))
    for bad in ([3], [[3]], [[3, "x"]], [["3", 1.0]], [[3, math.nan]], [[3, 1.0, 2.0]], [[True, 1.0]]):
        with pytest.raises(ValueError, match="history"):
            Progress.from_state({"history": bad})
