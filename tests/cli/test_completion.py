"""`raytrain completion`: scripts that shells can read, and what they offer."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.commands import DIGITS, REPOSITORY, fails, finished, succeeds, without_ray

from raytrain import Run, config
from raytrain.cli.commands import COMMANDS
from raytrain.run.experiment_file import load

__all__ = ["finished", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]
ASK = """
eval "$(raytrain completion bash)"
for line in "$@"; do
    read -ra COMP_WORDS <<< "$line"
    [[ $line == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _raytrain raytrain
    echo "${COMPREPLY[*]}"
done
"""


def offered(folder: Path, *lines: str) -> list[list[str]]:
    """What bash offers in a folder where each of some lines is to be completed."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", ASK, "bash", *lines], cwd=folder, env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return [line.split() for line in done.stdout.splitlines()]


def test_bash_completes_commands_files_folders_words_and_flags(tmp_path: Path) -> None:
    (tmp_path / "digits.py").write_text(Path(DIGITS).read_text())
    (tmp_path / "data.bin").touch()
    (tmp_path / "runs" / "first").mkdir(parents=True)
    lines = ("raytrain ", "raytrain tr", "raytrain train ", "raytrain resume runs/", "raytrain cluster ")
    *found, other, flags = offered(tmp_path, *lines, "raytrain sweep --", "raytrain train digits.py --optimizer.m")
    assert found[0] == [*COMMANDS, "--help", "--version"]
    assert found[1:] == [["train"], ["digits.py", "runs"], ["runs/first"], ["init", "check", "up"]]
    assert other == ["--precision_and_batch", "--help"] and flags == ["--optimizer.momentum"]


def test_bash_offers_flags_of_places_that_it_breaks_or_quotes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("digits.py", "my digits.py", "a=b.py"):
        (tmp_path / name).write_text(Path(DIGITS).read_text())
    url = "raytrain predict file : ///nowhere --fo"  # bash breaks words at colons and equal signs
    places = ("~/digits.py", "$HOME/digits.py", "a = b.py")
    found = offered(tmp_path, url, *(f"raytrain train {place} --optimizer.m" for place in places))
    assert found == [["--folder"], *[["--optimizer.momentum"]] * 3]


@pytest.mark.parametrize("place", ["my\\ digits.py", "'my digits.py'", '"my digits.py"', "my digits.py"])
def test_flags_of_a_place_that_was_typed_with_quotes(capsys: Capture, tmp_path: Path, place: str) -> None:
    (tmp_path / "my digits.py").write_text(Path(DIGITS).read_text())
    with contextlib.chdir(tmp_path):
        assert "--optimizer.momentum" in succeeds(capsys, "completion", "flags", "train", place).split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_names_every_command(capsys: Capture, tmp_path: Path, shell: str) -> None:
    script = succeeds(capsys, "completion", shell)
    assert all(re.search(rf"\b{name}\b", script) for name in COMMANDS)
    assert all(command.purpose in script for command in COMMANDS.values()) or shell == "bash"
    (tmp_path / "script").write_text(script)
    if shell == "bash":
        subprocess.run(["bash", "-n", tmp_path / "script"], check=True)


def test_flags_are_those_of_the_experiment(capsys: Capture) -> None:
    found = succeeds(capsys, "completion", "flags", "train", DIGITS).split()
    of_parts = {"hooks", "loggers", "task.metrics", "data.augment.operations", "stages"}
    assert {f"--{path}" for path in set(config.paths(load(DIGITS)[0])) - of_parts} <= set(found)
    assert {"--out", "--quiet", "--no_report", "--parallel.strategy", "--help"} <= set(found) and "--field" not in found
    assert len(found) == len(set(found))


def test_every_command_has_flags(capsys: Capture, finished: Run) -> None:
    sweep, run = REPOSITORY / "experiments" / "sweep_amp_batch.py", finished.path
    for words, flag in (
        (["sweep", sweep], "--trials"),
        (["resume", run], "--experiment"),
        (["export", run], "--checkpoint"),
        (["runs"], "--sort"),
        (["cluster", "up"], "--minutes"),
        (["train"], "--help"),
        (["nonsense"], ""),
    ):
        assert flag in succeeds(capsys, "completion", "flags", *words).split() or not flag


def test_an_unknown_shell_and_a_missing_file(capsys: Capture) -> None:
    assert "there is no script for 'csh': bash, zsh or fish must come first" in fails(capsys, "completion", "csh")
    assert "unexpected argument 'more'" in fails(capsys, "completion", "bash", "more")
    assert "no such experiment file" in fails(capsys, "completion", "flags", "train", "missing.py")
