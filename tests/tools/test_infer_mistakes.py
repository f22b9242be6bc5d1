"""Mistakes that can be made with a run: one line each, and nothing is started or written."""

from __future__ import annotations

import inspect
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.commands import copied, digit_files, fails, finished, make_run, succeeds, without_ray
from torch import nn

from raytrain import CNN, MLP, Data, Digits, Experiment, Index, Model, Run, Task, cli
from raytrain.run.lock import Lock
from raytrain.tools import listing
from raytrain.tools.listing import images_at

__all__ = ["copied", "digit_files", "finished", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]


def test_mistakes_of_predict(finished: Run, capsys: Capture, digit_files: Path, tmp_path: Path) -> None:
    run, empty, text = finished.path, tmp_path / "empty", tmp_path / "text.png"
    empty.mkdir()
    text.write_text("no image")
    (tmp_path / "folder.csv").mkdir()
    succeeds(capsys, "pack", digit_files, tmp_path / "pack", "--data.val_fraction", 0.5)
    for arguments, message in (
        ([tmp_path / "missing.png"], f"no such image, {tmp_path}/missing.png"),
        ([empty], f"no images there, {empty}"),
        ([tmp_path / "pack"], f"predict reads image files, and this is a pack, {tmp_path}/pack; give the images that"),
        (
            [digit_files, text],
            f"cannot read sample: it is not an image, or its format is unknown, {text}; repair it, leave "
            "it out, or give --out a folder",
        ),
        ([], "no images are given"),
        ([digit_files, "--out", tmp_path / "p.xlsx"], "unknown file type, "),
        ([digit_files, "--out", tmp_path / "missing" / "p.csv"], "the file cannot be written: there is no folder "),
        ([digit_files, "--out", text / "p.csv"], "the file cannot be written: "),
        ([digit_files, "--out", tmp_path / "folder.csv"], "the file cannot be written: it is a folder"),
        ([digit_files, "--out", "/proc/p.csv"], "the file cannot be written: "),
    ):
        assert message in fails(capsys, "predict", run, *arguments)
    value = Experiment(model=CNN(channels=(2,)), data=Digits(), task=Task())
    other = make_run(tmp_path / "other", value, steps=2)
    assert "this run's task is Task" in fails(capsys, "predict", other.path, digit_files)


def test_hidden_files_and_names_that_are_not_text(finished: Run, capsys: Capture, digit_files: Path) -> None:
    (digit_files / ".hidden").mkdir()
    for name in ("._00.png", ".hidden/x.png"):
        (digit_files / name).write_bytes(b"no image")
    assert len(succeeds(capsys, "predict", finished.path, digit_files).splitlines()) == 12
    shutil.copyfile(digit_files / "00.png", os.fsencode(digit_files) + b"/\xff.png")
    assert "its name is not UTF-8" in fails(capsys, "predict", finished.path, digit_files)


def test_images_of_other_kinds_are_counted_on_stderr(finished: Run, capsys: Capture, digit_files: Path) -> None:
    other = digit_files.parent / "other"
    other.mkdir()
    for name in ("a.gif", "b.avif", "c.jfif", "d.txt", ".hidden"):
        (other / name).write_bytes(b"x")
    assert "no images there; left out 3 images of kinds that are not read: " in fails(
        capsys, "predict", finished.path, other
    )
    other.rename(digit_files / "other")
    assert cli.run(["predict", str(finished.path), str(digit_files), str(digit_files / "00.png")]) == 0
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 13
    names = ", ".join(f"{digit_files}/other/{name}" for name in ("a.gif", "b.avif", "c.jfif"))
    assert said.err == f"left out 3 images of kinds that are not read: {names}\n"
    assert listing.listed([str(digit_files)]).left_out == tuple(listing.left_out([str(digit_files)]))


def test_linked_folders_are_followed_unless_they_lead_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.png").touch()
    for link, target in {"a/to_b": "../b", "b/to_a": "../a", "a/up": "..", "a/self": "self", "a/x.png": "none"}.items():
        (tmp_path / link).symlink_to(target)
    monkeypatch.chdir(tmp_path)
    assert images_at(Path("a")) == ["a/a.png", "a/to_b/b.png"]
    assert images_at(Path()) == ["a/a.png", "a/to_b/b.png", "b/b.png", "b/to_a/a.png"]


def test_commands_and_urls(finished: Run, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"file://{finished.path}"
    assert "an experiment must be a file of this machine, got a URL, file:///" in fails(capsys, "train", url)
    said = succeeds(capsys, "lr", url, "--steps", 10)
    assert "-lr.png" in said and (tmp_path / f"{Run(url).path.name}-lr.csv").is_file(), said


@dataclass(frozen=True)
class Wide(Data):
    """Black images that are twice as wide as high."""

    def index(self) -> dict[str, Index]:
        return {split: Index(np.zeros(4, np.int64), ("a", "b"), (1, 4, 8), split) for split in ("train", "val")}

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        return np.zeros((len(samples), *index.shape), np.uint8)


def test_predict_says_that_it_prepares_squares_alone(capsys: Capture, digit_files: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "wide", Experiment(model=MLP(hidden=()), data=Wide()), steps=2)
    assert json.loads(succeeds(capsys, "evaluate", run.path, "--json"))["count"] == 4
    said = fails(capsys, "predict", run.path, digit_files)
    assert "predict prepares square images, and this run's are 4x8" in said


def test_mistakes_of_export(finished: Run, capsys: Capture, tmp_path: Path) -> None:
    assert "unknown file type" in fails(capsys, "export", finished.path, tmp_path / "model.bin")
    assert "unknown file type" in fails(capsys, "export", finished.path, tmp_path / "model")
    (tmp_path / "file").touch()
    for suffix in (".pth", ".safetensors", ".pt2", ".onnx"):
        for place in (tmp_path / "missing", tmp_path / "file", Path("/proc")):
            said = fails(capsys, "export", finished.path, place / f"model{suffix}")
            assert (
                "the file cannot be written: " in said and f"{place}/model{suffix}; give a file in an existing" in said
            )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@dataclass(frozen=True)
class Branching(Model):
    on_values: bool = True

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        on_values = self.on_values

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.head = nn.Linear(64, classes)

            def forward(self, images: torch.Tensor) -> torch.Tensor:
                if on_values:
                    return self.head(images.flatten(1)) * (2 if float(images.sum()) > 0 else 1)
                return self.head(images.flatten(1)) * (2 if len(images) % 2 == 0 else 1)

        return Net()


def test_untraceable_model_exports_as_weights_only(tmp_path: Path, capsys: Capture) -> None:
    run = make_run(tmp_path / "run", Experiment(model=Branching(), data=Digits()), steps=2)
    said = fails(capsys, "export", run.path, tmp_path / "model.pt2")
    line = inspect.getsourcelines(Branching.build)[1] + 10
    assert "torch.export cannot trace the model: " in said and f"{__file__}:{line}; correct what it names" in said
    succeeds(capsys, "export", run.path, tmp_path / "model.pth")


def test_a_model_that_looks_at_the_size_of_the_batch_is_told_so(tmp_path: Path, capsys: Capture) -> None:
    run = make_run(tmp_path / "run", Experiment(model=Branching(on_values=False), data=Digits()), steps=2)
    said = fails(capsys, "export", run.path, tmp_path / "model.pt2")
    assert "your code specialized it to be a constant" in said and "in Branching; correct what it names" in said


@pytest.mark.parametrize("arguments", [["evaluate"], ["predict", "x.png"], ["export", "x.pth"], ["resume"]])
def test_every_command_says_that_a_folder_is_no_run(capsys: Capture, tmp_path: Path, arguments: list[str]) -> None:
    command, *rest = arguments
    assert "no run there (it has no experiment.json)" in fails(capsys, command, tmp_path, *rest)


@pytest.mark.parametrize("part", ["model.safetensors", "optimizer.pt", "state.json"])
def test_a_checkpoint_with_a_flipped_bit_is_refused(
    copied: Run, capsys: Capture, tmp_path: Path, digit_files: Path, part: str
) -> None:
    file = copied.checkpoints / "step_00000030" / part
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    for arguments in (["evaluate", copied.path], ["export", copied.path, tmp_path / "x.pth"]):
        said = fails(capsys, *arguments)
        assert f"the checkpoint does not verify: {part} has another sha256, {file.parent}; remove that folder" in said
    assert "does not verify" in fails(capsys, "predict", copied.path, digit_files)
    shutil.rmtree(file.parent)
    assert "step_00000015 on val" in succeeds(capsys, "evaluate", copied.path)
    shutil.rmtree(copied.checkpoints)
    assert "the run has no checkpoint that verifies" in fails(capsys, "evaluate", copied.path)


def test_resume_of_a_complete_run_delivers_what_a_logger_lacks(copied: Run, capsys: Capture) -> None:
    run = copied.path
    (run / "last.json").write_text(json.dumps(json.loads((run / "last.json").read_text()) | {"step": 30}))
    said = succeeds(capsys, "resume", run, "--log", "csv")
    assert "the run is complete at 2 epochs; CSVLogger has taken the rows that were lacking" in said
    assert (run / "logs" / "csv" / "step.csv").read_text().count("\n") > 15
    assert "the run is complete at 2 epochs" in fails(capsys, "resume", run, "--log", "csv")


def test_mistakes_of_resume(copied: Run, capsys: Capture) -> None:
    run = copied.path
    assert "the run is complete at 2 epochs" in fails(capsys, "resume", run)
    for flag, path in (("--optimizer.lr", "optimizer.lr"), ("--seed", "seed"), ("--model.dropout", "model.dropout")):
        said = fails(capsys, "resume", run, "--epochs", "3", flag, "0.5" if flag != "--seed" else "5")
        assert f"a resumed run cannot change {path}, {run}; resume takes --epochs" in said
    said = fails(capsys, "resume", run, "--epochs", "3", "--lr_scaling", "linear", "--lr_batch_size", "32")
    assert "a resumed run cannot change lr_scaling, lr_batch_size" in said
    (run / "summary.json").write_text(json.dumps(Run(run).summary | {"best_epoch": 1}))
    said = fails(capsys, "resume", run, "--epochs", "3", "--patience", "1")
    assert "it stopped early at 2 epochs, 1 of them without a better val_accuracy" in said
    assert "train longer, with patience 2 or more, or None" in said
    said = fails(capsys, "resume", run, "--epochs", "2", "--patience", "1")
    assert "the run is complete at 2 epochs, and it stopped early at" in said
    assert "train longer, with epochs above 2 and with patience 2 or more, or None" in said
    for patience in ("2", "None"):
        succeeds(capsys, "resume", run, "--epochs", "3", "--patience", patience, "--dry_run")
    assert "unknown flag --epoch; did you mean --epochs?" in fails(capsys, "resume", run, "--epoch", "3")


def test_a_resume_does_not_cut_a_run_below_what_it_has_trained(copied: Run, capsys: Capture) -> None:
    run = copied.path
    (run / "summary.json").unlink()  # the driver was killed
    file = copied.checkpoints / "step_00000030" / "state.json"  # of epochs of 23 steps
    state = json.loads(file.read_text())
    file.write_text(json.dumps(state | {"progress": {**state["progress"], "epoch": 1, "epoch_samples": 448}}))
    said = fails(capsys, "resume", run, "--epochs", "1")
    assert f"epochs = 1, and the run has come to epoch 2, {run}; give --epochs 2 or more" in said
    said = fails(capsys, "resume", run, "--steps", "29")
    assert f"steps = 29, and the run has come to step 30, {run}; give --steps 30 or more" in said
    for flag, most in (("--epochs", "2"), ("--epochs", "3"), ("--steps", "30")):
        succeeds(capsys, "resume", run, flag, most, "--dry_run")


def test_a_resume_extends_a_run_by_steps_or_hours(copied: Run, capsys: Capture) -> None:
    run, plain = copied.path, {"status": "completed", "epochs": 2, "steps": 46, "seconds": 7200.0}

    def ended(**more: object) -> None:
        (run / "summary.json").write_text(json.dumps(plain | more))

    ended()
    said = fails(capsys, "resume", run, "--steps", "46")
    assert "the run is complete at 46 steps" in said and "train longer, with steps above 46" in said
    assert "60 steps (2.61 epochs" in succeeds(capsys, "resume", run, "--steps", "60", "--dry_run")
    ended(steps=30, epochs=1, out_of_time=True)
    said = fails(capsys, "resume", run, "--max_hours", "1.5")
    assert "it has trained for 2 hours, and max_hours is 1.5" in said and "with max_hours above 2 or None" in said
    for hours in ("2.5", "None"):
        succeeds(capsys, "resume", run, "--max_hours", hours, "--dry_run")
    ended(steps=30, epochs=1, stalled=3, best_epoch=1)
    said = fails(capsys, "resume", run, "--patience", "3", "--validate_every_steps", "5")
    assert (
        "it stopped early at step 30, 3 validations without a better val_accuracy" in said
        and "with patience 4 or more" in said
    )
    succeeds(capsys, "resume", run, "--patience", "4", "--validate_every_steps", "5", "--dry_run")
    assert "unexpected argument 'stray'" in fails(capsys, "resume", run, "stray")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert "3 x 23 steps" in succeeds(capsys, "resume", run, "--epochs", "3", "--dry_run")
    (run / "environment.json").write_text(json.dumps({"data_fingerprint": {"train": "other", "val": "other"}}))
    assert "the training data is not what the run began with" in fails(capsys, "resume", run, "--epochs", "3")
    changed = {path for path in run.rglob("*") if before.get(path) != path.stat().st_mtime_ns}
    assert {path.name for path in changed} <= {"environment.json", "lock"}


def test_threads_follow_the_workers_unless_deterministic(copied: Run, capsys: Capture) -> None:
    file = copied.path / "experiment.json"
    kept = json.loads(file.read_text())
    kept["scaling"] |= {"workers": 1, "threads_per_worker": 17}
    for deterministic in (False, True):
        file.write_text(json.dumps(kept | {"deterministic": deterministic}))
        said = succeeds(capsys, "resume", copied.path, "--epochs", "3", "--scaling.workers", "2", "--dry_run")
        assert ("17 threads" in said) == deterministic


def test_a_run_that_is_still_going_is_not_resumed(copied: Run, capsys: Capture) -> None:
    lock = Lock(copied.path)
    said = fails(capsys, "resume", copied.path, "--epochs", "3")
    lock.release()
    assert "the run is still going (process " in said
