"""--quiet and --json of the commands that train: what goes to standard output, and what to standard error."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import DIGITS, REPOSITORY, fails, finished, no_runs, without_ray

from raytrain import Run, cli
from raytrain.cli import data
from raytrain.driver import fit
from raytrain.driver.endings import Interrupted, RunFailed
from raytrain.loggers import Logger, RunInfo
from raytrain.sweep import driver
from raytrain.sweep.sweep_run import SweepRun
from raytrain.tools import inference, micro_batch_trials

__all__ = ["finished", "no_runs", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
SWEEP = str(REPOSITORY / "experiments" / "sweep_amp_batch.py")
Ends = Callable[[Path], Any]


def ends_with(*arguments: str) -> int:
    """Runs a command whose standard output is descriptor 1, as in a process of its own; pytest's is not."""
    with open(1, "w", closefd=False) as stdout, contextlib.redirect_stdout(stdout):
        return cli.run(list(arguments))


def trains(monkeypatch: pytest.MonkeyPatch, done: Run, ends: Ends) -> None:
    """In place of training: tells the observer of a run, and prints as a user's code and a library in C do."""

    def train(value: Any, options: Any, observer: Logger, *_: Any) -> Any:
        observer.planned([("model", "a plan")])
        observer.note("a note")
        print("from the experiment", flush=True)
        os.write(1, b"from a library\n")
        observer.finish(RunInfo(done.path, done.where, done.experiment, 23, 1438), done.summary)
        return ends(done.path)

    monkeypatch.setattr(fit, "train", train)
    monkeypatch.setattr(fit, "resume", lambda run, *rest: train(*rest))


def interrupts(path: Path) -> None:
    raise Interrupted(path, 2)


def breaks(path: Path) -> None:
    raise RunFailed("the disk is full", path, None)


@pytest.mark.parametrize(("ends", "status"), [(Run, 0), (interrupts, 130), (breaks, 1)])
@pytest.mark.parametrize("more", [[], ["--quiet"]])
@pytest.mark.parametrize("command", ["train", "resume"])
def test_json_is_the_only_line_on_standard_output(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    finished: Run,
    ends: Ends,
    status: int,
    more: list[str],
    command: str,
) -> None:
    trains(monkeypatch, finished, ends)
    assert ends_with(command, DIGITS if command == "train" else str(finished.path), "--json", *more) == status
    out, err = capfd.readouterr()
    assert out.count("\n") == 1
    assert json.loads(out) == {"run": str(finished.path), "status": "completed", "epochs": 2}
    assert "from the experiment" in err and "from a library" in err
    assert ("a plan" in err and "a note" in err) == (not more)
    assert ("the disk is full" in err) == (status == 1)


def test_quiet_prints_errors_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], finished: Run
) -> None:
    trains(monkeypatch, finished, Run)
    assert ends_with("train", DIGITS, "--quiet") == 0
    assert capfd.readouterr() == ("from the experiment\nfrom a library\n", "")  # the user's own, without workers
    trains(monkeypatch, finished, breaks)
    assert ends_with("train", DIGITS, "--quiet") == 1
    assert capfd.readouterr().err.startswith("error: the run failed: the disk is full; the logs are in")


def test_the_logs_of_a_run_that_was_removed_are_not_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], finished: Run, tmp_path: Path
) -> None:
    trains(monkeypatch, finished, lambda path: breaks(tmp_path / "gone"))
    assert ends_with("train", DIGITS, "--quiet") == 1
    assert capfd.readouterr().err == "error: the run failed: the disk is full\n"


def test_json_of_a_sweep_is_its_answer(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "sweep"
    path.mkdir()
    answer = {"status": "completed", "best": 1, "trials": [{"number": 0}, {"number": 1}]}
    (path / "sweep.json").write_text(json.dumps(answer))

    def sweep(value: Any, options: Any, observer: Logger, *_: Any) -> SweepRun:
        observer.note("a note")
        return SweepRun(path)

    monkeypatch.setattr(driver, "sweep", sweep)
    assert ends_with("sweep", SWEEP, "--json") == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == {"sweep": str(path), **answer} and out.count("\n") == 1 and "a note" in err


def test_json_is_alone_where_the_experiment_file_prints(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], finished: Run, tmp_path: Path
) -> None:
    file = tmp_path / "talks.py"
    file.write_text(Path(DIGITS).read_text() + "\nprint('loaded')\n")
    trains(monkeypatch, finished, Run)
    assert ends_with("train", str(file), "--json") == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["run"] == str(finished.path) and "loaded" in err


@pytest.mark.parametrize(
    ("command", "worker", "name"),
    [
        ("evaluate", inference, "evaluate"),
        pytest.param("batch", micro_batch_trials, "find", marks=pytest.mark.slow),
        ("data", data, "describe"),
    ],
)
def test_json_is_alone_where_code_of_a_run_or_an_experiment_prints(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    finished: Run,
    command: str,
    worker: Any,
    name: str,
) -> None:
    work = getattr(worker, name)

    def prints(*given: Any, **more: Any) -> Any:
        print("from a model", flush=True)
        os.write(1, b"from a library\n")
        return work(*given, **more)

    monkeypatch.setattr(worker, name, prints)
    assert ends_with(command, str(finished.path) if command == "evaluate" else DIGITS, "--json") == 0
    out, err = capfd.readouterr()
    assert isinstance(json.loads(out), dict) and "from a model" in err and "from a library" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", DIGITS, "--quiet", "--verbose"], "--quiet and --verbose exclude each other"),
        (["sweep", SWEEP, "--verbose", "--quiet"], "--quiet and --verbose exclude each other"),
        (["train", DIGITS, "--json", "--dry_run"], "--dry_run has no result to print as JSON"),
        (["submit", DIGITS, "--json", "--address", "http://localhost:1"], "--json is not for a job"),
    ],
)
def test_flags_that_exclude_each_other(
    capsys: pytest.CaptureFixture[str], no_runs: Path, arguments: list[str], message: str
) -> None:
    assert message in fails(capsys, *arguments, "--out", no_runs)
