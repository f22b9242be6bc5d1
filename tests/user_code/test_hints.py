"""What the command suggests for a name that it does not know."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import DIGITS, REPOSITORY, fails, no_runs, without_ray

import raytrain
from raytrain import CNN, Digits, Experiment, UserError
from raytrain.user_code import hints

__all__ = ["no_runs", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]
SWEEP = str(REPOSITORY / "experiments" / "sweep_amp_batch.py")
FINETUNE = str(REPOSITORY / "experiments" / "finetune.py")


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("--lr", "--optimizer.lr"),
        ("-lr", "--optimizer.lr"),
        ("--momentum", "--optimizer.momentum"),
        ("--momentu", "--optimizer.momentum"),
        ("--workers", "--scaling.workers"),
        ("--no-nesterov", "--optimizer.nesterov"),
        ("--optim.lr", "--optimizer.lr"),
        ("--modle.channels", "--model.channels"),
        ("--epoch", "--epochs"),
        ("--dryrun", "--dry_run"),
        ("--gpus", "--scaling.workers"),
        ("--devices", "--scaling.workers"),
        ("--nproc-per-node", "--scaling.workers"),
        ("--learning-rate", "--optimizer.lr"),
        ("--max_epochs", "--epochs"),
        ("--amp", "--precision"),
        ("--output-dir", "--out"),
        ("--every", "--checkpoint.every_steps or --checkpoint.every_minutes"),
        ("--deterministic", "--parallel.strategy deterministic"),
        ("--fsdp", "--parallel.strategy fsdp"),
    ],
)
def test_unknown_flag_suggests_a_path(capsys: Capture, flag: str, meant: str) -> None:
    assert f"unknown flag {flag}; did you mean {meant}? " in fails(capsys, "train", DIGITS, flag, "1")


@pytest.mark.parametrize("flag", ["--root", "--data.path", "--lossy", "--xyz", "--data-dir", "--verbosely-wrong"])
def test_a_flag_like_none_suggests_none(capsys: Capture, flag: str) -> None:
    assert f"unknown flag {flag}; `raytrain train" in fails(capsys, "train", DIGITS, flag, "1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train", DIGITS, "--resume"],
            "--resume needs the name of the run; give one with --name, or write `raytrain resume RUN`",
        ),
        (["train", DIGITS, "epochs=3"], "unexpected argument 'epochs=3'; did you mean --epochs 3? "),
        (["train", DIGITS, "--optimizer", "adam"], "where it is SGD; write `optimizer=Adam(...)` there; SGD's fields"),
        (["train", DIGITS, "--optimizer=Adam"], "--optimizer takes no value: its class is chosen in the file, where"),
        (["train", DIGITS, "--model", "x"], "write `model=CNN(...)` there (or MLP, SimpleModel, Timm, TorchModel, T"),
        (["train", DIGITS, "--task", "x"], "write `task=Classification(...)` there (or Distillation, MultiLabel, Reg"),
        (["train", FINETUNE, "--model", "vit"], "--model takes no value; did you mean --model.name vit?"),
        (["train", DIGITS, "--parallel", "fsdp"], "did you mean --parallel.strategy fsdp?"),
        (["train", DIGITS, "--parallel.shard_over", "2"], "use it with --parallel.strategy fsdp"),
        (["train", DIGITS, "--scaling", "2"], "--scaling takes no value; its fields have flags: --scaling.workers,"),
        (["sweep", SWEEP, "--search", "TPE"], "where it is RandomSearch; write `search=TPE(...)` there"),
        (["sweep", SWEEP, "--budget", "9"], "did you mean --budget_seconds?"),
        (["train", DIGITS, "--epochs="], "error: --epochs must be a whole number, got ''; see"),
        (["train", DIGITS, "--optimizer.lr", "fast"], "error: --optimizer.lr must be a number, got 'fast'; see"),
        (["train", DIGITS, "--data.crop", "3.2"], "error: --data.crop must be None or a whole number, got '3.2'; see"),
        (
            ["train", DIGITS, "--unfreeze", "0"],
            "--unfreeze takes pairs of a whole number and a text, got 0 (epoch",
        ),
        (
            ["train", DIGITS, "--unfreeze", "x", "a", "b", "c", "d", "e"],
            "and a text, got x, a, b, c and 2 more (epochs",
        ),
        (
            ["train", DIGITS, "--optimizer.lr_factors", "a"],
            "takes pairs of a text and a number, got a (patterns of nam",
        ),
        (["sweep", SWEEP, "--optimizer.lr_factors", "a"], "takes pairs of a text and a number, got a (patterns"),
        (
            ["train", DIGITS, "--model.channels", "x"],
            "--model.channels takes values that are a whole number each, got x",
        ),
        (["export", "run"], "error: FILE must be given; see"),
        (["train", ""], "EXPERIMENT must come first"),
    ],
)
def test_a_mistake_says_what_to_write(
    capsys: Capture, no_runs: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setenv("COLUMNS", "20")  # the messages do not depend on the terminal
    assert message in fails(capsys, *arguments)


@pytest.mark.parametrize("field", ["hooks", "loggers", "schedule", "data", "task", "optimizer", "sampler", "parallel"])
def test_all_classes_that_are_suggested_can_be_imported(field: str) -> None:
    from raytrain.report.console import Console  # a Logger, and none of the user's

    value: Any = (3,) if field in ("hooks", "loggers") else Console()
    with pytest.raises(UserError) as caught:
        Experiment(**{"model": CNN(), "data": Digits(), field: value})
    suggested = {*re.findall(r"(\w+)\(\.\.\.\)", caught.value.how)}
    assert suggested and suggested <= {*raytrain.__all__}, caught.value.how


def test_a_missing_file_suggests_those_of_like_names(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("experiments/digits.py", "experiments/other.py", "runs/first/experiment.json", "mine.py"):
        Path(file).parent.mkdir(exist_ok=True, parents=True)
        Path(file).write_text("experiment = None\n")
    (tmp_path / "sweeps").mkdir()
    Path("sweeps/find.py").write_text("from raytrain import Sweep\nsweep: Sweep = None\n")
    for given in ("digits", "digit.py", "experiments/digits", "experiments/digts.py"):
        assert "did you mean experiments/digits.py?" in fails(capsys, "train", given), given
    assert "did you mean mine.py?" in fails(capsys, "train", "mine")
    assert "did you mean experiments/digits.py or experiments/other.py?" in fails(capsys, "train", "experiments")
    assert "check the spelling" in fails(capsys, "train", "nothing")
    assert "no such sweep file, sweeps/fnd; did you mean sweeps/find.py?" in fails(capsys, "sweep", "sweeps/fnd")
    assert "sweeps/sweep.json; did you mean sweeps/find.py?" in fails(capsys, "sweep", "sweeps")
    instead = "experiments/digits.py holds an experiment: `raytrain train experiments/digits.py` trains it"
    assert f"no such sweep file, digits; {instead}" in fails(capsys, "sweep", "digits")
    instead = "sweeps/find.py holds a sweep: `raytrain sweep sweeps/find.py` runs it"
    assert f"no such experiment file, sweeps/fnd; {instead}" in fails(capsys, "train", "sweeps/fnd")
    Path("helper.py").touch()
    assert "helpr; check the spelling" in fails(capsys, "train", "helpr")
    Path("ours.py").write_text("from experiments.digits import experiment\n")
    assert "our; did you mean ours.py?" in fails(capsys, "train", "our")
    Path("experiments/digits.py").write_text("experiment = (\n")  # not Python
    assert "no such sweep file, digits; check the spelling" in fails(capsys, "sweep", "digits")
    for command in ("evaluate", "resume"):
        assert "first; did you mean runs/first? give a folder" in fails(capsys, command, "first")
    assert "frist; did you mean runs/first? give a folder" in fails(capsys, "evaluate", "frist")
    assert "did you mean" not in fails(capsys, "evaluate", "x" * 5000)


def test_a_folder_of_runs_suggests_the_runs_in_it(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("runs/first/experiment.json", "runs/second/experiment.json", "runs/tuned/sweep.json"):
        Path(file).parent.mkdir(exist_ok=True, parents=True)
        Path(file).touch()
    for command in ("train", "lr", "evaluate", "resume"):
        assert "did you mean runs/first or runs/second?" in fails(capsys, command, "runs"), command
    assert "did you mean runs/first?" in fails(capsys, "train", "frist")
    for given in ("runs", "tuned"):
        assert "did you mean runs/tuned?" in fails(capsys, "sweep", given), given


def test_predict_with_the_run_last_says_the_right_order(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my run").mkdir()
    (tmp_path / "my run" / "experiment.json").touch()
    said = fails(capsys, "predict", "a.png", "my run", "b.png")
    assert "RUN must come first, got a.png; write `raytrain predict 'my run' a.png b.png`" in said
    said = fails(capsys, "export", "a.pt2", "my run")
    assert "RUN must come first, got a.pt2; write `raytrain export 'my run' a.pt2`" in said


def test_several_paths_of_one_name_are_all_suggested() -> None:
    assert hints.flags("--lr", ["optimizer.lr", "head.lr", "epochs"]) == ["optimizer.lr", "head.lr"]
    assert hints.flags("--augment", ["data.augment.flip", "data.root"]) == ["data.augment.flip"]
    assert not hints.flags("--num-workers", ["scaling.workers"]), "raytrain has no such workers"
    assert hints.flags("--seedd", ["data.folds.seed", "seed"]) == ["seed"]
    assert hints.flags("--head.lrr", ["optimizer.lr", "head.lr"]) == ["head.lr"]
