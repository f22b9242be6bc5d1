"""What a run says of an error in the user's own code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.projects import write

from raytrain import Experiment, Run, UserError, cli, errors
from raytrain.driver.blame import failed_here
from raytrain.driver.endings import RunFailed
from raytrain.driver.failures import run_failure as _failure
from raytrain.driver.worker import _recorded
from raytrain.run import copies, experiment_file
from raytrain.sweep.attempt import _one_line
from raytrain.user_code import places, sources

Capture = pytest.CaptureFixture[str]
PROJECT = {
    "exp.py": """
        from dataclasses import dataclass
        from raytrain import MLP, Classification, Digits, Experiment
        import helper

        @dataclass(frozen=True)
        class Mine(Classification):
            def loss(self, model, batch):
                return helper.ratio(model, batch)

        experiment = Experiment(MLP(), Digits(), task=Mine())
    """,
    "helper.py": """
        def ratio(model, batch):
            if isinstance(batch, Exception):
                raise batch
            return model / batch
    """,
}
RATIO = 5
"""The line of helper.py that divides."""


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Nothing of a test's modules is left in this process."""
    yield
    sources.activate(None)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's directory, as far as its experiment goes."""
    value, source = experiment_file.load(write(tmp_path / "project", PROJECT) / "exp.py")
    (tmp_path / "run" / "logs").mkdir(parents=True)
    copies.keep(value, source, tmp_path / "run")
    experiment_file.save(value, tmp_path / "run" / "experiment.json")
    return tmp_path / "run"


def recorded(run: Path, fail: Callable[[Experiment], Any]) -> RunFailed:
    """The failure of a run whose rank raises an error."""
    job: Any = SimpleNamespace(own_output=False, run=run)
    with pytest.raises(BaseException), _recorded(job, 0):  # noqa: B017
        fail(Run(run).experiment)
    return _failure(RuntimeError("workers failed"), run)


def divide(value: Experiment) -> Any:
    return value.task.loss(1, 0)  # type: ignore[arg-type]


def test_an_error_in_a_helper_module_names_its_line(run: Path) -> None:
    found, line = recorded(run, divide), f"{run.parent}/project/helper.py:{RATIO}"
    assert str(found) == f"rank 0: ZeroDivisionError: division by zero ({line})" and found.edit == line


def test_error_in_an_outdated_copy_names_the_file_to_correct(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_KNOWN", {})  # as in a process that has not read the project's files
    helper = run.parent / "project" / "helper.py"
    helper.write_text("# another first line\n" + helper.read_text())
    found = recorded(run, divide)
    assert str(found).endswith(f" ({run}/modules/helper.py:{RATIO})") and found.edit == str(helper)


def test_an_error_of_the_driver_names_the_users_line(run: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        divide(Run(run).experiment)
    found, line = failed_here(caught.value, run), f"{run.parent}/project/helper.py:{RATIO}"
    assert str(found) == f"ZeroDivisionError: division by zero ({line})" and found.edit == line


def test_an_error_that_tells_the_user_is_shown_without_its_class(tmp_path: Path) -> None:
    assert str(failed_here(UserError("the disk is full", "runs/first", "free some"), tmp_path)) == (
        "the disk is full, runs/first; free some"
    )


def raised(error: BaseException) -> Callable[[Experiment], Any]:
    return lambda value: value.task.loss(1, error)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error", [MemoryError("no"), OSError(28, "No space left on device"), ConnectionError("gone"), RuntimeError("x")]
)
def test_what_a_machine_refused_is_no_error_of_the_users_file(run: Path, error: Exception) -> None:
    found = recorded(run, raised(error))
    ours = isinstance(error, RuntimeError)
    assert bool(found.edit) == ours, str(found)


def test_explained_error_names_the_file_to_correct(run: Path) -> None:
    place = f"in Mine.loss ({run.parent}/project/exp.py:8)"
    found = recorded(run, raised(UserError("the count differs", place, "count the same")))
    assert found.edit == f"{run.parent}/project/exp.py:8"
    assert not recorded(run, raised(UserError("it has gone", run, "put it back"))).edit


def said(monkeypatch: pytest.MonkeyPatch, capsys: Capture, failure: RunFailed) -> str:
    def fail(_: list[str]) -> int:
        raise failure

    monkeypatch.setattr(cli, "_command", fail)
    assert cli.run([]) == 1
    return capsys.readouterr().err


def test_the_advice_names_the_file_to_correct(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    line = said(monkeypatch, capsys, recorded(run, divide))
    how = f"correct {run.parent}/project/helper.py:{RATIO}, then go on with "
    assert line.endswith(f"{how}`raytrain resume {run} --experiment {run.parent}/project/exp.py`\n")
    assert line.count("\n") == 1
    monkeypatch.chdir(run.parent / "project")
    line = said(monkeypatch, capsys, recorded(run, divide))
    assert f"correct helper.py:{RATIO}, then go on with `raytrain resume {run} --experiment exp.py`" in line
    line = said(monkeypatch, capsys, recorded(run, raised(MemoryError("no"))))
    assert line.endswith(f"go on with `raytrain resume {run}`\n")


def test_failed_trials_name_the_line_and_file_to_correct(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        divide(Run(run).experiment)
    line = f"{run.parent}/project/helper.py:{RATIO}"
    assert _one_line(caught.value) == f"ZeroDivisionError: division by zero ({line})"
    (run / "sweep.json").write_text("{}")
    why = f"no trial has a result: trial 0 failed: {_one_line(caught.value)}"
    said_ = said(monkeypatch, capsys, RunFailed(why, run, None, edit=places.to_edit(why)))
    assert said_.endswith(f"correct {line} and start a new sweep\n")
    said_ = said(monkeypatch, capsys, RunFailed("no trial keeps the constraints", run, None, how="start a new sweep"))
    assert said_.endswith(f"the logs are in {run / 'logs'}, start a new sweep\n")


def test_a_loss_that_is_not_finite_is_said_with_the_command_that_takes_the_flags(run: Path) -> None:
    error = f"FloatingPointError: {errors.diverged('the loss became nan at step 9', ['step_00000005'])}"
    record = {"time": 1.0, "rank": 0, "lost": False, "error": error, "at": "raytrain/training/trainer.py:302"}
    (run / "logs" / "rank_0.json").write_text(json.dumps(record))
    found = _failure(RuntimeError("workers failed"), run)
    assert str(found) == f"rank 0: {error}" and found.how == f"and `raytrain resume {run}` takes these flags"
    (run / "logs" / "rank_0.json").write_text(json.dumps(record | {"edit": "exp.py:3"}))
    assert not _failure(RuntimeError("workers failed"), run).how, "the user's own"
