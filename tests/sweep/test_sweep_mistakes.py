"""Mistakes with `raytrain sweep` and `raytrain report`: one line, exit 2, before anything is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.commands import fails, no_runs, succeeds, without_ray

from raytrain import Digits
from raytrain.driver.plan import survey

__all__ = ["no_runs", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]
BASE = "MLP(hidden=(8,)), Digits(), epochs=4"


def sweep(folder: Path, rest: str, base: str = BASE) -> Path:
    file = folder / "tune.py"
    file.write_text(f"from raytrain import *\n\nsweep = Sweep(Experiment({base}), {rest})\n")
    return file


@pytest.mark.parametrize(
    ("rest", "flags", "message"),
    [
        ("()", [], "a sweep without axes, in Sweep"),
        ("(Grid('optimizer.lrr', (1,)),)", [], "unknown field 'optimizer.lrr', an axis of the sweep ("),
        ("(Grid('optimizer.lrr', (1,)),)", [], "tune.py:3); did you mean optimizer.lr? "),
        ("(Grid('optimizer.lr', (0.1, 1, 1.0)),)", [], "Grid('optimizer.lr') has the value 1.0 twice, in Sweep.axes"),
        ("(Grid('optimizer.lr', (-1,)),)", [], "axis optimizer.lr has a value that its field refuses"),
        ("(Grid('batch_size', (8,)),), objective='accuracy'", [], "no run reports 'accuracy', in Sweep.objective"),
        ("(Uniform('optimizer.lr', 0, 1),)", [], "trials must be set, because optimizer.lr is not a Grid"),
        ("(Choice('batch_size', (8,)),), scheduler=PBT(), trials=4", [], "PBT cannot change batch_size on the way"),
        ("(Grid('batch_size', (8,)),)", ["--batch_size", "9"], "--batch_size is what the sweep varies"),
        ("(Grid('batch_size', (8,)),)", ["--batch_sizes", "9"], "unknown flag --batch_sizes; did you mean"),
        ("(Grid('batch_size', (8, 9)),)", ["--concurrent", "1000"], "1000 trials at once do not fit"),
        ("(Grid('optimizer.lr', (1,)),)", ["--scaling.gpus_per_worker", "64"], "the run asks for 64 GPUs and"),
        ("(Grid('optimizer.lr', (1,)),)", ["--scaling.workers", "64"], "the run asks for 64 workers and"),
        (
            "(Grid('optimizer.lr', (1,)),)",
            ["--scaling.cpus_per_worker", "999"],
            "1 worker of 999 CPUs cannot be placed",
        ),
        (
            "(Grid('optimizer.lr', (1,)),)",
            ["--objective", "val_loss", "val_loss"],
            "of one, two or three different names",
        ),
        ("(Grid('optimizer.lr', (1,)),)", ["--trials", "0"], "trials = 0 is out of range"),
        ("(Grid('data.fraction', (0.5,)),)", [], "unknown field 'data.fraction'"),
    ],
)
def test_a_sweep_that_cannot_run(
    capsys: Capture, tmp_path: Path, no_runs: Path, rest: str, flags: list[str], message: str
) -> None:
    assert message in fails(capsys, "sweep", sweep(tmp_path, rest), "--out", no_runs, *flags)


@pytest.mark.parametrize(
    ("flags", "objective"),
    [
        ([], "highest val_accuracy"),
        (["--task.monitor", "val_loss"], "lowest val_loss"),
        (["--task.monitor", "val_loss", "--objective", "val_accuracy"], "highest val_accuracy"),
        (["--objective", "val_loss", "seconds"], "lowest val_loss"),
    ],
)
def test_flags_set_the_objective(
    capsys: Capture, tmp_path: Path, no_runs: Path, flags: list[str], objective: str
) -> None:
    file = sweep(tmp_path, "(Grid('optimizer.lr', (0.1, 0.2)),)")
    assert f"looking for the {objective}" in succeeds(capsys, "sweep", file, "--dry_run", "--out", no_runs, *flags)


def test_no_combination_of_values_makes_an_experiment(capsys: Capture, tmp_path: Path, no_runs: Path) -> None:
    rest = "(Grid('micro_batch_size', (7, 9)), Grid('batch_size', (64, 128)))"
    said = fails(capsys, "sweep", sweep(tmp_path, rest), "--out", no_runs)
    assert "micro_batch_size" in said
    rest = "(Grid('precision', ('fp16',)), Grid('parallel', (TensorParallel(),)))"
    said = fails(capsys, "sweep", sweep(tmp_path, rest), "--out", no_runs)
    assert "fp16's gradients cannot be scaled under TensorParallel" in said


def test_images_cannot_be_read_in_endless_ways(capsys: Capture, tmp_path: Path, no_runs: Path) -> None:
    images = tmp_path / "images"
    for kind in ("a", "b"):
        (images / kind).mkdir(parents=True)
    pixels = Digits().read(survey(Digits())[0]["train"], range(8))  # type: ignore[arg-type]
    from PIL import Image

    for number, pixel in enumerate(pixels):
        Image.fromarray(pixel[0]).convert("RGB").resize((40, 40)).save(images / "ab"[number % 2] / f"{number}.png")
    base = f"CNN(channels=(4,)), ImageFolder(root='{images}', crop=16)"
    said = fails(capsys, "sweep", sweep(tmp_path, "(Int('data.size', 20, 30),), trials=3", base), "--out", no_runs)
    assert "axis data.size decides what is read, and must have a finite number of values" in said


def test_files_that_are_no_sweeps(capsys: Capture, tmp_path: Path, no_runs: Path) -> None:
    assert "SWEEP must come first" in fails(capsys, "sweep")
    assert "no such sweep file" in fails(capsys, "sweep", tmp_path / "gone.py", "--out", no_runs)
    (tmp_path / "plain.py").write_text(f"from raytrain import *\nexperiment = Experiment({BASE})\n")
    assert "run it with `raytrain train" in fails(capsys, "sweep", tmp_path / "plain.py", "--out", no_runs)
    (tmp_path / "empty.py").write_text("from raytrain import *\n")
    assert "it defines no `sweep`" in fails(capsys, "sweep", tmp_path / "empty.py", "--out", no_runs)
    file = sweep(tmp_path, "(Grid('batch_size', (8,)),)")
    assert f"run it with `raytrain sweep {file}`" in fails(capsys, "train", file, "--out", no_runs)
    (tmp_path / "sweep.json").write_text(json.dumps({"trials": []}))
    assert "it holds no sweep" in fails(capsys, "sweep", tmp_path, "--out", no_runs)
    (tmp_path / "sweep.json").write_text("{")
    assert "it is not JSON" in fails(capsys, "sweep", tmp_path, "--out", no_runs)
    assert "this is a sweep, and each of its trials is a run" in fails(capsys, "evaluate", tmp_path)
    assert "it is not JSON" in fails(capsys, "report", tmp_path)
    assert "no run there" in fails(capsys, "report", tmp_path / "gone")


def test_a_dry_run_says_how_many_run_at_once_and_what_they_leave(
    capsys: Capture, tmp_path: Path, no_runs: Path
) -> None:
    file = sweep(tmp_path, "(Grid('precision', ('fp32', 'bf16')), Grid('batch_size', (8, 16, 32)))")
    said = succeeds(capsys, "sweep", file, "--out", no_runs, "--dry_run", "--concurrent", "1", "--keep", "2")
    assert "6 trials over precision, batch_size; looking for the highest val_accuracy" in said
    assert (
        "1 trial of 1 worker with" in said and "of checkpoints at most: those under way and the best 2 trials'" in said
    )
    file = sweep(tmp_path, "(Grid('batch_size', (8,)),)")
    assert " 1 trial over batch_size; looking for" in succeeds(capsys, "sweep", file, "--out", no_runs, "--dry_run")
    assert not no_runs.exists()
