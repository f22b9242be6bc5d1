"""The command folds: a sweep over the folds of an experiment, and a line for each mistake."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from helpers.commands import DIGITS, fails, no_runs, succeeds, without_ray

from raytrain import Folds, Grid
from raytrain.cli.flags import sweep as flags

__all__ = ["no_runs", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]


def test_the_sweep_is_over_all_folds_with_the_other_flags() -> None:
    given = flags.folds([DIGITS, "--folds", "4", "--epochs", "3", "--data.folds.seed", "9", "--out", "x"])
    assert given is not None
    path, sweep, options, source = given
    assert (str(path), options.out, str(source)) == (DIGITS, "x", DIGITS)
    assert sweep.axes == (Grid("data.folds.fold", (0, 1, 2, 3)),) and sweep.count == sweep.keep == 4
    assert sweep.experiment.epochs == 3 and sweep.experiment.data.folds == Folds(4, seed=9)
    assert [sweep.trial({"data.folds.fold": 2}).data.folds.fold, sweep.objective] == [2, "val_accuracy"]
    default = flags.folds([DIGITS, "--task.monitor", "val_loss"])
    assert default is not None and default[1].count == 5 and default[1].objectives[0].mode == "min"


def test_a_dry_run_shows_the_split(capsys: Capture, no_runs: Path) -> None:
    said = succeeds(capsys, "folds", DIGITS, "--folds", "3", "--dry_run", "--out", no_runs)
    assert "3 trials over data.folds.fold; looking for the highest val_accuracy" in said
    assert "958 train, 480 val" in said and "fold 0 of 0 to 2 validates; the source's own val split is left out" in said
    assert "Mean" not in said and succeeds(capsys, "folds", "--help").startswith("usage: raytrain folds EXPERIMENT")


def test_mistakes_are_one_line(capsys: Capture, no_runs: Path) -> None:
    for arguments, said in (
        (("--folds", 1), "folds = 1 is out of range"),
        (("--folds", 500), "class '8' has 139 samples, fewer than the 500 folds"),
        (("--folds", 5000, "--data.folds.stratify", "False"), "5000 folds need at least as many samples, got 1438"),
        (("--data.folds.fold", 1), "--data.folds.fold is what the command varies"),
        (("--data.folds.count", 4), "--data.folds.count would be the number of folds; write it as --folds N"),
        (
            ("--data.folds.group", "patient"),
            "the data has no column 'patient', in data.folds.group; name it in `columns` of a Manifest, "
            'or let index() return Index(..., columns={"patient": array})',
        ),
        (("--fold", 5), "unknown flag --fold; did you mean"),
        (("--scaling.workers", "1:2"), "the number of workers of a trial is fixed"),
    ):
        assert said in fails(capsys, "folds", DIGITS, *arguments, "--out", no_runs)
    assert "must come first" in fails(capsys, "folds") and "no such experiment" in fails(capsys, "folds", "nowhere.py")


def test_train_points_to_the_command(capsys: Capture) -> None:
    for flag in (("--folds", 3), ("--folds=3",)):
        assert f"unknown flag --folds; did you mean `raytrain folds {DIGITS} --folds 3`?" in fails(
            capsys, "train", DIGITS, *flag
        )


def test_samplers_have_flags_and_mistakes_are_one_line(capsys: Capture, no_runs: Path, tmp_path: Path) -> None:
    file = tmp_path / "exp.py"
    file.write_text(
        textwrap.dedent("""
            from raytrain import MLP, Digits, Experiment, Weighted
            experiment = Experiment(MLP(), Digits(), sampler=Weighted(classes=(("1", 5.0), ("8", 0.0))))
        """)
    )
    train = ("train", file, "--dry_run", "--out", no_runs, "--scaling.workers", 0)
    said = succeeds(capsys, *train, "--sampler.count", 200)
    assert "Weighted: 200 samples per epoch" in said and "1 x 4 steps; about 200 samples per rank" in said
    assert "1,299 samples per epoch" in succeeds(capsys, *train), "139 of 1,438 have weight 0"
    given = succeeds(capsys, *train, "--sampler.classes", "0", "2.5", "9", "1", "--sampler.fraction", "0.5")
    assert "719 samples per epoch" in given
    for arguments, message in (
        (
            ("--sampler.fraction", 1.5),
            "fraction = 1.5 is out of range, in Weighted; give a value above 0 and at most 1",
        ),
        (("--sampler.classes", "seven", 1), "there is no class 'seven', in Weighted; the classes are 0, 1, 2"),
        (("--sampler.classes", "1", -1), "a weight must be a finite number of at least 0, got -1"),
        (("--sampler.no_replacement", "--sampler.count", 1400), "count = 1400 is out of range, in Weighted; .* 1299"),
    ):
        line = fails(capsys, *train, *arguments)
        assert all(part in line for part in message.split(".*")), line
