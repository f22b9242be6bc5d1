"""The learning-rate range test: the curve's arithmetic, the command from end to end, and its mistakes."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.commands import DIGITS, REPOSITORY, copied, fails, finished, succeeds, without_ray
from torch import nn

from raytrain import CNN, FSDP, SGD, BadSample, Digits, Experiment, Index, Run, Scaling, UserError
from raytrain.loggers import Logger
from raytrain.optim.schedules import Rising
from raytrain.tools.lr_range import Curve, Smoothed, diverged, find

__all__ = ["copied", "finished", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]


def curve(losses: np.ndarray, low: float = 1e-7, high: float = 10.0) -> Curve:
    smoothed = Smoothed()
    return Curve(np.geomspace(low, high, len(losses)), losses, np.array([smoothed.add(float(x)) for x in losses]))


class Seen(Logger):
    """Keeps the rows."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.steps += map(dict, rows)


def noisy(count: int) -> np.ndarray:
    return 0.01 * np.random.default_rng(0).standard_normal(count)


def test_learning_rate_rises_by_one_factor() -> None:
    rising = Rising(50, 1e-5, 2.0)
    found = [rising.factor(step, 7, 1) for step in range(50)]
    np.testing.assert_allclose(found, np.geomspace(1e-5, 2.0, 50), rtol=1e-12)


def test_smoothing_is_an_exponential_mean() -> None:
    losses, smoothed = np.random.default_rng(1).random(40), Smoothed()
    for number in range(1, 41):
        expected = np.average(losses[:number], weights=0.9 ** np.arange(number)[::-1])
        assert smoothed.add(float(losses[number - 1])) == pytest.approx(expected, rel=1e-12)


def test_the_suggestion_is_where_the_smoothed_loss_falls_fastest() -> None:
    step = np.arange(400)
    found = curve(2.3 - 2 / (1 + np.exp((250 - step) / 20)) + 0.1 * noisy(400))
    assert found.lowest is not None and found.lowest > 380
    exact = found.lr[250]
    assert found.steepest is not None and exact < found.steepest < found.lr[275], "smoothing comes ten steps late"
    assert found.tenth == found.lr[found.lowest] / 10


def test_recovery_from_a_divergence_is_not_chosen() -> None:
    gentle, spike, recovery = np.linspace(2.3, 1.3, 30), np.full(5, 9.0), np.linspace(4.0, 0.5, 15)
    found = curve(np.concatenate([2.3 + noisy(30), gentle, spike, recovery]))
    assert found.lowest == 59
    assert found.steepest is not None and found.lr[30] < found.steepest <= found.lr[59]


@pytest.mark.parametrize(
    "losses",
    [
        2.3 + noisy(100),
        np.full(100, 2.3),
        2.3 + noisy(50) + np.linspace(0, 5, 50),
        np.array([2.3]),
        np.array([math.nan]),
        np.array([2.3, 2.3, 2.3, math.inf]),
        np.array([2.3, 900.0, math.nan]),
    ],
)
def test_a_loss_that_never_falls_suggests_nothing(losses: np.ndarray) -> None:
    found = curve(losses)
    assert found.lowest is None and found.steepest is None and found.tenth is None


@pytest.mark.parametrize(
    ("smoothed", "ends"),
    [
        ([2.0] * 20 + [7.9], False),
        ([2.0] * 20 + [8.1], True),
        ([2.0, 9.0], False),
        ([math.nan], True),
        ([2.0, math.inf], True),
        ([-2.0] * 20 + [1.0], False),
        ([-2.0] * 20 + [4.1], True),
    ],
)
def test_the_test_ends_at_four_times_the_best_loss(smoothed: list[float], ends: bool) -> None:
    assert diverged(smoothed, 100) == ends


def test_one_worker_trains_as_all_and_may_diverge(tmp_path: Path) -> None:
    before = set(Path(tempfile.gettempdir()).glob("raytrain-lr-*"))
    one = Experiment(model=CNN(channels=(8,)), data=Digits(), optimizer=SGD(lr=0.05, momentum=0.9))
    many = Experiment(
        model=one.model, data=one.data, optimizer=SGD(lr=9, momentum=0.9), parallel=FSDP(), scaling=Scaling(workers=4)
    )
    seen = Seen()
    found = find(one, Rising(40, 1e-4, 1e4), seen)
    assert 10 < len(found.lr) < 40, "it ends when the loss has diverged"
    assert [row["step"] for row in seen.steps] == list(range(1, len(found.lr) + 1))
    assert [row["loss"] for row in seen.steps] == found.loss.tolist() and len(found.smoothed) == len(found.lr)
    np.testing.assert_allclose(found.lr, np.geomspace(1e-4, 1e4, 40)[: len(found.lr)], rtol=1e-9)
    assert found.loss[0] == pytest.approx(math.log(10), abs=0.1)
    again = find(many, Rising(40, 1e-4, 1e4), Logger())
    np.testing.assert_allclose(again.loss[:20], found.loss[:20], rtol=1e-3)
    assert set(Path(tempfile.gettempdir()).glob("raytrain-lr-*")) == before


def test_the_command_suggests_plots_and_leaves_a_run_as_it_is(finished: Run, capsys: Capture, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.path.rglob("*")}
    out = tmp_path / "found.png"
    said = succeeds(
        capsys, "lr", finished.path, "--steps", "60", "--low=1e-5", "--out", out, "--seed", "3", "--optimizer.lr", "7"
    )
    assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_size > 10_000
    rows = list(csv.DictReader(out.with_suffix(".csv").read_text().splitlines()))
    assert [int(row["step"]) for row in rows] == list(range(1, len(rows) + 1)) and len(rows) > 20
    found = Curve(*(np.array([float(row[name]) for row in rows]) for name in ("lr", "loss", "smoothed")))
    assert found.steepest is not None and 0.003 < found.steepest < 3
    train = f"raytrain train {finished.path}/experiment.json"
    assert said.endswith(f"next:  {train} --seed 3 --optimizer.lr {found.steepest:.2g}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.csv", "found.png"]
    assert before == {path: path.stat().st_mtime_ns for path in finished.path.rglob("*")}


def test_json_has_the_suggestion_and_what_it_rests_on(finished: Run, capsys: Capture, tmp_path: Path) -> None:
    out, flags = tmp_path / "found.png", ("--steps", "60", "--low", "1e-5", "--lr_scaling", "linear")
    said = succeeds(capsys, "lr", finished.path, *flags, "--lr_batch_size=16", "--out", out, "--json")
    found = json.loads(said)
    rows = list(csv.DictReader(out.with_suffix(".csv").read_text().splitlines()))
    curve = Curve(*(np.array([float(row[name]) for row in rows]) for name in ("lr", "loss", "smoothed")))
    lowest = curve.lowest
    assert lowest is not None and curve.steepest is not None and found["lr_scale"] > 1
    assert (found["steepest_descent"], found["tenth_of_lowest"]) == (curve.steepest, curve.tenth)
    assert found["suggested_lr"] == found["steepest_descent"] / found["lr_scale"]
    assert (found["lowest_loss"], found["lowest_loss_lr"]) == (curve.smoothed[lowest], curve.lr[lowest])
    assert (found["first_lr"], found["last_lr"], found["steps"]) == (curve.lr[0], curve.lr[-1], len(rows))
    assert (found["plot"], found["curve"]) == (str(out), str(tmp_path / "found.csv"))
    train = f"raytrain train {finished.path}/experiment.json --lr_scaling linear --lr_batch_size=16 --optimizer.lr"
    assert found["next"] == f"{train} {found['suggested_lr']:.2g}"


def test_json_of_a_range_in_which_nothing_is_learnt_suggests_null(capsys: Capture) -> None:
    found = json.loads(succeeds(capsys, "lr", DIGITS, "--low", "1e-12", "--high", "1e-10", "--steps", "12", "--json"))
    suggestion = ("suggested_lr", "steepest_descent", "tenth_of_lowest", "lowest_loss", "lowest_loss_lr", "next")
    assert {found[name] for name in (*suggestion, "plot", "curve")} == {None} and found["steps"] == 12


def test_plot_is_kept_in_the_run(copied: Run, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = {path.name for path in copied.path.iterdir()}
    said = succeeds(capsys, "lr", copied.path, "--steps", "20")
    assert f"the plot is in {copied.path}/lr.png, its figures in {copied.path}/lr.csv" in said
    assert {path.name for path in copied.path.iterdir()} - before == {"lr.png", "lr.csv"}
    for experiment in (DIGITS, copied.path / "experiment.json"):
        said = succeeds(capsys, "lr", experiment, "--steps", "20")
        assert "--out lr.png keeps a plot" in said
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("suffix", [".svg", ".pdf"])
def test_a_range_in_which_nothing_is_learnt_is_plotted_and_said(capsys: Capture, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"flat{suffix}"
    said = succeeds(capsys, "lr", DIGITS, "--low", "1e-12", "--high", "1e-10", "--steps", "12", "--out", out)
    assert "the loss never fell, so no learning rate is suggested" in said and "--optimizer.lr" not in said
    assert out.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--low", "1", "--high", "1"], "high = 1.0 is out of range, in Rising; give a value above low, which is 1.0"),
        (["--low", "20"], "high = 10.0 is out of range"),
        (["--low", "0"], "low = 0.0 is out of range, in Rising; give a value above 0"),
        (["--low", "nan"], "low = nan is out of range"),
        (["--high", "inf"], "high = inf is out of range"),
        (["--steps", "9"], "steps = 9 is out of range, in Rising; give a value of at least 10"),
        (["--steps", "many"], "--steps"),
        (["--stepz", "20"], "unknown flag --stepz; did you mean --steps?"),
        (["--oout", "x.png"], "unknown flag --oout; did you mean --out?"),
        (["stray"], "unexpected argument 'stray'"),
        (["--out", "lr.xlsx"], "unknown file type, lr.xlsx; end its name in .png, .svg, .pdf"),
        (["--out", "lr"], "unknown file type, lr;"),
        (["--out", "missing/lr.png"], "the file cannot be written: there is no folder missing, missing/lr.png"),
        (["--out", "/proc/lr.png", "--steps", "20"], "the file cannot be written: "),
        (["--data.crop", "9"], "crop = 9 is out of range"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, "lr", DIGITS, *arguments)
    assert not list(tmp_path.iterdir())


def test_no_experiment_and_no_run(capsys: Capture, tmp_path: Path) -> None:
    assert "EXPERIMENT must come first; see `raytrain lr --help`" in fails(capsys, "lr", "--steps", "50")
    assert "no such experiment file, missing.py" in fails(capsys, "lr", "missing.py")
    assert "this is a folder, and not an experiment file" in fails(capsys, "lr", tmp_path)
    with pytest.raises(UserError, match="above low"):
        Rising(low=2, high=1)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: signal.Signals, status: int) -> None:
    command = [sys.executable, "-m", "raytrain.cli", "lr", DIGITS, "--steps", "1000000", "--out", tmp_path / "lr.png"]
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("raytrain-lr-*/metrics.jsonl")):
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(number)
        out, error = process.communicate(timeout=60)
    assert process.returncode == status and out == "" and "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_a_batch_counts_the_samples_that_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them; the loss of the first steps is that of a guess all the same."""

    def read(self: Digits, index: Index, samples: np.ndarray) -> np.ndarray:
        bad = samples[samples % 2 == 1] if some else samples
        if len(bad):
            raise BadSample(f"{bad[0]}.png", "broken")
        return whole(self, index, samples)

    some, whole = True, Digits.read
    monkeypatch.setattr(Digits, "read", read)
    value = Experiment(model=CNN(channels=(8,)), data=Digits(on_bad_sample="skip"))
    found = find(value, Rising(10, 1e-7, 1e-6), Logger())
    np.testing.assert_allclose(found.loss, math.log(10), atol=0.3)
    some = False
    with pytest.raises(UserError, match="no sample can be read"):
        find(value, Rising(10, 1e-7, 1e-6), Logger())


class Zeros(CNN):
    """Brings weights of its own."""

    def load(self, module: nn.Module) -> None:
        for parameter in module.parameters():
            nn.init.zeros_(parameter)


def test_it_begins_with_the_weights_that_training_begins_with() -> None:
    found = find(Experiment(model=Zeros(channels=(8,)), data=Digits()), Rising(10, 1e-12, 1e-11), Logger())
    np.testing.assert_allclose(found.loss, math.log(10), rtol=1e-6)


@pytest.mark.slow
def test_suggestion_undoes_lr_scaling(capsys: Capture, tmp_path: Path) -> None:
    """The test itself, whose steps have the same batch, is the same."""
    flags, out = ("--steps", "30", "--batch_size", "128"), tmp_path / "lr.png"
    plain = succeeds(capsys, "lr", DIGITS, *flags, "--out", out)
    figures = out.with_suffix(".csv").read_text()
    scaled = succeeds(capsys, "lr", DIGITS, *flags, "--out", out, "--lr_scaling", "linear", "--lr_batch_size=16")
    assert out.with_suffix(".csv").read_text() == figures
    rows = list(csv.DictReader(figures.splitlines()))
    found = Curve(*(np.array([float(row[name]) for row in rows]) for name in ("lr", "loss", "smoothed")))
    assert found.steepest is not None
    assert plain.endswith(f" --optimizer.lr {found.steepest:.2g}\n") and "lr_scaling" not in plain
    assert scaled.endswith(f"--lr_scaling linear --lr_batch_size=16 --optimizer.lr {found.steepest / 8:.2g}\n")
    assert "before lr_scaling by 8" in scaled


def test_steps_of_the_test_are_not_those_of_the_run(capsys: Capture, tmp_path: Path) -> None:
    """The file's run would be over before the test, and validates more often than that has steps."""
    file = tmp_path / "exp.py"
    file.write_text(
        "from raytrain import *\n"
        "experiment = Experiment(MLP(hidden=(8,)), Digits(), steps=15, validate_every_steps=14, max_hours=1e-9)\n"
    )
    out = tmp_path / "lr.png"
    said = succeeds(capsys, "lr", file, "--steps", "20", "--high", "1e-3", "--out", out)
    assert len(out.with_suffix(".csv").read_text().splitlines()) == 21
    assert "from 1e-07 to 0.001 in 20 steps" in said
