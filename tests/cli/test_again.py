"""The flag --resume: one command begins a run or a sweep, and goes on with it when it is given again."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.commands import DIGITS, fails, make_run, no_runs, without_ray

from raytrain import cli
from raytrain.cli.flags import again

__all__ = ["no_runs", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]


def test_resume_takes_the_run_or_sweep_of_a_name(tmp_path: Path) -> None:
    out = f"--out={tmp_path}"
    command = [DIGITS, out, "--name", "mine", "--resume"]
    assert again.again(command) is None, "there is none: the command begins it"
    for name, file in (("mine", "experiment.json"), ("a_sweep", "sweep.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "summary.json").touch()
        given = [*command[:-2], name, "--resume", "--quiet", "--address", "auto", "--epochs", "3"]
        assert again.again(given) is None, "no run"
        (tmp_path / name / file).touch()
        there = f"{tmp_path}/{name}"
        assert again.again(given) == [there, "--quiet", "--address", "auto", "--epochs", "3"]
        at_url = again.again([*given, "--out", f"file://{tmp_path}"])
        assert at_url == [f"file://{there}", "--quiet", "--address", "auto", "--epochs", "3"]
        assert again.again([word for word in given if word != "--resume"]) is None
        left_open = ["--precision", "auto", "--scaling.workers=None", "--clip_norm", "None", "--log", "csv"]
        assert again.again([*given[:5], *left_open]) == [there, *left_open[3:]], "the run has decided the others"
        finds = ["--precision_and_batch", *given, "--repeats", "5"]
        assert again.again(finds) == [there, "--address=auto", "--quiet"], "its sweep has no such settings"
        assert again.again([*given[:5], "--folds", "4"]) == [there, "--data.folds.count=4"]


def test_run_goes_on_by_the_same_command(capsys: Capture, tmp_path: Path) -> None:
    command = ["train", DIGITS, "--out", tmp_path, "--name", "mine", "--resume"]
    said = fails(capsys, *command[:-3], "--resume")
    assert said.startswith("error: --resume needs the name of the run; give one with --name, or write")
    assert cli.run([*map(str, command), "--dry_run"]) == 0 and not list(tmp_path.iterdir())
    capsys.readouterr()
    run = make_run(tmp_path / "mine")
    assert run.summary["status"] == "completed"
    assert "a resumed run cannot change seed" in fails(capsys, *command, "--seed", "5")
    assert "is complete" in fails(capsys, *command, "--validate_every_steps", "None", "--clip_norm=None")
    assert "mine" in fails(capsys, *command) and not (tmp_path / "mine-1").exists()
