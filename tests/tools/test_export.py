"""Exported programs: they take stored images, and give the model's outputs in a process without raytrain."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.commands import fails, finished, make_run, succeeds, without_ray
from PIL import Image
from torch import nn

from raytrain import (
    CNN,
    MNIST,
    Digits,
    Experiment,
    ImageFolder,
    Model,
    Run,
    TorchModel,
    Torchvision,
    cli,
)
from raytrain.data.prepare import Prepare
from raytrain.run.exported import open_model
from raytrain.tools import export as exporting

__all__ = ["finished", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]

ELSEWHERE = """
import sys, json
import numpy as np
sys.modules["raytrain"] = None  # an import of it raises ImportError
file, inputs = sys.argv[1:]
found = {}
if file.endswith(".onnx"):
    import onnxruntime
    session = onnxruntime.InferenceSession(file)
    name, = (one.name for one in session.get_inputs())
    call = lambda stored: session.run(None, {name: stored})[0]
    classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
else:
    import torch
    extra = {"raytrain.json": ""}
    program = torch.export.load(file, extra_files=extra).module()
    call = lambda stored: program(torch.from_numpy(stored)).detach().numpy()
    classes = json.loads(extra["raytrain.json"])["classes"]
stored = np.load(inputs)
whole = call(stored)
np.save(inputs, whole)
print(json.dumps([classes, float(abs(call(stored[:1]) - whole[:1]).max())]))
"""


class Plain(nn.Module):
    """Plain PyTorch."""

    def __init__(self, width: int = 4, num_classes: int = 10):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, width, 9, 4), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten())
        self.head = nn.Sequential(nn.Dropout(), nn.Linear(25 * width, num_classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images))


def elsewhere(file: Path, stored: np.ndarray) -> tuple[np.ndarray, list[str], float]:
    """The outputs of an exported program, its classes, and how far those of a batch of one differ."""
    inputs = file.with_suffix(".npy")
    np.save(inputs, stored)
    done = subprocess.run(
        [sys.executable, "-I", "-W", "error::UserWarning", "-c", ELSEWHERE, file, inputs],
        cwd=file.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return np.load(inputs), *json.loads(done.stdout)


def photographs(root: Path) -> Path:
    generator = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("ants", "bees"):
            (root / split / name).mkdir(parents=True)
            for number in range(4):
                pixels = generator.integers(0, 256, (40, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    return root


def check(run: Run, file: Path, capsys: Capture) -> None:
    """Exports a run by the command line and compares 5 stored images with the model on prepared ones."""
    wrote, parity = succeeds(capsys, "export", run.path, file).splitlines()
    assert wrote == f"wrote {file} and {file.stem}.md"
    data = run.experiment.data
    index = data.index()["val"]
    figure = float(parity.split(": ")[1].split()[0])
    assert parity.endswith(f" on {min(64, len(index))} validation samples") and figure <= 1e-5
    stored = data.read(index, np.arange(5))
    assert isinstance(stored, np.ndarray) and stored.dtype == np.uint8
    images = Prepare(data, index).plain({"image": torch.from_numpy(stored)})["image"]
    with torch.inference_mode():
        expected = run.model()(images).numpy()
    found, classes, apart = elsewhere(file, stored)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert apart <= 1e-5 and classes == list(run.classes()) and np.abs(expected).max() > 0.1


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_a_cnn_takes_stored_digits(finished: Run, capsys: Capture, tmp_path: Path, suffix: str) -> None:
    check(finished, tmp_path / f"model{suffix}", capsys)


@pytest.mark.parametrize("suffix", [".pt2", pytest.param(".onnx", marks=pytest.mark.slow)])
def test_a_torch_model_of_mnist(capsys: Capture, tmp_path: Path, data_root: Path, suffix: str) -> None:
    value = Experiment(TorchModel(Plain, width=3), MNIST(str(data_root / "mnist")))
    check(make_run(tmp_path / "run", value, steps=4), tmp_path / f"model{suffix}", capsys)


@pytest.fixture(scope="module")
def of_mnist(tmp_path_factory: pytest.TempPathFactory, data_root: Path) -> Run:
    value = Experiment(CNN(channels=(8, 16)), MNIST(str(data_root / "mnist")))
    return make_run(tmp_path_factory.mktemp("mnist") / "run", value)


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_programs_agree_on_a_thousand_test_images(of_mnist: Run, tmp_path: Path, suffix: str) -> None:
    """Within 1e-5, on images that the run has not seen and that its own check does not look at."""
    file = tmp_path / f"model{suffix}"
    exporting.export(of_mnist, file)
    data = of_mnist.experiment.data
    index = data.index()["val"]  # MNIST's test images
    chosen = np.arange(0, len(index), 10)
    stored = data.read(index, chosen)
    assert isinstance(stored, np.ndarray) and len(stored) == 1000 and len(index) == 10_000
    prepared = Prepare(data, index).plain({"image": torch.from_numpy(stored)})["image"]
    with torch.inference_mode():
        expected = of_mnist.model()(prepared).numpy()
    if suffix == ".onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(file)
        found = session.run(["outputs"], {"image": stored})[0]
    else:
        found = torch.export.load(file).module()(torch.from_numpy(stored)).detach().numpy()
    assert np.abs(found - expected).max() <= 1e-5 and np.abs(expected).max() > 1
    assert index.labels is not None
    assert (found.argmax(1) == index.labels[chosen]).mean() > 0.5, "the model has learnt something"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_a_torchvision_model_crops_rgb(capsys: Capture, tmp_path: Path, suffix: str) -> None:
    data = ImageFolder(str(photographs(tmp_path / "images")), size=36, crop=32, cache="off", mean=(0.4,), std=(0.3,))
    run = make_run(tmp_path / "run", Experiment(Torchvision("resnet18"), data), steps=2)
    check(run, tmp_path / f"model{suffix}", capsys)


def test_wide_outputs_names_and_batch_in_the_onnx_file(finished: Run, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    file = tmp_path / "model.onnx"
    exporting.export(finished, file, "last")
    model = onnx.load(file)
    onnx.checker.check_model(model)
    (given,), (outputs,) = model.graph.input, model.graph.output
    assert (given.name, outputs.name) == ("image", "outputs")
    axes = [[one.dim_param or one.dim_value for one in each.type.tensor_type.shape.dim] for each in (given, outputs)]
    assert axes == [["batch", 1, 8, 8], ["batch", 10]]
    known = {each.key: each.value for each in model.metadata_props}
    assert known["checkpoint"] == finished.checkpoint("last").name
    assert json.loads(known["input"]) == {"name": "image", "dtype": "uint8", "shape": ["batch", 1, 8, 8]}


def test_a_teacher_is_the_model_without_preprocessing(finished: Run, tmp_path: Path) -> None:
    exporting.export(finished, tmp_path / "model.pt2")
    teacher = open_model(str(tmp_path / "model.pt2"))
    for count in (1, 5):
        images = torch.randn(count, 1, 8, 8)
        torch.testing.assert_close(teacher(images), finished.model()(images), rtol=0, atol=1e-6)
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    old = torch.export.export(finished.model(), (torch.randn(2, 1, 8, 8),))
    torch.export.save(old, tmp_path / "old.pt2")
    images = torch.randn(2, 1, 8, 8)
    assert torch.equal(open_model(str(tmp_path / "old.pt2"))(images), finished.model()(images))


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_a_program_that_differs_is_not_written(
    finished: Run, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr(exporting, "center_crop", lambda images, side: images.flip(-1))
    assert cli.run(["export", str(finished.path), str(tmp_path / f"model{suffix}")]) == 1
    said = capsys.readouterr()
    assert said.out == "" and "is not written: its outputs differ from the model's by up to " in said.err
    assert said.err.count("\n") == 1 and [*tmp_path.iterdir()] == []


def test_a_difference_is_measured_against_large_outputs() -> None:
    assert exporting.Parity(64, 9e-5, 0.1).holds and not exporting.Parity(64, 1.1e-4, 0.1).holds
    assert exporting.Parity(64, 9e-3, 100.0).holds and not exporting.Parity(64, 1.1e-2, 100.0).holds
    assert not exporting.Parity(64, float("nan"), 1.0).holds


def test_a_missing_package_is_named_with_its_extra(
    finished: Run, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else found(name))
    said = fails(capsys, "export", finished.path, tmp_path / "model.onnx")
    assert said == "error: an .onnx file needs onnxscript, which is not installed; pip install 'raytrain[onnx]'"


@dataclass(frozen=True)
class Volumes(Model):
    """Pools over three axes, which torch.onnx cannot translate for most sizes."""

    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        pool = nn.AdaptiveAvgPool3d((1, 3, 1))
        return nn.Sequential(nn.Flatten(), nn.Unflatten(1, (1, 1, 8, 8)), pool, nn.Flatten(), nn.Linear(3, classes))


def test_the_operation_that_onnx_lacks_is_named(capsys: Capture, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Experiment(Volumes(), Digits()))
    said = fails(capsys, "export", run.path, tmp_path / "model.onnx")
    assert (
        "torch.onnx cannot translate the model: DispatchError: No ONNX function found for" in said and "pool3d" in said
    )
