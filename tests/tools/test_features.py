"""Features equal those of a plain hook, for each kind of model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from helpers.commands import digit_files, fails, finished, make_run, succeeds, without_ray
from torch import nn

from raytrain import CNN, MLP, Digits, Experiment, Model, Run, Timm, TorchModel, Torchvision, UserError
from raytrain.tools import features, inference

__all__ = ["digit_files", "finished", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]


class Backwards(nn.Module):
    """Its head is neither the last layer that it defines nor called last of all layers."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(4, classes)
        self.scale = nn.BatchNorm1d(classes)
        self.body = nn.Conv2d(1, 4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.scale(self.head(self.body(images).mean((2, 3))))


class Convolutional(nn.Module):
    """Its head is a convolution, as in models of masks."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 4, 3), nn.Conv2d(4, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(images)).mean((2, 3))


@pytest.mark.parametrize(
    ("model", "head"),
    [
        (CNN(channels=(4,)), "4"),
        (MLP(hidden=(6,)), "3"),
        (Torchvision("squeezenet1_1"), "classifier.1"),
        (Torchvision("mobilenet_v3_small"), "classifier.3"),
        (Timm("test_vit"), "head"),
        (TorchModel(Backwards), "head"),
        (TorchModel(Convolutional), "head"),
    ],
)
def test_features_are_the_input_of_the_head(model: Model, head: str) -> None:
    sample = {"Timm": (1, 160, 160), "Torchvision": (3, 64, 64)}.get(type(model).__name__, (1, 8, 8))
    torch.manual_seed(0)
    module = model.build(sample, 3).eval()
    inputs, seen = torch.randn(2, *sample), []
    hook = module.get_submodule(head).register_forward_hook(lambda _, given, found: seen.append(given[0]))
    with torch.no_grad():
        module(inputs)
        hook.remove()
        expected = seen[0].mean((2, 3)) if seen[0].dim() == 4 else seen[0]
        layer = features.find(model, module, inputs[:1])
        assert layer == features.Layer(head, before=True)
        assert torch.equal(features.Features(module, layer)(inputs), expected) and expected.dim() == 2
    assert module.get_submodule(head)._forward_pre_hooks, "the search leaves no hook behind, and `Features` has one"
    assert sum(len(one._forward_pre_hooks) for one in module.modules()) == 1


def test_pooled_is_one_vector_for_each_sample() -> None:
    for shape, expected in (((2, 5), (2, 5)), ((2, 7, 5), (2, 5)), ((2, 5, 3, 3), (2, 5)), ((2,), (2, 1))):
        assert features.pooled(torch.ones(shape, dtype=torch.bfloat16)).shape == expected
    values = torch.randn(2, 5, 3, 4)
    assert torch.allclose(features.pooled(values), values.mean((2, 3)))


@pytest.mark.parametrize("name", ["0", "1", "2"])
def test_channels_are_found_by_the_shape_of_positions(name: str) -> None:
    class Last(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return values.movedim(1, -1)

    model = nn.Sequential(nn.Conv2d(3, 5, 3, 2, 1), Last(), nn.LayerNorm(5), nn.Flatten()).eval()
    for size in ((16, 16), (30, 62), (9, 14)):
        inputs = torch.randn(2, 3, *size)
        with torch.no_grad():
            found = model[: int(name) + 1](inputs)
            expected = found.mean((2, 3) if name == "0" else (1, 2))
            assert torch.equal(features.Features(model, features.Layer(name, False))(inputs), expected)
            wrong = features.Layer(name, False, "last" if name == "0" else "first")
            assert features.Features(model, wrong)(inputs).shape[1] == found.shape[-1 if name == "0" else 1]


def test_a_shape_that_does_not_show_its_channels_is_refused() -> None:
    inputs, odd = torch.randn(2, 3, 8, 8), nn.Unflatten(1, (2, 4, 6))
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 48), odd, nn.Sequential(nn.LayerNorm(6))).eval()
    for layer in ("2", "3"):
        with pytest.raises(UserError, match=rf"gives \[2, 4, 6\] for a sample.* --layer {layer}:last for"):
            features.Features(model, features.find(CNN(), model, inputs, layer))(inputs)
    with torch.no_grad():
        said = features.find(CNN(), model, inputs, "2:last")
        assert features.Features(model, said)(inputs).shape == (2, 6)
    cube = nn.Sequential(nn.Conv2d(3, 8, 1))
    assert features.Features(cube, features.Layer("0", False))(inputs).shape == (2, 8)  # no LayerNorm: first
    with pytest.raises(UserError, match="first or last must come"):
        features.find(CNN(), model, inputs, "2:middle")


def test_features_are_written_as_a_list_of_fixed_size(
    finished: Run, capsys: Capture, digit_files: Path, tmp_path: Path
) -> None:
    seen: list[torch.Tensor] = []
    module = finished.model()
    head = [layer for layer in module.modules() if isinstance(layer, nn.Linear)][-1]
    head.register_forward_hook(lambda _, given, found: seen.append(given[0]))
    data = Digits()
    images = torch.from_numpy(data.read(data.index()["val"], np.arange(12))).float()
    with torch.no_grad():
        module((images / 255 - 0.305) / 0.376)
    file = tmp_path / "f.parquet"
    said = succeeds(capsys, "predict", finished.path, digit_files, "--features", "--out", file)
    assert said == f"wrote 12 feature vectors to {file}\n"
    found = pq.read_table(file)
    assert found.schema.field("features").type == pa.list_(pa.float32(), seen[0].shape[1])
    assert found.column_names == ["path", "features"]
    assert np.allclose(np.stack(found["features"].to_numpy()), seen[0].numpy(), atol=1e-6)
    rows = inference.predict(finished, [str(digit_files)], features="1")
    with torch.no_grad():
        expected = module[:2]((images / 255 - 0.305) / 0.376).mean((2, 3))  # type: ignore[index]
    assert np.allclose(np.stack([row["features"] for row in rows]), expected.numpy(), atol=1e-6)
    split = inference.predict(finished, split="val", features="")
    assert len(split) == 359 and np.allclose(split[3]["features"], seen[0][3].numpy(), atol=1e-6)


def test_mistakes_of_features(finished: Run, capsys: Capture, digit_files: Path, tmp_path: Path) -> None:
    out = ["--out", tmp_path / "f.parquet"]
    for arguments, message in (
        (["--features", "--layer", "O", *out], "the model has no layer 'O', in --layer"),
        (["--layer", "1", *out], "--layer needs --features"),
        (["--features"], "--features needs --out FILE.parquet"),
        (["--features", "--out", tmp_path / "f.csv"], "unknown file type"),
        (["--features", "--tta", "flip", *out], "--tta averages probabilities"),
    ):
        assert message in fails(capsys, "predict", finished.path, digit_files, *arguments)


@dataclass(frozen=True)
class Unused(Model):
    """A model with a layer that the forward pass leaves out, and none that it calls."""

    def build(self, sample: tuple[int, int, int], classes: int) -> nn.Module:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.spare, self.weight = nn.Linear(2, 2), nn.Parameter(torch.zeros(64, classes))

            def forward(self, images: torch.Tensor) -> torch.Tensor:
                return images.flatten(1) @ self.weight

        return Net()


def test_a_layer_that_is_not_called_is_named(tmp_path: Path, capsys: Capture, digit_files: Path) -> None:
    run = make_run(tmp_path / "run", Experiment(model=Unused(), data=Digits()), steps=2)
    command = ["predict", run.path, digit_files, "--features", "--out", tmp_path / "f.parquet"]
    assert "no layer of the model is known to be its head" in fails(capsys, *command)
    assert "the layer 'spare' is not called in a forward pass" in fails(capsys, *command, "--layer", "spare")
    assert "did you mean spare?" in fails(capsys, *command, "--layer", "sparse")
