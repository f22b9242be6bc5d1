"""folds.json and its table: mean and sample standard deviation over the folds, also while some are missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raytrain.loggers import RunInfo
from raytrain.report import folds, runs, sweep_page
from raytrain.report.sweep import Table
from raytrain.report.sweep_plots import write_plots
from raytrain.report.trials import Results

VALUES = {0: (0.90, 0.31), 1: (0.94, 0.22), 2: (0.86, 0.41)}


def answer(path: Path, statuses: tuple[str, ...], axes: tuple[str, ...] = (folds.AXIS,)) -> dict[str, Any]:
    trials = []
    for number, status in enumerate(statuses):
        folder = path / "trials" / f"{number:04d}"
        folder.mkdir(parents=True)
        accuracy, loss = VALUES[number]
        ways = {"val_accuracy": "max", "val_loss": "min"}
        figures = {
            "monitor": "val_accuracy",
            "directions": ways,
            "val_loss": loss,
            "val_accuracy": accuracy,
            "best_epoch": 2,
        }
        (folder / "summary.json").write_text(json.dumps(figures))
        objective = [accuracy] if status == "completed" else [None]
        values = dict.fromkeys(axes, number)
        trials.append({"number": number, "status": status, "values": values, "objective": objective})
    declared = [{"class": "raytrain:Grid", "path": path, "values": [0, 1, 2]} for path in axes]
    goals = [{"name": "val_accuracy", "mode": "max"}]
    return {"status": "completed", "sweep": {"axes": declared}, "objectives": goals, "trials": trials, "best": 1}


def test_mean_and_standard_deviation_are_numpys(tmp_path: Path) -> None:
    folds.write(tmp_path, answer(tmp_path, ("completed",) * 3))
    found = json.loads((tmp_path / "folds.json").read_text())
    assert (found["folds"], found["monitor"], found["missing"]) == (3, "val_accuracy", [])
    assert list(found["metrics"]) == ["val_accuracy", "val_loss"], "the monitored one first"
    assert [one["direction"] for one in found["metrics"].values()] == ["max", "min"]
    for place, name in enumerate(found["metrics"]):
        values = [VALUES[fold][place] for fold in range(3)]
        one = found["metrics"][name]
        assert list(one["folds"].values()) == values
        assert one["mean"] == pytest.approx(np.mean(values)) and one["std"] == pytest.approx(np.std(values, ddof=1))


def test_missing_folds_are_named_and_do_not_count(tmp_path: Path) -> None:
    given = answer(tmp_path, ("completed", "crashed", "interrupted"))
    found = folds.summary(tmp_path, given)
    assert found and found["missing"] == [1, 2] and found["metrics"]["val_accuracy"]["mean"] == 0.9
    assert found["metrics"]["val_accuracy"]["std"] is None
    title, head, *rows = folds.lines(tmp_path, given)
    assert title == "1 of 3 folds, each at its best epoch; no result of fold 1, 2" and head.split()[:3] == [
        *("metric", "mean", "std")
    ]
    assert [row.split()[0] for row in rows] == ["val_accuracy", "val_loss"]


@pytest.mark.parametrize("lacks", ["val_auroc", "val_accuracy"])
def test_a_metric_says_of_how_many_folds_it_is(tmp_path: Path, lacks: str) -> None:
    """Also where the monitored one lacks a value: the fold's other metrics count."""
    given = answer(tmp_path, ("completed",) * 3)
    given["trials"][1]["objective"] = [None if lacks == "val_accuracy" else VALUES[1][0]]
    for number, trial in enumerate(given["trials"]):
        file = tmp_path / "trials" / f"{number:04d}" / "summary.json"
        figures = json.loads(file.read_text()) | {"val_auroc": 0.5 + number / 10}
        file.write_text(json.dumps(figures | ({lacks: None} if number == 1 else {})))
        assert trial["status"] == "completed"
    found = folds.summary(tmp_path, given)
    assert found and found["missing"] == []
    counts = {name: one["count"] for name, one in found["metrics"].items()}
    assert counts == dict.fromkeys(("val_accuracy", "val_loss", "val_auroc"), 3) | {lacks: 2}
    lines = folds.lines(tmp_path, given)
    assert lines[0] == "3 of 3 folds, each at its best epoch" and lines[1].split()[-1] == "folds"
    rows = {line.split()[0]: line for line in lines[2:]}
    assert {name: row.endswith(f"{counts[name]} of 3") for name, row in rows.items()} == dict.fromkeys(counts, True)
    assert "2 of 3" in sweep_page.whole(tmp_path, given)
    commands = folds.following(tmp_path, "runs/f", Results.of(given))
    assert commands[1] == ("raytrain", "evaluate", "runs/f"), "all folds have answers"


def test_no_fold_is_called_the_best(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = answer(tmp_path, ("completed",) * 3)
    (tmp_path / "sweep.json").write_text(json.dumps(given))
    (found,) = runs.find(tmp_path)
    assert (found.best, found.std) == (pytest.approx(0.9), pytest.approx(0.04))
    runs.show([found], str(tmp_path))
    assert "0.9 ± 0.04 accuracy" in capsys.readouterr().out
    Table().finish(RunInfo(tmp_path, "runs/f"), given)
    said = capsys.readouterr().out
    assert "3 folds (3 completed), val_accuracy 0.9000 ± 0.0400 (mean ± standard deviation of 3 folds)" in said
    assert "next:  raytrain train runs/f/trials/0000/experiment.json --data.folds.count 0 --data.folds.fold 0" in said
    assert (
        "raytrain evaluate runs/f\n" in said
        and "next:  raytrain train runs/f/best.json" not in said
        and "trial 1" not in said
    )
    page = sweep_page.whole(tmp_path, given)
    assert "Best trial" not in page and "Parameters" not in page and "(best)" not in page
    assert {file.name for file in write_plots(tmp_path, given)} <= {"learning_curves.png", "accuracy_time.png"}


def test_other_sweeps_have_no_folds(tmp_path: Path) -> None:
    for place, axes in enumerate((("optimizer.lr",), (folds.AXIS, "optimizer.lr"))):
        given = answer(tmp_path / str(place), ("completed",) * 3, axes)
        assert folds.summary(tmp_path / str(place), given) is None and not folds.lines(tmp_path / str(place), given)
        folds.write(tmp_path / str(place), given)
        assert not (tmp_path / str(place) / "folds.json").exists()
