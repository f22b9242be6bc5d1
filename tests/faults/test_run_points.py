"""Every write to the directory of a run goes wrong once: by a kill, a full disk or a broken one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.faults.writes import Writes, one_line, run
from helpers.commands import DIGITS
from helpers.times import without_times
from PIL import Image

from raytrain import order
from raytrain.checkpoint import layout
from raytrain.run import copies
from raytrain.run.metrics_log import read_metrics

pytestmark = pytest.mark.usefixtures("every_write_told")


def train(folder: Path, writes: Writes, epochs: int = 2, file: Path | str = DIGITS) -> int | None:
    small = ("--model.channels", 4) if file == DIGITS else ()  # the writes are tested, and not the model
    return run(
        writes,
        *("train", file, "--scaling.workers", 0, "--epochs", epochs, "--checkpoint.every_steps", 10, *small),
        *("--scaling.threads_per_worker", 1, "--out", folder, "--name", "run"),
    )


def export(folder: Path, writes: Writes, path: Path) -> int | None:
    return run(writes, "export", path, folder / "weights.safetensors")


def failing(folder: Path, sample: int | None) -> Path:
    """An experiment file; its loss fails on a sample, unless there is none."""
    folder.mkdir()
    (folder / "check.py").write_text(f"def check(ids):\n    assert {sample} not in ids.tolist()\n")
    (folder / "exp.py").write_text(
        "from dataclasses import dataclass\n"
        "from raytrain import CNN, Classification, Digits, Experiment, Scaling\n"
        "from check import check\n\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Classification):\n"
        "    def loss(self, model, batch):\n"
        "        check(batch.ids)\n"
        "        return super().loss(model, batch)\n\n"
        "experiment = Experiment(CNN((8,)), Digits(), task=Mine(), epochs=2, scaling=Scaling(workers=0))\n"
    )
    return folder / "exp.py"


def code(path: Path) -> dict[str, bytes]:
    found = copies.read(path)
    assert found
    return {name: source.text for name, source in found.named.items()}


def rows(path: Path) -> list[dict[str, Any]]:
    return [without_times(row) for row in read_metrics(path / "metrics.jsonl")[0]]


def weights(path: Path) -> dict[str, str]:
    """The checkpoint of the last step as its manifest has it: the size and hash of each file with tensors."""
    parts = json.loads((path / "checkpoints" / "step_00000046" / "manifest.json").read_text())["files"]
    return {name: part for name, part in parts.items() if name.endswith(".safetensors")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    assert train(folder, Writes(folder)) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for one epoch of two."""
    folder = tmp_path_factory.mktemp("half")
    assert train(folder, Writes(folder), epochs=1) == 0
    return folder / "run"


def recovered(path: Path, whole: Path, capsys: pytest.CaptureFixture[str], *more: object) -> None:
    """What was committed is still there, and the run, or a new one of that name where it had not begun, comes to the
    end of the undisturbed one."""
    committed = layout.committed(path / "checkpoints") if path.exists() else []
    kept = b""
    for name in committed:
        state = layout.load_state(path / "checkpoints" / name)
        kept = (path / "metrics.jsonl").read_bytes()[: state["metrics_bytes"]]
        assert len(kept) == state["metrics_bytes"]
    nothing = Writes(path.parent)
    status = run(nothing, "resume", path, "--epochs", 2, *more) if path.exists() else train(path.parent, nothing)
    said = capsys.readouterr().err
    assert status == 0 or (status == 2 and "is complete" in said), said
    assert rows(path) == rows(whole) and weights(path) == weights(whole)
    assert (path / "metrics.jsonl").read_bytes().startswith(kept), "no committed step was trained again"
    assert json.loads((path / "summary.json").read_text())["status"] == "completed"


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["one a line of code", "all"])
def every(request: pytest.FixtureRequest) -> bool:
    """Whether a fault comes at each write, or at the first one of each line of code."""
    return request.param


def disturb(
    kind: str,
    every: bool,
    folder: Path,
    command: Callable[[Path, Writes], int | None],
    whole: Path,
    capsys: pytest.CaptureFixture[str],
    again: Callable[[Path], tuple[object, ...]] = lambda path: (),
) -> int:
    """Run a command once for each of its writes, which then goes wrong; return how many there are.

    Args:
        again: what to add to `resume` afterwards, for a run's directory.
    """
    calm = Writes(folder)
    assert command(folder, calm) == 0
    shutil.rmtree(folder / "run")
    for at, place in enumerate(calm.places):
        if every or place not in calm.places[:at]:
            here = folder / f"{kind}-{at}"
            here.mkdir()
            writes = Writes(here, kind, at)
            status = command(here, writes)
            print(f"{kind} at write {at}, {writes.places[at]}: exit status {status}")
            one_line(capsys, status)
            recovered(here / "run", whole, capsys, *again(here / "run"))
            shutil.rmtree(here)
    return len(calm.places)


@pytest.mark.parametrize("kind", ["kill", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("ENOSPC", "EIO"))])
def test_a_training_survives_a_fault_at_each_write(
    kind: str, every: bool, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert disturb(kind, every, tmp_path, train, whole, capsys) > 100


@pytest.mark.parametrize("kind", ["ENOSPC", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("kill", "EIO"))])
def test_a_resumed_run_survives_a_fault_at_each_write(
    kind: str, every: bool, whole: Path, half: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def resume(folder: Path, writes: Writes) -> int | None:
        shutil.copytree(half, folder / "run")
        return run(writes, "resume", folder / "run", "--epochs", 2)

    assert disturb(kind, every, tmp_path, resume, whole, capsys) > 50


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["kill", "ENOSPC", "EIO"])
def test_code_replacement_survives_a_fault_at_each_write(
    kind: str, every: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = int(order.samples(0, 0, 1438, np.array([15 * 64]))[0])  # which comes in step 16 first
    broken, fixed = failing(tmp_path / "broken", sample), failing(tmp_path / "fixed", None)
    assert train(tmp_path, Writes(tmp_path), file=broken) == 1
    assert "(check.py:2)" in capsys.readouterr().err.replace(f"{broken.parent}/", "")
    failed, folder = Path(shutil.move(tmp_path / "run", tmp_path / "failed")), tmp_path / "runs"
    assert train(tmp_path, Writes(tmp_path), file=fixed) == 0
    whole = Path(shutil.move(tmp_path / "run", tmp_path / "whole"))
    old, new, seen = code(failed), code(whole), set()

    def resume(folder: Path, writes: Writes) -> int | None:
        shutil.copytree(failed, folder / "run")
        return run(writes, "resume", folder / "run", "--experiment", fixed)

    def again(path: Path) -> tuple[object, ...]:
        found = code(path)
        assert found in (old, new), "the old code or the new, and no mixture"
        seen.add(found == new)
        return () if found == new else ("--experiment", fixed)

    folder.mkdir()
    assert disturb(kind, every, folder, resume, whole, capsys, again) > 60
    assert seen == {True, False}


def predict(folder: Path, writes: Writes, path: Path) -> int | None:
    images = path.parent / "images"
    if not images.exists():
        images.mkdir()
        for number in range(3):
            Image.new("L", (8, 8), 80 * number).save(images / f"{number}.png")
    return run(writes, "predict", path, images, "--out", folder / "answers.csv")


@pytest.mark.parametrize("kind", ["kill", "ENOSPC", "EIO"])
@pytest.mark.parametrize(("command", "name"), [(export, "weights.safetensors"), (predict, "answers.csv")])
def test_an_output_that_fails_leaves_the_file_that_was_there(
    command: Callable[[Path, Writes, Path], int | None],
    name: str,
    kind: str,
    half: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def content() -> list[bytes]:
        return [file.read_bytes() for file in half.rglob("*") if file.is_file()]

    file, before = tmp_path / name, content()
    assert command(tmp_path, Writes(tmp_path), half) == 0
    written = file.read_bytes()
    cards = {one.name: one.read_bytes() for one in tmp_path.glob("*.md")}  # of an export, beside its file
    assert len(cards) == (command is export)
    at = 0
    while True:
        file.write_bytes(b"what was there")
        writes = Writes(tmp_path, kind, at)
        status = command(tmp_path, writes, half)
        if len(writes.places) <= at:
            break
        one_line(capsys, status)
        left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert left.pop(file.name) in (b"what was there", written)
        assert all(left.pop(card) == text for card, text in cards.items())
        assert not left or (kind == "kill" and all(path.startswith(".") for path in left))
        for path in left:
            (tmp_path / path).unlink()
        at += 1
    assert status == 0 and at >= 4 and file.read_bytes() == written and content() == before


def test_an_evaluation_writes_nothing_into_the_run(half: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags in ((), ("--json",), ("--checkpoint", "last", "--split", "train")):
        writes = Writes(half.parent)
        assert run(writes, "evaluate", half, *flags) == 0
        assert writes.places == []
    one_line(capsys, 0)
