"""A sweep with repeats on real actors: seeds, means, weights and files are what they should be."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path

import pytest

import raytrain
from raytrain import MLP, SGD, Digits, Experiment, Grid, Sweep
from raytrain.report import sweep_page
from raytrain.run import experiment_file

pytestmark = pytest.mark.usefixtures("cluster")
BASE = Experiment(model=MLP(hidden=(16,)), data=Digits(), optimizer=SGD(momentum=0.9), epochs=1, seed=3)


@pytest.mark.slow
def test_repeats_rank_by_their_mean_and_best_json_is_the_best_repeat(tmp_path: Path) -> None:
    sweep = Sweep(BASE, (Grid("optimizer.lr", (0.001, 0.05)),), repeats=3, concurrent=1)
    found = raytrain.sweep(sweep, out=str(tmp_path), name="sweep", quiet=True)
    answer, trials = found.answer, found.trials
    assert [one["number"] for one in trials] == list(range(6)) and {one["status"] for one in trials} == {"completed"}
    assert [(one["configuration"], one["repeat"]) for one in trials] == [divmod(n, 3) for n in range(6)]
    assert [one["number"] for one in sorted(trials, key=lambda one: one["started"])] == [0, 3, 1, 4, 2, 5]
    best, worse = answer["configurations"]
    assert (best["number"], best["trials"], worse["number"]) == (1, [3, 4, 5], 0)
    [spread] = best["objectives"]
    assert spread["values"] == [one["objective"][0] for one in trials[3:]] and len({*spread["values"]}) > 1
    assert spread["mean"] == pytest.approx(statistics.fmean(spread["values"])) and spread["n"] == 3
    assert spread["low"] < spread["mean"] < spread["high"] and worse["objectives"][0]["told_apart"] is True
    table = found.table()
    assert table["configuration"].to_pylist() == [0, 0, 0, 1, 1, 1] and table["repeat"].to_pylist() == [0, 1, 2] * 2
    assert table["violates"].to_pylist() == [None] * 6 and found.configurations == answer["configurations"]
    seeds = [raytrain.Run(found.path / "trials" / f"{n:04d}").experiment.seed for n in range(6)]
    assert seeds[0] == 3 and seeds[:3] == seeds[3:] and len({*seeds}) == 3

    assert answer["best"] == max(trials, key=lambda one: one["objective"][0])["number"] and answer["best"] >= 3
    kept = [one["number"] for one in trials if any((found.path / "trials").glob(f"{one['number']:04d}/checkpoints/s*"))]
    assert kept == [answer["best"]]
    value = experiment_file.load(found.path / "best.json")[0]
    again = raytrain.train(value, out=str(tmp_path), name="again", quiet=True)
    assert again.summary["val_accuracy"] == trials[answer["best"]]["objective"][0]
    with open(found.path / "trials.csv") as file:
        assert [(row["configuration"], row["repeat"]) for row in csv.DictReader(file)][4] == ("1", "1")
    page = sweep_page.whole(found.path, answer)
    assert "Configurations, the best first" in page and "differs from each of the 1 others" in page

    reopened = raytrain.SweepRun(found.path)
    more = raytrain.sweep(reopened, confidence=1 - 1e-12, quiet=True)
    assert more.answer["trials"] == trials and more.path == found.path, "there was nothing left to do"
    assert more.answer["configurations"][1]["objectives"][0]["told_apart"] is False
    with pytest.raises(raytrain.UserError, match="cannot change repeats"):
        raytrain.sweep(str(found.path), repeats=4, quiet=True)
    with pytest.raises(raytrain.UserError, match="no sweep there"):
        raytrain.sweep(tmp_path / "again", quiet=True)
    assert json.loads((found.path / "best.json").read_text())["seed"] == value.seed
