"""Mistakes in models and data: one line each, before anything is started or written."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import fails, no_runs, succeeds, without_ray
from PIL import Image

__all__ = ["no_runs", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]


def experiment(folder: Path, model: str = "MLP()", data: str = "Digits()", before: str = "", rest: str = "") -> Path:
    lines = ["from raytrain import *", "from dataclasses import dataclass", before]
    (folder / "exp.py").write_text("\n".join([*lines, f"experiment = Experiment({model}, {data}, {rest})"]))
    return folder / "exp.py"


# The length of a run


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--steps", "100", "--validate_every_steps", "200"),
            "validate_every_steps is 200 and the run has 100 steps, in Experiment; use --validate_every_steps 50, or",
        ),
        (("--epochs", "2", "--validate_every_steps", "47"), "validate_every_steps is 47 and the run has 46 steps"),
        (("--steps", "0"), "steps = 0 is out of range, in Experiment; give a value of at least 1"),
        (("--steps", "many"), "--steps must be None or a whole number, got 'many'"),
        (("--max_hours", "0"), "max_hours = 0.0 is out of range, in Experiment; give a value above 0"),
        (("--checkpoint.every_minutes", "-1"), "every_minutes = -1.0 is out of range"),
        (("--max_steps", "5"), "unknown flag --max_steps; did you mean --steps?"),
        (("--eval_steps", "5"), "unknown flag --eval_steps; did you mean --validate_every_steps?"),
        (("--validate_every_step", "5"), "unknown flag --validate_every_step; did you mean --validate_every_steps?"),
    ],
)
def test_a_length_that_cannot_be(
    capsys: Capture, tmp_path: Path, no_runs: Path, flags: tuple[str, ...], message: str
) -> None:
    assert message in fails(capsys, "train", experiment(tmp_path), *flags, "--out", no_runs)


def test_steps_take_precedence_over_the_epochs_of_a_file(capsys: Capture, tmp_path: Path, no_runs: Path) -> None:
    file = experiment(tmp_path, rest="epochs=3")
    said = succeeds(capsys, "train", file, "--steps", "50", "--dry_run", "--out", no_runs)
    assert "50 steps (2.17 epochs of 23)" in said and "3 x 23 steps" not in said
    said = succeeds(capsys, "train", file, "--steps", "1", "--dry_run", "--out", no_runs)
    assert "1 step (0.0435 epochs of 23)" in said
    said = succeeds(capsys, "train", experiment(tmp_path, rest="steps=50"), "--steps", "None", "--dry_run")
    assert "1 x 23 steps" in said


def test_a_schedule_that_takes_whole_epochs_only_is_named(capsys: Capture, tmp_path: Path, no_runs: Path) -> None:
    whole = """
@dataclass(frozen=True)
class Whole(Schedule):
    def factor(self, step, steps_per_epoch, epochs):
        return 1 / len(range(epochs))
"""
    file = experiment(tmp_path, before=whole, rest="schedule=Whole()")
    succeeds(capsys, "train", file, "--steps", "46", "--dry_run", "--out", no_runs)
    said = fails(capsys, "train", file, "--steps", "47", "--out", no_runs)
    assert "the schedule fails at step 0 of 47: TypeError: 'float' object cannot be interpreted as an integer" in said
    assert "exp.py:7" in said


# Models


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("nn.Sequential(nn.Flatten(), nn.Linear(64, 3))", "it gives [1, 3] for one sample and the data has 10 classes"),
        (
            "nn.Sequential(nn.Flatten(), nn.Linear(784, classes))",
            "the model cannot take a sample of this data: Runtime",
        ),
        ("nn.Conv2d(3, classes, 1)", "the model cannot take a sample of this data: RuntimeError"),
        ("nn.Flatten()", "it gives [1, 64]"),
        ("nn.Linear(classes)", "Net.build fails: TypeError: Linear.__init__() missing 1 required positional argument"),
        ("undefined", "Net.build fails: NameError: name 'undefined' is not defined"),
    ],
)
def test_a_model_of_ones_own_that_does_not_fit(
    capsys: Capture, tmp_path: Path, no_runs: Path, body: str, message: str
) -> None:
    net = f"""
from torch import nn
@dataclass(frozen=True)
class Net(Model):
    def build(self, sample, classes):
        return {body}
"""
    assert message in (said := fails(capsys, "train", experiment(tmp_path, "Net()", before=net), "--out", no_runs))
    assert f"{tmp_path}/exp.py:" in said


def test_a_model_with_as_many_outputs_as_data_without_classes(capsys: Capture, tmp_path: Path, no_runs: Path) -> None:
    net = """
from torch import nn
@dataclass(frozen=True)
class Net(Model):
    def build(self, sample, classes):
        return nn.Conv2d(3, classes, 1)
"""
    folder(tmp_path / "images", {"train": ("a",)})
    names = [path.relative_to(tmp_path) for path in sorted((tmp_path / "images").rglob("*.*"))]
    (tmp_path / "t.csv").write_text("\n".join(["path,age", *(f"{name},{age}" for age, name in enumerate(names))]))
    data = f"Manifest(root='{tmp_path}/t.csv', target=('age',), size=8)"
    file = experiment(tmp_path, "Net()", data, before=net, rest="task=Regression()")
    said = fails(capsys, "train", file, "--out", no_runs)
    assert "; the data names no classes, so let build(sample, classes) give as many outputs as the task wants" in said


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "Torchvision(name='resnet1')",
            "no model 'resnet1' for classification or segmentation, in model.name; did you mean resnet18?",
        ),
        ("Torchvision(weights='gone.pth')", "no such weights file, gone.pth"),
        ("Torchvision(weights='{}/exp.py')", "the weights do not fit: "),
        ("Torchvision(name='vit_b_16')", "the model cannot take a sample of this data: AssertionError: Wrong image"),
        ("Torchvision(name='vgg11'), batch_size=7, scaling=Scaling(workers=2)", "batch_size 7 does not divide"),
    ],
)
def test_a_model_of_torchvision_that_cannot_be_had(
    capsys: Capture, tmp_path: Path, no_runs: Path, model: str, message: str
) -> None:
    folder(tmp_path / "images", {"train": ("a", "b"), "val": ("a", "b")})
    model, _, rest = model.format(tmp_path).partition("), ")
    file = experiment(tmp_path, f"{model.rstrip(')')})", f"ImageFolder(root='{tmp_path}/images', crop=64)", rest=rest)
    assert message in fails(capsys, "train", file, "--out", no_runs)


def test_a_frozen_model_has_nothing_to_unfreeze(capsys: Capture, tmp_path: Path, no_runs: Path) -> None:
    folder(tmp_path / "images", {"train": ("a", "b"), "val": ("a", "b")})
    file = experiment(
        tmp_path, "Torchvision(freeze=True)", f"ImageFolder(root='{tmp_path}/images', crop=64)", rest="unfreeze_epoch=1"
    )
    said = fails(capsys, "train", file, "--out", no_runs)
    assert "all layers but the last stay frozen throughout, in Torchvision; leave out --unfreeze_epoch" in said


def test_grey_images_for_a_colour_model(capsys: Capture, tmp_path: Path, no_runs: Path) -> None:
    said = fails(capsys, "train", experiment(tmp_path, "Torchvision()"), "--out", no_runs)
    assert "torchvision's resnet18 takes images of 3 channels and these have 1" in said


# Tasks


def test_a_monitored_metric_without_a_direction(capsys: Capture, tmp_path: Path, no_runs: Path) -> None:
    graded = """
@dataclass(frozen=True)
class Graded(Classification):
    monitor: str = "val_error"
    def results(self, sums):
        found = super().results(sums)
        return found | {"error": 1 - found["accuracy"]}
"""
    said = fails(capsys, "train", experiment(tmp_path, before=graded, rest="Graded()"), "--out", no_runs)
    assert f"no direction is declared for task.monitor 'val_error', in Graded ({tmp_path}/exp.py:" in said
    assert 'write `directions = {"error": "min"}` into class Graded, or "max"' in said
    said = fails(capsys, "train", experiment(tmp_path), "--task.monitor", "val_acuracy", "--out", no_runs)
    assert "did you mean val_accuracy? take one of val_loss, val_accuracy, val_top5_accuracy" in said


# Data


def folder(root: Path, splits: dict[str, tuple[str, ...]], count: int = 2) -> Path:
    for split, classes in splits.items():
        for name in classes:
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.jpg")
    return root


SOURCE = """
import numpy as np
@dataclass(frozen=True)
class Mine(Data):
    def index(self):
        labels = np.arange(40) % 4
        return {{split: Index({labels}, tuple("abcd"), (1, 8, 8), split) for split in ("train", "val")}}
    def read(self, index, samples):
        return {images}
"""


@pytest.mark.parametrize(
    ("labels", "images", "message"),
    [
        (
            "labels",
            "np.random.rand(len(samples), 1, 8, 8).astype(np.float32)",
            "must return uint8 [1, 1, 8, 8], got float32 [1, 1, 8, 8] for sample 0, train, in Mine.read ({}:10); "
            "scale values to 0 to 255 and round them",
        ),
        ("labels", "np.zeros((len(samples), 8, 8), np.uint8)", "got uint8 [1, 8, 8] for sample 0, train"),
        ("labels", "samples / index.rows", "Mine.read of sample 0, train, fails: TypeError: unsupported operand"),
        ("labels - 0.5", "None", "train: labels must be int64 [n], got float64 [40], in Mine.index ({}:7); give"),
        ("labels + 1", "None", "train: labels must be 0 to 3, the 4 classes, got 4 (sample 3)"),
        ("[1, 2][3]", "None", "Mine.index fails: IndexError: list index out of range, {}:9; correct it"),
    ],
)
def test_a_source_of_ones_own_whose_data_is_not_what_it_declares(
    capsys: Capture, tmp_path: Path, no_runs: Path, labels: str, images: str, message: str
) -> None:
    file = experiment(tmp_path, "CNN()", "Mine()", before=SOURCE.format(labels=labels, images=images))
    assert message.format(file) in fails(capsys, "train", file, "--out", no_runs)


BOTH = {"train": ("ants", "bees"), "val": ("ants", "bees")}


def garbage(file: Path) -> None:
    file.write_bytes(b"this is no image at all")


def empty(file: Path) -> None:
    file.write_bytes(b"")


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-300])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [(garbage, "it is not an image"), (empty, "the file is empty"), (truncated, "Image is incomplete or truncated")],
)
@pytest.mark.parametrize("split", ["train", "val"])
def test_an_image_that_cannot_be_read_is_named(
    capsys: Capture, tmp_path: Path, no_runs: Path, damage: Callable[[Path], None], reason: str, split: str
) -> None:
    root = folder(tmp_path / "images", BOTH)
    damage(root / split / "bees" / "1.jpg")
    file = experiment(tmp_path, "CNN()", f"ImageFolder(root='{root}', size=32, crop=None)")
    said = fails(capsys, "train", file, "--out", no_runs)
    assert f"cannot read sample: {reason}" in said and f"{root}/{split}/bees/1.jpg; repair or remove it" in said
    said = succeeds(capsys, "train", file, "--out", no_runs, "--dry_run", "--data.on_bad_sample", "skip")
    assert f"1 of {split} cannot be read: {root}/{split}/bees/1.jpg" in said


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ({}, "no such folder, {}/images"),
        ({"": ()}, "no class folders with images there, {}/images; give a folder with"),
        ({"train": ("ants",), "val": ()}, "no class folders with images there"),
        ({"train": ("ants", "bees"), "val": ("ants",)}, "different classes: val lacks bees, {}/images"),
        ({"train": ("ants",), "val": ("ants", "wasps")}, "different classes: train lacks wasps"),
        ({"train": ("ants", "bees"), "val": ("bees", "cats")}, "val lacks ants and train lacks cats"),
        ({"val": ("ants", "bees")}, "no train folder there"),
        ({"train": ("ants", "bees", "-empty")}, "a class folder has no images, {}/images/train/-empty; remove"),
    ],
)
def test_a_folder_of_images_that_does_not_hold_a_data_set(
    capsys: Capture, tmp_path: Path, no_runs: Path, splits: dict[str, tuple[str, ...]], message: str
) -> None:
    root = tmp_path / "images"
    for split, classes in splits.items():
        (root / split).mkdir(parents=True, exist_ok=True)
        folder(root, {split: tuple(name for name in classes if name != "-empty")})
        if "-empty" in classes:
            (root / split / "-empty").mkdir()
    file = experiment(tmp_path, "CNN()", f"ImageFolder(root='{root}')")
    assert message.format(tmp_path) in fails(capsys, "train", file, "--out", no_runs)
    assert "data.root is not set, in ImageFolder" in fails(capsys, "train", file, "--out", no_runs, "--data.root", "")


def mnist(root: Path, damage: str = "") -> Path:
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 20), ("t10k", 10)):
        images = struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + bytes(count * 784)
        labels = struct.pack(">4B1I", 0, 0, 8, 1, count) + bytes(range(10)) * (count // 10)
        if damage == "magic":
            images = b"\0\0\x0d\3" + images[4:]
        if damage == "labels":
            labels = labels[:-1] + b"\x0a"
        packed = gzip.compress(images)
        (raw / f"{part}-images-idx3-ubyte.gz").write_bytes(packed[: len(packed) // 2] if damage == "gz" else packed)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(labels[:-1] if damage == "short" else labels)
    return root


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("gz", "the file is broken: truncated or damaged gzip"),
        ("magic", "the file is broken: IDX magic 00000d03 instead of 00000803"),
        ("short", "the file is broken: its length 27 does not fit its header"),
        ("labels", "the file is broken: label 10 is above 9"),
    ],
)
def test_a_broken_mnist_file_is_named(
    capsys: Capture, tmp_path: Path, no_runs: Path, damage: str, message: str
) -> None:
    file = experiment(tmp_path, "SimpleModel()", f"MNIST(root='{mnist(tmp_path / damage, damage)}')")
    said = fails(capsys, "train", file, "--out", no_runs)
    assert message in said and f"{tmp_path}/{damage}/MNIST/raw/train-" in said
    good = mnist(tmp_path / "good")
    assert "20 train, 10 val" in succeeds(capsys, "train", file, "--out", no_runs, "--dry_run", "--data.root", good)
    assert "no MNIST files there" in fails(capsys, "train", file, "--out", no_runs, "--data.root", tmp_path / "missing")


# Precision


def test_tf32_on_cpus(capsys: Capture, tmp_path: Path, no_runs: Path) -> None:
    flags = ["--scaling.gpus_per_worker", "0", "--precision", "tf32"]
    said = fails(capsys, "train", experiment(tmp_path), "--out", no_runs, *flags)
    assert "tf32 needs a GPU of compute capability 8.0 or higher, and the workers are on CPUs, in precision;" in said


# Parallel strategies

_TWO, _FOUR = (["--scaling.workers", number, "--scaling.cpus_per_worker", "0.25"] for number in ("2", "4"))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--parallel.strategy", "ddpp"],
            "no parallel strategy 'ddpp', in parallel.strategy; did you mean ddp",
        ),
        (["--parallel.strategy"], "there is no parallel strategy ''"),
        (
            ["--parallel.strategy=data_parallel", "--scaling.workers", "2"],
            "DataParallel is one worker",
        ),
        (["--parallel.strategy", "model_parallel", "--parallel.parts", "9"], "9 parts need as many layers"),
        (["--parallel.strategy", "model_parallel", "--parallel.parts", "1"], "parts = 1 is out of range"),
        (
            ["--parallel.strategy", "fsdp", "--parallel.parts", "2"],
            "--parallel.parts belongs to another parallel strategy; use it with --parallel.strategy model_parallel",
        ),
        (["--parallel.strategy", "fsdp", "--parallel.party", "2"], "unknown flag --parallel.party"),
        (["--parallel.strategy", "fsdp", "--parallel.cpu_offload"], "nothing to offload from on CPUs"),
        (
            ["--parallel.strategy", "fsdp", "--parallel.shard_over", "3", "--scaling.workers", "2"],
            "2 workers cannot be divided into sets of 3",
        ),
        (
            ["--parallel.strategy", "pipeline"],
            "1 worker cannot form pipelines of 2, in parallel.stages; use",
        ),
        (["--parallel.strategy", "pipeline", *_FOUR, "--parallel.stages", "3"], "4 workers cannot form pipelines of 3"),
        (
            ["--parallel.strategy", "pipeline", *_FOUR],
            "4 stages need as many blocks with parameters, and Sequential has: 1, 3, 5, in parallel.stages",
        ),
        (
            ["--parallel.strategy", "pipeline", *_TWO, "--micro_batch_size", "64"],
            "1 micro-batches per step do not keep 2 workers of a pipeline busy: 1f1b takes at least 2",
        ),
        (["--parallel.strategy", "tensor"], "1 worker cannot be divided into replicas of 2, in parallel.shards"),
        (
            ["--parallel.strategy", "tensor", *_FOUR, "--parallel.shards", "3"],
            "4 workers cannot be divided into replicas of 3",
        ),
        (["--parallel.strategy", "tensor", *_TWO, "--precision", "fp16"], "fp16's gradients cannot be scaled under Te"),
        (["--parallel.sync_batchnorm", "--scaling.gpus_per_worker", "0"], "SyncBatchNorm does not work on CPUs"),
        (["--parallel.reduction", "shared", "--parallel.compression", "bf16"], "in shared memory are not compressed"),
    ],
)
def test_a_strategy_that_does_not_suit(
    capsys: Capture, tmp_path: Path, no_runs: Path, flags: list[str], message: str
) -> None:
    assert message in fails(capsys, "train", experiment(tmp_path), "--out", no_runs, *flags)


@pytest.mark.parametrize(
    ("body", "strategy", "message"),
    [
        ("Branching()", "pipeline", "Branching cannot be traced by torch.fx ("),
        (
            "nn.Sequential(nn.Flatten(), nn.Linear(64, 9).requires_grad_(False), nn.Linear(9, 10))",
            "pipeline",
            "stage 1 of Sequential, which begins with 1, has nothing to train",
        ),
        (
            "nn.Sequential(nn.Flatten(), one := nn.Linear(64, 64), nn.Linear(64, 64), one, nn.Linear(64, 10))",
            "pipeline",
            "shares parameters with another stage",
        ),
        (
            "Odd()",
            "tensor",
            "attention or pair of convolutions of Odd can be cut into 2: inner (63 to 5), in parallel.shards",
        ),
    ],
)
def test_a_model_that_cannot_be_spread_as_asked(
    capsys: Capture, tmp_path: Path, no_runs: Path, body: str, strategy: str, message: str
) -> None:
    net = f"""
import torch
from torch import nn
class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(64, 10), nn.Linear(64, 10)
    def forward(self, x):
        return self.one(x.flatten(1)) if x.sum() > 0 else self.two(x.flatten(1))
class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.inner = nn.Conv2d(1, 10, 3), nn.Linear(63, 5)
    def forward(self, x):
        return self.conv(x).mean((2, 3)) + 0 * self.inner(x.flatten(1)[:, 1:]).sum()
@dataclass(frozen=True)
class Net(Model):
    def build(self, sample, classes):
        return {body}
"""
    flags = ["--parallel.strategy", strategy, *_TWO]
    assert message in fails(capsys, "train", experiment(tmp_path, "Net()", before=net), "--out", no_runs, *flags)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("ddp", "ddp"),
        ("fsdp", "fsdp"),
        ("model_parallel", "model_parallel: 1 | 3 to 5"),
        ("data_parallel", "data_parallel"),
        ("pipeline", "pipeline: 1 | 3 to 5, by 1f1b"),
        ("tensor", "tensor: 1 by columns, 3 by rows, 5 by rows"),
    ],
)
def test_a_strategy_is_chosen_by_one_value(
    capsys: Capture, tmp_path: Path, no_runs: Path, name: str, shown: str
) -> None:
    workers = _TWO if name in ("pipeline", "tensor") else []
    flags = ["--out", no_runs, "--dry_run", "--parallel.strategy", name, *workers]
    assert f"parallel  {shown}\n" in succeeds(capsys, "train", experiment(tmp_path), *flags)


def test_plan_hides_only_the_warnings_of_meta_weights(tmp_path: Path) -> None:
    net = """
import torch, warnings
from torch import nn
@dataclass(frozen=True)
class Net(Model):
    def build(self, sample, classes):
        warnings.warn("of my own")
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, classes))
        if torch.get_default_device().type == "meta":
            warnings.warn("on the meta device alone")
        net.load_state_dict(PRETRAINED)
        return net
PRETRAINED = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 10)).state_dict()
with torch.device("meta"):  # a user's own mistake
    elsewhere = nn.Linear(64, 64)
elsewhere.load_state_dict(nn.Linear(64, 64).state_dict())
"""
    file = experiment(tmp_path, "Net()", before=net)
    command = [sys.executable, "-m", "raytrain.cli", "train", file, "--dry_run", "--out", tmp_path / "runs"]
    done = subprocess.run(command, capture_output=True, text=True)
    said = [line.partition("Warning: ")[2][:24] for line in done.stderr.splitlines() if "Warning: " in line]
    expected = ["for weight: copying from", "for bias: copying from a", "of my own", "on the meta device alone"]
    assert done.returncode == 0 and said == expected, done.stderr


def test_the_plan_says_nothing_of_torchvisions_weights(tmp_path: Path) -> None:
    net = """
import torchvision
from torch import nn
from unittest import mock
@dataclass(frozen=True)
class Net(Model):
    def build(self, sample, classes):
        weights = torchvision.models.SqueezeNet1_1_Weights.DEFAULT
        with mock.patch.object(type(weights), "get_state_dict", lambda *_, **__: STATE):  # it would download them
            net = torchvision.models.squeezenet1_1(weights=weights)
        net.classifier[1] = nn.Conv2d(512, classes, 1)
        return net
STATE = torchvision.models.squeezenet1_1().state_dict()
"""
    folder(tmp_path / "images", {"train": ("a", "b"), "val": ("a", "b")})
    file = experiment(tmp_path, "Net()", f"ImageFolder(root='{tmp_path}/images', crop=64)", before=net)
    command = [sys.executable, "-m", "raytrain.cli", "train", file, "--dry_run", "--out", tmp_path / "runs"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
