"""Directories of runs of which a part is gone, damaged or something else: no command is surprised or does more harm."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.commands import DIGITS
from helpers.times import without_times

from raytrain import cli
from raytrain.run.lock import Lock
from raytrain.run.metrics_log import read_metrics

EPOCHS = 2
FILES = (
    *("experiment.json", "experiment.py", "sources.json", "environment.json", "summary.json", "metrics.jsonl"),
    *("best.json", "last.json", "lock", "writer.lock"),
)
FOLDERS = ("checkpoints", "logs")
_LOCKS = ("lock", "writer.lock")


def gone(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)) * 3)


def a_list(path: Path) -> None:
    path.write_text("[1, 2, 3]\n")


def other_values(path: Path) -> None:
    path.write_text('{"status": 3, "checkpoint": [], "epochs": "two", "kind": 7, "data_fingerprint": null}\n')


def a_folder(path: Path) -> None:
    gone(path)
    path.mkdir()
    (path / "something").write_text("else")


def a_pipe(path: Path) -> None:
    gone(path)
    os.mkfifo(path)


def a_file(path: Path) -> None:
    gone(path)
    path.write_text("a file")


def a_link_to_nothing(path: Path) -> None:
    gone(path)
    path.symlink_to(path.parent / "nothing")


def a_link_to_what_was_there(path: Path) -> None:
    elsewhere = path.parent.parent / f"elsewhere-{path.name}"
    if path.exists():
        path.rename(elsewhere)
    path.symlink_to(elsewhere)


DAMAGE: tuple[tuple[str, Callable[[Path], None]], ...] = (
    *(
        (name, how)
        for name in FILES
        for how in (
            *(gone, empty, cut, garbage, a_list, other_values),
            *(a_folder, a_pipe, a_link_to_nothing, a_link_to_what_was_there),
        )
    ),
    *((name, how) for name in FOLDERS for how in (gone, a_file, a_pipe, a_link_to_nothing, a_link_to_what_was_there)),
)


QUICK = (gone, cut, other_values, a_file, a_pipe, a_link_to_what_was_there)
"""The kinds of damage that `make test` does; the others take as long again."""
STATUSES: list[int] = []
"""How `raytrain resume` ended on each."""


@pytest.fixture(scope="module")
def half(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch, which has ended."""
    return trained(tmp_path_factory.mktemp("half"), 1)


@pytest.fixture(scope="module")
def whole(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for two."""
    return trained(tmp_path_factory.mktemp("whole"), EPOCHS)


def trained(folder: Path, epochs: int) -> Path:
    arguments = ["--scaling.workers", "0", "--epochs", str(epochs), "--checkpoint.every_steps", "10"]
    assert cli.run(["train", DIGITS, *arguments, "--out", str(folder), "--name", "run"]) == 0
    return folder / "run"


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """A command that waits for a pipe's writer is an error, not the end of the tests."""

    def hangs(*_: object) -> None:
        raise TimeoutError("a command hangs")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def content(run: Path) -> dict[str, object]:
    """Everything in a directory and in what its links lead to: files by their bytes, the rest by its kind."""
    found: dict[str, object] = {}
    for folder in (run, *run.parent.glob("elsewhere-*")):
        for path in sorted((folder, *folder.rglob("*"))):
            kind = os.lstat(path).st_mode >> 12
            name = str(path.relative_to(run.parent))
            found[name] = path.read_bytes() if kind == 0o10 else os.readlink(path) if kind == 0o12 else kind
    return found


def rows(path: Path) -> list[dict[str, object]]:
    return [without_times(row) for row in read_metrics(path / "metrics.jsonl")[0]]


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> int:
    """Return the exit status of a command that may fail, in one line."""
    capsys.readouterr()
    status = cli.run([str(argument) for argument in arguments])
    said = capsys.readouterr().err
    assert "Traceback" not in said and "a defect" not in said, said
    lines = [line for line in said.splitlines() if not line.startswith("note: ")]
    assert status in (0, 2) and len(lines) == (1 if status else 0), said
    assert not lines or "; " in lines[0], "it says what to do"
    return status


@pytest.mark.parametrize(
    ("name", "how"),
    [pytest.param(name, how, marks=() if how in QUICK else pytest.mark.slow) for name, how in DAMAGE],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_commands_survive_damaged_runs_and_change_nothing(
    name: str, how: Callable[[Path], None], half: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(half, tmp_path / "run"))
    (run / "writer.lock").touch()
    how(run / name)
    before = content(run)
    answer(capsys, "evaluate", run)
    answer(capsys, "export", run, tmp_path / "weights.pth")
    answer(capsys, "resume", run, "--epochs", EPOCHS, "--dry_run")
    assert {k: v for k, v in content(run).items() if Path(k).name not in _LOCKS} == {
        k: v for k, v in before.items() if Path(k).name not in _LOCKS
    }
    status = answer(capsys, "resume", run, "--epochs", EPOCHS)
    STATUSES.append(status)
    after = content(run)
    if status:
        assert {k: v for k, v in after.items() if Path(k).name not in _LOCKS} == {
            k: v for k, v in before.items() if Path(k).name not in _LOCKS
        }
        return
    assert rows(run) == rows(whole)
    manifests = [run / "checkpoints" / "step_00000046" / "manifest.json" for run in (run, whole)]
    parts = [json.loads(manifest.read_text())["files"] for manifest in manifests]
    assert [part["model.safetensors"] for part in parts[:1]] == [part["model.safetensors"] for part in parts[1:]]
    assert json.loads((run / "summary.json").read_text())["status"] == "completed"


def test_there_are_at_least_a_hundred() -> None:
    assert len(DAMAGE) >= 100
    assert len(STATUSES) < len(DAMAGE) or {*STATUSES} == {0, 2}, "some runs go on and some are refused"


def test_second_resume_is_refused_and_changes_nothing(
    half: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(half, tmp_path / "run"))
    with Lock(run):
        before = content(run)
        capsys.readouterr()
        assert cli.run(["resume", str(run), "--epochs", str(EPOCHS)]) == 2
        assert f"the run is still going (process {os.getpid()} on " in capsys.readouterr().err
        assert content(run) == before


def test_a_finished_run_whose_experiment_has_gone_stays(
    cluster: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing loads the experiment again in order to say how the run ended."""
    (tmp_path / "settings.txt").write_text("2")
    file = tmp_path / "exp.py"
    file.write_text(
        "import os, pathlib\nfrom dataclasses import dataclass\nfrom raytrain import *\n"
        f"folder = {str(tmp_path)!r}\nepochs = int(pathlib.Path(folder, 'settings.txt').read_text())\n"
        "@dataclass(frozen=True)\nclass Mine(Classification):\n"
        "    def sums(self, model, batch):\n"
        "        for name in ('settings.txt', 'exp.py', 'runs/run/experiment.json', 'runs/run/experiment.py'):\n"
        "            if os.path.exists(folder + '/' + name): os.remove(folder + '/' + name)\n"
        "        return super().sums(model, batch)\n"
        "experiment = Experiment(CNN(), Digits(), task=Mine(), epochs=epochs, scaling=Scaling(workers=0))\n"
    )
    assert answer(capsys, "train", file, "--out", tmp_path / "runs", "--name", "run") == 0
    run = tmp_path / "runs" / "run"
    assert json.loads((run / "summary.json").read_text())["status"] == "completed"
    assert len(list((run / "checkpoints").iterdir())) and not (tmp_path / "settings.txt").exists()
