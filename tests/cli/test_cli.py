"""The command line: help, the plan, and a line for every mistake, before anything is started or written."""

from __future__ import annotations

import inspect
import itertools
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from helpers.commands import DIGITS, REPOSITORY, fails, no_runs, succeeds, without_ray

from raytrain import Experiment, Sweep, __version__, config
from raytrain.cli.commands import COMMANDS
from raytrain.cli.flags.loggers import _LOGGERS
from raytrain.cli.flags.parsing import describe
from raytrain.cli.flags.train import Resume
from raytrain.driver.options import Options
from raytrain.run.experiment_file import load
from raytrain.sweep.sweep_file import load as load_sweep

__all__ = ["no_runs", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]


def write(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text))
    return path


# Help


def test_help_lists_every_command(capsys: Capture) -> None:
    named = {"train", "lr", "batch", "resume", "evaluate", "predict", "export", "sweep", "cluster", "doctor"}
    named |= {"submit", "status", "logs", "stop", "folds", "runs", "new", "profile", "serve", "pack", "data"}
    named.add("completion")
    for arguments in ([], ["--help"], ["-h"]):
        said = succeeds(capsys, *arguments)
        assert all(re.search(rf"^  {command} +[A-Z]", said, re.MULTILINE) for command in named), said
    assert set(COMMANDS) == named | {"report"}
    assert succeeds(capsys, "--version") == f"raytrain {__version__}\n"
    for module in ("raytrain", "raytrain.cli"):
        said = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
        assert said.stdout == f"raytrain {__version__}\n"


@pytest.mark.parametrize("arguments", [["train", DIGITS], ["lr", DIGITS], ["batch", DIGITS], ["cluster", "check"]])
def test_help_fills_its_lines(capsys: Capture, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    """Not the lines of the docstrings in the source."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.rstrip() for line in succeeds(capsys, *arguments, "--help").splitlines()]
    continued = 0
    for line, after in itertools.pairwise(lines):
        text, more = (re.match(r"( {8,}|  [-A-Z].{3,}?  +)(\S.*)", one) for one in (line, after))
        if text and more and more[1].isspace() and more.start(2) == text.start(2):
            continued += 1
            assert len(line) + 1 + len(more[2].split()[0]) > 78, line
    assert continued
    assert all(line or after for line, after in itertools.pairwise(lines)), "one empty line is enough"


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["train"], ["EXPERIMENT", "--help"]),
        (["lr"], ["EXPERIMENT", "--steps", "--low", "--high", "--out"]),
        (["batch"], ["EXPERIMENT", "--memory", "global"]),
        (["batch", DIGITS], ["--precisions", "--memory", "--json", "--batch_size"]),
        (["lr", DIGITS], ["--steps", "--low", "--high", "--out", "--batch_size"]),
        (["resume"], ["RUN", "--help"]),
        (["evaluate"], ["RUN", "--data.root", "--split {train,val,test}", "--checkpoint {best,last}", "--json"]),
        (["predict"], ["RUN", "PATH", "--out", "--checkpoint"]),
        (["runs"], ["DIR", "--sort {when,name,metric,size,METRIC}", "--json"]),
        (["doctor"], ["--address", "--out", "--json", "RAY_ADDRESS"]),
        (["serve"], ["RUN", "--port", "--host", "--replicas", "--gpus", "--max_batch", "--address", "POST /predict"]),
        (["export"], ["RUN", "FILE", "--checkpoint", ".pth", ".safetensors", ".pt2"]),
    ],
)
def test_help_of_each_command_ends_well_and_names_its_flags(
    capsys: Capture, arguments: list[str], flags: list[str]
) -> None:
    for ask in ("--help", "-h"):
        said = succeeds(capsys, *arguments, ask)
        assert all(flag in said for flag in flags), said


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("arguments", [["train", DIGITS], ["lr", DIGITS], ["batch"], ["predict"], ["doctor"], []])
def test_help_in_a_pipe_fits_the_width(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, arguments: list[str], width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = succeeds(capsys, *arguments, "--help").splitlines()
    assert [line for line in lines if len(line) > width and not line.startswith("usage: ")] == []


def test_help_shows_every_field_with_its_value(capsys: Capture) -> None:
    said = succeeds(capsys, "train", DIGITS, "--epochs", "7", "--help")
    assert "Handwritten digits, embedded" in said
    of_parts = {
        "hooks",
        "loggers",
        "task.metrics",
        "data.augment.operations",
        "stages",
    }  # tuples, whose parts have flags
    for path in set(config.paths(load(DIGITS)[0])) - of_parts:
        assert f"--{path} " in said or f"--{path}," in said, path
    for flag in ("--out", "--name", "--address", "--dry_run", "--verbose"):
        assert flag in said
    assert "(default: 32 64)" in said and "(default: 0.05)" in said


@pytest.mark.parametrize("kind", [Options, Resume])
def test_help_of_log_names_every_logger(kind: type) -> None:
    said = inspect.getsource(kind).partition("    log:")[2].partition("    profile:")[0]
    assert {*re.findall(r"tensorboard|csv|mlflow|wandb", said)} == {*_LOGGERS}


# The plan


def test_dry_run_prints_the_plan_and_writes_nothing(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copyfile(DIGITS, tmp_path / "digits.py")
    monkeypatch.chdir(tmp_path)
    said = succeeds(capsys, "train", "digits.py", "--dry_run", "--epochs", "2", "--scaling.workers", "1")
    assert "1 worker x 64 micro-batch x 1 accumulation = 64 global" in said and "2 x 23 steps" in said
    assert "runs/digits-N" in said
    assert [path.name for path in tmp_path.iterdir()] == ["digits.py"]
    assert "elsewhere/mine" in succeeds(
        capsys, "train", "digits.py", "--dry_run", "--out", "elsewhere", "--name", "mine"
    )


def test_strategy_is_checked_together_with_the_other_flags(capsys: Capture, no_runs: Path, tmp_path: Path) -> None:
    three = tmp_path / "three.py"
    text = Path(DIGITS).read_text()
    three.write_text(text.replace("workers=2", "workers=3").replace("batch_size=64", "batch_size=60"))
    command = ("train", three, "--out", no_runs, "--dry_run", "--parallel.strategy", "deterministic")
    refused = "3 workers cannot share the 4 shards"
    assert refused in fails(capsys, *command) and refused in fails(capsys, *command, "--epochs", "2")
    assert "deterministic" in succeeds(capsys, *command, "--scaling.workers", "0")
    assert "usage:" in succeeds(capsys, *command, "--help")


def test_every_field_can_be_set_by_the_flag_of_its_path(capsys: Capture, no_runs: Path) -> None:
    said = succeeds(
        capsys,
        *("train", DIGITS, "--dry_run", "--out", no_runs, "--model.channels", "8", "9", "10", "--optimizer.lr=0.5"),
        *("--batch_size", "48", "--micro_batch_size", "None", "--precision", "bf16", "--scaling.workers", "3"),
        *("--data.mode", "streaming", "--optimizer.nesterov", "--checkpoint.every_steps", "5"),
    )
    count = 8 * 9 + 8 + 8 * 9 * 9 + 9 + 9 * 10 * 9 + 10 + 10 * 10 + 10
    assert f"CNN, {count:,} parameters" in said and "3 workers x 16 micro-batch" in said
    assert "; bf16" in said and "images streamed" in said


# Mistakes on the command line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trian", DIGITS], "unknown command 'trian'; did you mean train?"),
        (["--nothing"], "unknown command '--nothing'"),
        (["train"], "EXPERIMENT must come first; see `raytrain train --help`"),
        (["train", "--epochs", "3"], "EXPERIMENT must come first"),
        (["resume"], "RUN must come first"),
        (["evaluate"], "RUN"),
        (["predict"], "RUN"),
        (["export", "run"], "FILE"),
        (["train", DIGITS, "--optimizer.lrr", "1"], "unknown flag --optimizer.lrr; did you mean --optimizer.lr?"),
        (["train", DIGITS, "--optimizer.lrr=1"], "unknown flag --optimizer.lrr; did you mean --optimizer.lr?"),
        (["train", DIGITS, "--epoch", "3"], "unknown flag --epoch; did you mean --epochs?"),
        (["train", DIGITS, "--dryrun"], "unknown flag --dryrun; did you mean --dry_run?"),
        (["train", DIGITS, "-e", "3"], "unknown flag -e"),
        (["evaluate", "run", "--splt", "val"], "unknown flag --splt; did you mean --split?"),
        (["evaluate", "run", "--data.rot", "x"], "unknown flag --data.rot; did you mean --data.root?"),
        (["train", DIGITS, "--epochs", "x"], "--epochs"),
        (["train", DIGITS, "--epochs", "1.5"], "--epochs"),
        (["train", DIGITS, "--optimizer.lr", "fast"], "--optimizer.lr"),
        (["train", DIGITS, "--data.augment.scale", "0.1"], "--data.augment.scale"),
        (["train", DIGITS, "--optimizer.lr", "-1"], "lr = -1.0 is out of range, in SGD; give a value above 0"),
        (["train", DIGITS, "--optimizer.lr", "nan"], "lr = nan is out of range, in SGD"),
        (["train", DIGITS, "--epochs", "0"], "epochs = 0 is out of range, in Experiment; give a value of at least 1"),
        (["train", DIGITS, "--seed", "-1"], "seed = -1 is out of range"),
        (["train", DIGITS, "--model.channels"], "channels = () is out of range, in CNN"),
        (["train", DIGITS, "--precision", "fp8"], "'fp8'"),
        (["train", DIGITS, "--data.mode", "tape"], "'tape'"),
        (["train", DIGITS, "--data.augment.policy", "foo"], "--data.augment.policy must be one of"),
        (["train", DIGITS, "--data.augment.erase", "2"], "erase = 2.0 is out of range, in Augment; give a value in"),
        (["train", DIGITS, "--data.augment.mixup", "1", "--batch_size", "62"], "use --batch_size 60 or 64"),
        (["train", DIGITS, "--data.augment.mixup", "1", "--batch_size", "1440"], "of at most 1438, the training"),
        (["evaluate", "run", "--split", "holdout"], "'holdout'"),
        (["train", DIGITS, "--epochs"], "--epochs needs a value; see `raytrain train"),
        (["train", DIGITS, "--epochs", "--seed", "1"], "--epochs"),
        (["train", DIGITS, "stray"], "unexpected argument 'stray'"),
        (["evaluate", "run", "stray"], "unexpected argument 'stray'"),
        (["export", "run", "a.pth", "b.pth"], "unexpected argument 'b.pth'"),
        (["train", DIGITS, "--batch_size", "63"], "batch_size 63 does not divide by scaling.workers 2"),
        (["train", DIGITS, "--micro_batch_size", "5"], "use --micro_batch_size 4"),
        (["train", DIGITS, "--scaling.workers", "1000", "--batch_size", "1000"], "the run asks for 1000 workers"),
        (["train", DIGITS, "--scaling.gpus_per_worker", "1000"], "the run asks for 2000 GPUs and the cluster has"),
        (
            ["train", DIGITS, "--scaling.cpus_per_worker", "999"],
            "cannot be placed: each needs one node, and this machine",
        ),
        (["train", DIGITS, "--data.crop", "9"], "crop = 9 is out of range, in Digits; give a value of at most 8"),
        (["train", "missing.py"], "no such experiment file, missing.py"),
        (["train", "x" * 5000], "no such experiment file"),
        (["resume", "missing"], "no run there (it has no experiment.json), missing"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, *arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (\n", "does not load: '(' was never closed, {}:1; correct that line"),
        ("x = 1\n1 / 0\n", "does not load: ZeroDivisionError: division by zero, {}:2; correct that line"),
        ("x = 1\n", "not an experiment: it defines no `experiment`, {}; give a .py file"),
        ("import raytrain\nraytrain.Scaling(workers=-1)\n", "workers = -1 is out of range, in Scaling"),
    ],
)
def test_an_experiment_file_with_a_mistake(
    capsys: Capture, tmp_path: Path, no_runs: Path, text: str, message: str
) -> None:
    file = write(tmp_path / "exp.py", text)
    for flags in ([], ["--dry_run"], ["--epochs", "3"]):
        assert message.format(file) in fails(capsys, "train", file, "--out", no_runs, *flags)


def test_a_list_in_json_is_no_experiment(capsys: Capture, tmp_path: Path) -> None:
    file = write(tmp_path / "rows.json", '[{"path": "0.png", "label": "a"}]')
    for command in ("data", "train"):
        assert f"this is a list, and the experiment.json of a run is an object, {file};" in fails(capsys, command, file)


# Where runs go


def test_an_output_that_cannot_hold_runs(capsys: Capture, tmp_path: Path) -> None:
    file = write(tmp_path / "file", "")
    for place, message in (
        (file, f"the output cannot be written: {file} is a file"),
        (file / "below", "is a file"),
        ("/proc/nothing", "the output cannot be written"),
    ):
        assert message in fails(capsys, "train", DIGITS, "--out", place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_name_that_exists_offers_to_resume(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    said = fails(capsys, "train", DIGITS, "--out", tmp_path, "--name", "mine")
    assert f"a run of that name exists, {tmp_path}/mine;" in said and f"`raytrain resume {tmp_path}/mine`" in said
    assert not list((tmp_path / "mine").iterdir())
    assert "cannot be the name of a run's folder" in fails(capsys, "train", DIGITS, "--out", tmp_path, "--name", "a/b")
    assert "the run has 300 bytes" in fails(capsys, "train", DIGITS, "--out", tmp_path, "--name", "x" * 300)


# The process


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["train", DIGITS, "--optimizer.lr", "-1"], 2, "error: lr = -1.0 is out of range"),
        (["train", DIGITS, "--data.crop", "9", "--out", "runs"], 2, "error: crop = 9"),
        (["evaluate", "missing"], 2, "error: no run there"),
        (["--help"], 0, ""),
    ],
)
def test_the_command_ends_with_its_status_and_one_line(
    tmp_path: Path, arguments: list[str], status: int, message: str
) -> None:
    command = [Path(sys.executable).with_name("raytrain"), *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == status and done.stderr.startswith(message)
    assert done.stderr.count("\n") == (status == 2) and not list(tmp_path.iterdir())


def test_every_experiment_of_the_repository_loads() -> None:
    files = sorted((REPOSITORY / "experiments").glob("*.py"))
    sweeps = [file for file in files if file.name.startswith("sweep_")]
    assert len(files) > len(sweeps) > 0
    assert all(isinstance(load(file)[0], Experiment) for file in files if file not in sweeps)
    assert all(isinstance(load_sweep(file)[0], Sweep) for file in sweeps)


def test_help_begins_with_what_the_file_says_or_its_name(tmp_path: Path) -> None:
    file = tmp_path / "exp.py"
    file.write_text('"""Digits, by two layers."""\n')
    assert describe(file) == "Digits, by two layers."
    file.write_text("x = 1\n")
    assert describe(file) == "The experiment of exp.py." and describe(None) == "The experiment of a run."
