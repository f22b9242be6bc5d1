"""Runs and sweeps of raytrain 0.1, before its modules moved, stay readable, resumable and repeatable.

tests/old_runs has runs that were cut: `run`, `exact` (with the field `deterministic`, which has become a strategy), and
`own`, whose experiment file has a model, a source and a task of its own and passes `deterministic=True`. The .jsonl
files are the metrics of the same runs without a cut. `sweep` is a completed sweep.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.ranks import losses, train_rank

from raytrain import (
    DDP,
    FSDP,
    MLP,
    Deterministic,
    Digits,
    Experiment,
    Grid,
    Parallel,
    Run,
    Sweep,
    UserError,
    cli,
    config,
)
from raytrain.run.experiment_file import load, load_with_code, save
from raytrain.sweep.sweep_file import load as load_sweep
from raytrain.sweep.sweep_run import SweepRun

OLD = Path(__file__).parents[1] / "old_runs"


@pytest.fixture(autouse=True)
def no_user_code() -> Iterator[None]:
    """Forget the experiment file that a test imported."""
    yield
    sys.modules.pop(config.EXPERIMENT_MODULE, None)


@pytest.mark.parametrize(("name", "strategy"), [("run", DDP), ("exact", Deterministic), ("own", Deterministic)])
def test_old_run_resumes_with_the_old_losses(tmp_path: Path, name: str, strategy: type[Parallel]) -> None:
    run = shutil.copytree(OLD / name, tmp_path / name)
    experiment = Run(run).experiment
    assert type(experiment.parallel) is strategy
    assert train_rank(0, 1, experiment, run) == "completed"
    rows = [json.loads(line) for line in (OLD / f"{name}.jsonl").read_text().splitlines()]
    before = [row["loss"] for row in rows if row["kind"] == "step"]
    np.testing.assert_allclose(losses(run), before, rtol=0, atol=1e-4)  # another CPU differs in last bits


def test_an_old_run_is_evaluated_and_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(OLD / "run", tmp_path / "run")
    assert cli.run(["evaluate", str(run), "--checkpoint", "last"]) == 0
    assert "accuracy" in capsys.readouterr().out
    assert cli.run(["export", str(run), str(tmp_path / "model.pth"), "--checkpoint", "last"]) == 0
    assert (tmp_path / "model.pth").stat().st_size > 0


def test_an_old_run_takes_corrected_code(tmp_path: Path) -> None:
    file = Path(shutil.copy(OLD / "own" / "experiment.py", tmp_path / "corrected.py"))
    value, defined = load_with_code(OLD / "own" / "experiment.json", file)
    assert defined is not None and defined.scaling.threads_per_worker is None  # a run keeps the number
    assert value == dataclasses.replace(defined, scaling=value.scaling) and type(value.parallel) is Deterministic


def test_old_experiment_repeats_the_old_losses(tmp_path: Path) -> None:
    saved = shutil.copytree(OLD / "own", tmp_path / "own")
    value, code = load(saved / "experiment.json")
    assert type(value.parallel) is Deterministic and code == saved / "experiment.py"
    again = tmp_path / "again"
    again.mkdir()
    save(value, again / "experiment.json")
    assert train_rank(0, 1, value, again) == "completed"
    rows = [json.loads(line) for line in (OLD / "own.jsonl").read_text().splitlines()]
    before = [row["loss"] for row in rows if row["kind"] == "step"]
    np.testing.assert_allclose(losses(again), before, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("given", "parallel"),
    [(DDP(), Deterministic()), (DDP(reduction="torch"), Deterministic(reduction="torch"))],
)
def test_deterministic_as_an_argument_is_the_strategy(given: Parallel, parallel: Parallel) -> None:
    exact: dict[str, Any] = {"deterministic": True}
    plain: dict[str, Any] = {"deterministic": False}
    assert Experiment(MLP(), Digits(), parallel=given, **exact).parallel == parallel
    assert Experiment(MLP(), Digits(), parallel=given, **plain).parallel == given


@pytest.mark.parametrize("base", [DDP(reduction="torch"), Deterministic(reduction="torch")])
def test_deterministic_as_an_axis_is_the_strategy(base: Parallel) -> None:
    axes = (Grid("deterministic", (False, True)), Grid("batch_size", (32, 64)))
    sweep = Sweep(Experiment(MLP(), Digits(), parallel=base), axes)
    trials = [sweep.trial({"deterministic": value, "batch_size": 32}) for value in (False, True)]
    assert [trial.parallel for trial in trials] == [DDP(reduction="torch"), Deterministic(reduction="torch")]
    assert [config.get(trial, "deterministic") for trial in trials] == [False, True]  # as tables and reports show it


def test_deterministic_as_an_argument_refuses_other_strategies() -> None:
    parts: dict[str, Any] = {"model": MLP(), "data": Digits(), "parallel": FSDP(), "deterministic": True}
    with pytest.raises(UserError, match=r"deterministic=True does not work with parallel=FSDP"):
        Experiment(**parts)


def test_an_old_experiment_repeats_with_the_same_values(tmp_path: Path) -> None:
    run = shutil.copytree(OLD / "exact", tmp_path / "exact")
    value, _ = load(run / "experiment.json")
    saved = config.to_dict(value)
    assert saved["optimizer"]["class"] == "raytrain:SGD" and saved["parallel"]["class"] == "raytrain:Deterministic"
    old = json.loads((run / "experiment.json").read_text())
    assert {name: old[name] for name in ("epochs", "batch_size", "seed")} == {
        name: saved[name] for name in ("epochs", "batch_size", "seed")
    }


def test_an_old_sweep_is_shown_and_its_experiments_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = shutil.copytree(OLD / "sweep", tmp_path / "sweep")
    assert cli.run(["report", str(sweep)]) == 0
    assert "val_accuracy" in capsys.readouterr().out
    best = SweepRun(sweep).best
    assert best is not None and best.summary["status"] == "completed"
    value, _ = load_sweep(sweep / "sweep.json")
    assert [axis.path for axis in value.axes] == ["optimizer.lr", "batch_size"]
    assert load(sweep / "best.json")[0].batch_size == 128
