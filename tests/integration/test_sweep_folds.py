"""`raytrain folds` on Ray Tune: each fold is the plain run of its split, and a sweep that was cut off goes on."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.ranks import Ranks, losses, new_run, train_rank

import raytrain
from raytrain import MLP, SGD, Balanced, Digits, Experiment, Folds, Grid, Run, Sweep, config
from raytrain.data import packing
from raytrain.data.checks import checked_indices
from raytrain.driver.options import Options
from raytrain.loggers import Logger
from raytrain.report.sweep import write_files
from raytrain.sweep import driver
from raytrain.sweep.sweep_file import load

pytestmark = pytest.mark.usefixtures("cluster")


def packed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of samples that have been read together, as they are."""
    read, pack = list[int](), packing.pack
    monkeypatch.setattr(
        packing, "pack", lambda data, index, *a, **k: (read.append(len(index)), pack(data, index, *a, **k))[1]
    )
    return read


def test_folds_are_plain_runs_of_their_splits_and_resume(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = packed(monkeypatch)
    base = Experiment(
        MLP(hidden=(32,)), Digits(folds=Folds(3)), optimizer=SGD(lr=0.05, momentum=0.9), sampler=Balanced(), epochs=2
    )
    sweep = Sweep(base, (Grid("data.folds.fold", (0, 1, 2)),), "val_accuracy", keep=3, concurrent=1)
    found = driver.sweep(sweep, Options(str(tmp_path), "cv"), Logger(), None, 0.0, write_files)
    assert found is not None
    assert read == [1438], "all folds share one copy of the samples"
    path, values = tmp_path / "cv", []
    for trial in found.trials:
        fold = trial["values"]["data.folds.fold"]
        run = Run(path / "trials" / f"{trial['number']:04d}")
        e = replace(config.replace(run.experiment, "data.folds.fold", fold), scaling=run.experiment.scaling)
        alone = new_run(tmp_path / f"alone-{fold}", e)
        ranks.run(1, train_rank, e, alone, checked_indices(e.data))
        np.testing.assert_array_equal(losses(run.path), losses(alone))
        assert run.summary["val_accuracy"] == Run(alone).summary["val_accuracy"]
        values.append(run.summary["val_accuracy"])
        assert run.checkpoint("best"), "the weights of every fold stay"
    whole = json.loads((path / "folds.json").read_text())
    assert whole["metrics"]["val_accuracy"]["mean"] == pytest.approx(np.mean(values))
    assert whole["metrics"]["val_accuracy"]["std"] == pytest.approx(np.std(values, ddof=1))
    answers = raytrain.evaluate(path)
    counts = [one["count"] for one in answers["folds"].values()]
    assert counts == [480, 479, 479] and answers["accuracy"] == pytest.approx(np.average(values, weights=counts))
    assert len({row["sample"] for row in raytrain.predict(path, split="val")}) == sum(counts) == answers["count"]
    # As after a kill before the last fold began.
    shutil.rmtree(path / "trials" / "0002")
    (path / "folds.json").unlink()
    driver.resume(path, load(path)[0], Options(), Logger(), 0.0, write_files)
    assert json.loads((path / "folds.json").read_text()) == whole


def test_configurations_are_compared_by_all_folds_and_a_sweep_that_was_cut_off_goes_on(
    ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = packed(monkeypatch)
    base = Experiment(MLP(hidden=(16,)), Digits(folds=Folds(2)), optimizer=SGD(lr=0.05), epochs=1)
    sweep = Sweep(base, (Grid("optimizer.lr", (0.001, 0.1)),), by_fold=True, concurrent=1)
    found = driver.sweep(sweep, Options(str(tmp_path), "cv"), Logger(), None, 0.0, write_files)
    assert found is not None and read == [1438], "all folds share one copy of the samples"
    scores = dict[tuple[float, int], float]()
    for trial in found.trials:
        run = Run(found.run_at(trial["number"]))
        e = run.experiment
        assert (e.data.folds.fold, e.seed) == (trial["repeat"], base.seed)
        alone = new_run(tmp_path / f"alone-{trial['number']}", e)
        ranks.run(1, train_rank, e, alone, checked_indices(e.data))
        np.testing.assert_array_equal(losses(run.path), losses(alone))
        scores[trial["values"]["optimizer.lr"], trial["repeat"]] = run.summary["val_accuracy"]
    assert len(scores) == 4
    best, other = found.configurations
    assert (best["values"], other["values"]) == ({"optimizer.lr": 0.1}, {"optimizer.lr": 0.001})
    for one, lr in ((best, 0.1), (other, 0.001)):
        assert one["objectives"][0]["mean"] == pytest.approx((scores[lr, 0] + scores[lr, 1]) / 2)
    before = (tmp_path / "cv" / "best.json").read_bytes()
    shutil.rmtree(tmp_path / "cv" / "trials" / "0003")  # as after a kill before the last trial began
    driver.resume(tmp_path / "cv", load(tmp_path / "cv")[0], Options(), Logger(), 0.0, write_files)
    assert raytrain.SweepRun(tmp_path / "cv").configurations == found.configurations
    assert (tmp_path / "cv" / "best.json").read_bytes() == before
