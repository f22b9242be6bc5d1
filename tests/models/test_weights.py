"""Weights to start from: files as torchvision, timm, Lightning, DataParallel and torch.compile write them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from raytrain import CNN, MLP, Model, Torchvision, UserError, config
from raytrain.models.weights import Fit

State = dict[str, torch.Tensor]
SAMPLE = (3, 64, 64)
NET = Torchvision(name="squeezenet1_1")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def trained() -> State:
    torch.manual_seed(1)
    return dict(NET.build(SAMPLE, 10).state_dict())


def saved(path: Path, content: Any) -> str:
    save_file(content, path) if path.suffix == ".safetensors" else torch.save(content, path)
    return str(path)


def loaded(model: Model, classes: int = 10, sample: tuple[int, int, int] = SAMPLE) -> tuple[nn.Module, Fit]:
    """What a model is after `load`; the check in the plan, with and without memory, finds the same."""
    torch.manual_seed(0)
    module = model.build(sample, classes)
    fit = model.load(module)
    checks = [model.check_weights(model.build(sample, classes))]
    with torch.device("meta"):
        checks.append(model.check_weights(model.build(sample, classes)))
    assert fit is not None and checks == [fit, fit]
    return module, fit


def prefixed(state: State, prefix: str) -> State:
    return {prefix + name: value for name, value in state.items()}


other = {"epoch": 3, "optimizer": {"state": {}}, "metric": 0.5}
LAYOUTS: dict[str, Callable[[State], Any]] = {
    "plain": lambda s: s,
    "state_dict": lambda s: {**other, "state_dict": s},
    "model": lambda s: {**other, "model": s},
    "model_state_dict": lambda s: {**other, "model_state_dict": s},
    "data parallel": lambda s: {"state_dict": prefixed(s, "module.")},
    "compiled": lambda s: {"model": prefixed(s, "_orig_mod.")},
    "compiled inside data parallel": lambda s: prefixed(s, "module._orig_mod."),
    "timm": lambda s: {
        **other,
        "arch": "squeezenet1_1",
        "state_dict": {name: value * 0 for name, value in s.items()},
        "state_dict_ema": s,
        "args": argparse.Namespace(lr=0.1, opt="sgd"),
        "version": 2,
    },
    "torchvision's reference": lambda s: {**other, "args": argparse.Namespace(lr=0.1), "model": prefixed(s, "module.")},
    "averaged": lambda s: {"model_ema": {"n_averaged": torch.tensor(3), **prefixed(s, "module.")}, "model": {}},
    "lightning": lambda s: {
        "epoch": 1,
        "global_step": 7,
        "pytorch-lightning_version": "2.6.0",
        "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {},
        "hyper_parameters": {"lr": 0.1},
        "state_dict": {**prefixed(s, "net."), "loss.weight": torch.ones(10)},
    },
    "compiled in lightning": lambda s: {"state_dict": prefixed(s, "model._orig_mod.")},
    "half": lambda s: {"state_dict": {name: value.half() for name, value in s.items()}},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_fill_every_tensor(tmp_path: Path, trained: State, layout: str) -> None:
    file = saved(tmp_path / "w.ckpt", LAYOUTS[layout](trained))
    module, fit = loaded(replace(NET, weights=file))
    wanted = {name: value.half().float() if layout == "half" else value for name, value in trained.items()}
    assert module.state_dict().keys() == wanted.keys()
    assert all(torch.equal(value, wanted[name]) for name, value in module.state_dict().items())
    assert all(value.dtype == torch.float32 for value in module.state_dict().values())
    extra = {"lightning": ("loss.weight",), "averaged": ("n_averaged",)}.get(layout, ())
    assert fit == Fit(file, len(trained), (), (), extra)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_head_for_other_classes_starts_anew(tmp_path: Path, trained: State, suffix: str) -> None:
    file = saved(tmp_path / f"w{suffix}", trained)
    module, fit = loaded(replace(NET, weights=file), classes=4)
    torch.manual_seed(0)
    start = NET.build(SAMPLE, 4).state_dict()
    for name, value in module.state_dict().items():
        assert torch.equal(value, (start if name.startswith("classifier.1.") else trained)[name])
    assert fit.anew == ("classifier.1.weight", "classifier.1.bias")
    assert fit.line() == (
        f"50 of 52 tensors start from {file}; random, of another shape or a new head: classifier.1.weight, "
        "classifier.1.bias"
    )


def test_a_bias_is_not_taken_without_its_weights(tmp_path: Path) -> None:
    file = saved(tmp_path / "w.pt", MLP(hidden=(8, 6)).build((1, 4, 4), 10).state_dict())
    module, fit = loaded(MLP(hidden=(8, 5), weights=file), sample=(1, 4, 4))
    assert {"5.weight", "5.bias"} <= {*fit.anew} and fit.filled == 2
    torch.manual_seed(0)
    assert torch.equal(module.state_dict()["5.bias"], MLP(hidden=(8, 5)).build((1, 4, 4), 10).state_dict()["5.bias"])


class Wrapped(nn.Module):
    def __init__(self, backbone: nn.Module, classes: int):
        super().__init__()
        self.backbone, self.decoder = backbone, nn.Linear(10, 7)
        self.head = nn.Linear(7, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.decoder(self.backbone(images)))


@dataclass(frozen=True)
class Own(Model):
    """A user's model around one of torchvision's."""

    width: int = 7

    def build(self, sample: Any, classes: int) -> nn.Module:
        return Wrapped(NET.build(sample, 10), classes)


@pytest.mark.parametrize("prefix", ["", "model.", "encoder.body."])
def test_weights_of_a_part_find_their_place(tmp_path: Path, trained: State, prefix: str) -> None:
    module, fit = loaded(Own(weights=saved(tmp_path / "w.pth", {"state_dict": prefixed(trained, prefix)})), 3)
    found = {name: value for name, value in module.state_dict().items() if name.startswith("backbone.")}
    assert all(torch.equal(value, trained[name.removeprefix("backbone.")]) for name, value in found.items())
    assert fit.missing == ("decoder.weight", "decoder.bias", "head.weight", "head.bias") and not fit.anew


def test_a_part_of_a_file_is_enough(tmp_path: Path, trained: State) -> None:
    detector = {**prefixed(trained, "backbone."), "roi.weight": torch.ones(2000, 2000)}
    module, fit = loaded(replace(NET, weights=saved(tmp_path / "w.pth", detector)))
    assert torch.equal(module.state_dict()["features.0.weight"], trained["features.0.weight"])
    assert fit.unused == ("roi.weight",)


def test_weights_of_another_model_are_refused(tmp_path: Path, trained: State) -> None:
    file = saved(tmp_path / "w.pth", trained)
    model = CNN(channels=(8, 16), weights=file)
    with pytest.raises(
        UserError, match=r"they fill 0 of 4 tensors: the model has 0.weight \[8, 3, 3, 3\], the file features"
    ):
        model.check_weights(model.build(SAMPLE, 10))
    head_only = saved(tmp_path / "head.pth", {"7.bias": torch.zeros(10)})
    with pytest.raises(UserError, match="they fill 0 of 4 tensors"):
        replace(model, weights=head_only).load(model.build(SAMPLE, 10))


def test_many_names_are_shortened_in_the_plan_and_listed_in_full() -> None:
    fit = Fit("FILE", 3, (), tuple(f"layer.{n}" for n in range(9)), ("x",))
    assert fit.shortened and fit.line().endswith("layer.3 and 5 more; unused: x")
    assert fit.text().splitlines()[0] == "3 tensors start from FILE"
    assert fit.text().splitlines()[1:] == [*(f"missing: layer.{n}" for n in range(9)), "unused: x"]
    assert not replace(fit, missing=()).shortened


def test_a_missing_file_names_its_neighbour_or_the_word_that_was_meant(tmp_path: Path, trained: State) -> None:
    saved(tmp_path / "resnet-best.pth", trained)
    for wrong, meant in ((tmp_path / "resnet-bset.pth", "resnet-best.pth"), ("chached", "cached")):
        model = replace(NET, weights=str(wrong))
        with pytest.raises(UserError, match=f"no such weights file, .*did you mean .*{meant}"):
            model.load(model.build(SAMPLE, 10))
    with pytest.raises(UserError, match="weights = 'hub' are those of torchvision's and timm's models, in CNN"):
        CNN(weights="hub").load(CNN().build(SAMPLE, 10))


@pytest.mark.parametrize("suffix", [".pth", ".ckpt"])
def test_nothing_in_a_file_is_executed(tmp_path: Path, trained: State, suffix: str) -> None:
    class Harmful:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "executed"),)

    file = saved(tmp_path / f"w{suffix}", {"state_dict": trained, "callbacks": Harmful()})
    with pytest.raises(UserError, match=r"the file needs posix\.mkdir, and loading that may run code"):
        loaded(replace(NET, weights=file))
    assert not (tmp_path / "executed").exists()


@pytest.mark.filterwarnings("ignore")  # Lightning's own
def test_lightnings_own_checkpoint_fills_every_tensor(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")

    class Lit(lightning.LightningModule):
        def __init__(self, lr: float = 0.1):
            super().__init__()
            self.save_hyperparameters()
            self.net = CNN(channels=(4,)).build((1, 8, 8), 10)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"])

    data = torch.utils.data.TensorDataset(torch.randn(16, 1, 8, 8), torch.arange(16) % 10)
    lit, quiet = Lit(), {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", default_root_dir=tmp_path, **quiet)
    trainer.fit(lit, torch.utils.data.DataLoader(data, batch_size=8))
    trainer.save_checkpoint(tmp_path / "lit.ckpt")
    module, fit = loaded(CNN(channels=(4,), weights=str(tmp_path / "lit.ckpt")), sample=(1, 8, 8))
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), lit.net.parameters(), strict=True))
    assert fit.filled == 4 and not fit.unused


# The field in classes of users


@dataclass(frozen=True)
class Older(Model):
    """Written before the base class had the field."""

    width: int
    depth: int = 2
    head: int = 1
    pretrained: bool = False


@dataclass(frozen=True)
class OwnWeights(Model):
    """Has a field `weights` of another meaning."""

    width: int
    weights: str = "imagenet"

    def build(self, sample: Any, classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(4, classes))


@dataclass(frozen=True)
class Needed(Model):
    weights: str = field(kw_only=True)


def test_positional_arguments_of_older_classes_keep_their_meaning() -> None:
    one = Older(5, 3, 4, True)
    assert (one.width, one.depth, one.head, one.pretrained, one.weights) == (5, 3, 4, True, "none")
    own: Any = OwnWeights
    assert (own(5).width, own(5).weights, own(5, weights="x").weights) == (5, "imagenet", "x")
    with pytest.raises(TypeError):
        own(5, "x")
    assert Needed(weights="a").weights == "a" and (CNN((4,)).channels, Torchvision("vgg11", True).freeze) == (
        (4,),
        True,
    )
    with pytest.raises(TypeError):
        Needed()  # type: ignore[call-arg]


def test_a_field_of_that_name_keeps_the_users_meaning() -> None:
    own: Any = OwnWeights
    model = own(5, weights="no file")
    module = model.build((1, 2, 2), 2)
    assert model.load(module) is None and model.check_weights(module) is None and not model.brings_weights
    assert not Older(5).brings_weights and Older(5, weights="x").brings_weights


def test_older_json_loads_and_the_field_is_written() -> None:
    values = {"class": "raytrain:Torchvision", "name": "resnet18", "weights": "none", "freeze": True}
    model = config.from_dict(Model, values, "here")
    assert model == Torchvision("resnet18", freeze=True) and not model.brings_weights
    assert config.from_dict(Model, {"class": "raytrain:CNN", "channels": [4]}, "here") == CNN(channels=(4,))
    assert config.to_dict(CNN(weights="w.pth"))["weights"] == "w.pth"
