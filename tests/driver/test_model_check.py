"""What the plan says of models whose training or checkpoints would fail later on."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.plain_parts import Switching
from PIL import Image
from torch import nn

from raytrain import (
    CNN,
    Augment,
    Cosine,
    Data,
    Deterministic,
    Digits,
    Experiment,
    Field,
    ImageFolder,
    Index,
    Model,
    Optimizer,
    Parallel,
    Pipeline,
    Progressive,
    Regression,
    Scaling,
    Schedule,
    SequentialLR,
    SimpleModel,
    StepLR,
    UserError,
    WarmUp,
)
from raytrain.driver import plan
from raytrain.driver.plan import Plan
from raytrain.driver.resources import Node, Resources


def make(**fields: Any) -> Plan:
    experiment = Experiment(**{"model": SimpleModel(), "data": Digits(), "batch_size": 128} | fields)
    return plan.make(experiment, lambda: Resources((Node("n0", 4, 0, 8 << 30),), "this machine"), "runs/x-N")


class Net(nn.Module):
    """A linear layer with something unusual besides."""

    mean: torch.Tensor

    def __init__(self, classes: int, what: str):
        super().__init__()
        self.what, self.head = what, nn.Linear(64, classes)
        self.table = nn.Embedding(3, 64, sparse=True) if what == "sparse" else None
        if what == "left out":
            self.register_state_dict_post_hook(lambda module, state, *rest: state.update(more=state.pop("head.bias")))
        self.register_buffer("cache", None, persistent=what != "own cache")
        if what == "complex128":
            self.register_buffer("phases", torch.ones(2, dtype=torch.complex128))
        if what == "own mean":
            self.register_buffer("mean", torch.zeros(64), persistent=False)
        if what == "expanded":
            self.register_buffer("grid", torch.ones(1, 64).expand(3, 64))

    def get_extra_state(self) -> Any:
        return {"calls": 1} if self.what == "state" else torch.zeros(1)

    def set_extra_state(self, state: Any) -> None:
        pass

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = images.flatten(1)
        if self.what.endswith("cache") and self.cache is None:
            self.cache = torch.ones(64)
        if self.what == "own mean" and self.training:
            self.mean.lerp_(found.detach().mean(0), 0.1)
            found = found - self.mean
        if self.table is not None and self.what == "sparse":
            found = found + self.table(torch.zeros(len(images), dtype=torch.int64))
        return self.head(found)


@dataclass(frozen=True)
class Unusual(Model):
    what: str = ""

    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return Net(classes, self.what)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("complex128", "a checkpoint cannot hold phases, which is of complex128, in Unusual .*; use another dtype"),
        ("state", "holds tensors, and _extra_state of the model's state dict is of type dict, in .*get_extra_state"),
        ("expanded", r"nothing can be loaded into grid, whose values share memory, .*; add .clone\(\) to it"),
        ("cache", "forward.. adds cache to the model's state dict .*, or register it with persistent=False"),
        ("left out", "the model cannot load its own state dict, .*head.bias.*; let its state_dict.. hold what"),
        ("sparse", "the gradient of table.weight is sparse, which .*; make that layer with sparse=False"),
    ],
)
def test_what_no_checkpoint_or_exchange_can_hold_is_refused(what: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(model=Unusual(what))


def test_a_cache_that_checkpoints_leave_out_is_allowed() -> None:
    assert not [note for note in make(model=Unusual("own cache")).notes if "checkpoints" in note]


def test_a_mean_that_checkpoints_leave_out_is_noted() -> None:
    [note] = [note for note in make(model=Unusual("own mean")).notes if "checkpoints" in note]
    assert note.startswith(
        "training changes the buffer mean, which checkpoints do not have (persistent=False): a resumed"
    )


@dataclass(frozen=True)
class Some(Digits):
    count: int = 129

    def index(self) -> dict[str, Index]:
        found = super().index()
        return {**found, "train": found["train"].take(np.arange(self.count))}


@dataclass(frozen=True)
class Normalised(Model):
    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, classes))


@pytest.mark.parametrize(
    ("count", "workers", "parallel", "single"),
    [
        (129, 1, None, True),
        (130, 1, None, False),
        (128, 2, None, False),
        (129, 2, None, True),  # the other one makes a pass of a single zero
        (131, 2, None, True),
        (132, 2, None, False),
        (131, 2, Deterministic(), True),
        (136, 2, Deterministic(), False),
        (129, 2, Pipeline(), False),
    ],
)
def test_a_last_batch_that_batchnorm_cannot_take_is_refused(
    count: int, workers: int, parallel: Parallel | None, single: bool
) -> None:
    fields = {"model": Normalised(), "data": Some(count), "scaling": Scaling(workers=workers)}
    fields |= {} if parallel is None else {"parallel": parallel}
    if not single:
        make(**fields)
        return
    rest = count - 128
    message = rf"the last batch of an epoch, of {rest}, leaves a pass of one sample, .*--sampler.count 128"
    with pytest.raises(UserError, match=message):
        make(**fields)
    make(**fields | {"model": SimpleModel()})


@pytest.mark.parametrize(
    ("name", "value"), [("driver.first_step._SLOW_SECONDS", 0.0), ("driver.model_check._TRIED_FOR_REAL", 100)]
)
def test_a_last_batch_is_tried_also_with_slow_and_large_models(
    monkeypatch: pytest.MonkeyPatch, name: str, value: float
) -> None:
    monkeypatch.setattr(f"raytrain.{name}", value)
    make(model=Normalised(), data=Some(130))
    with pytest.raises(UserError, match="the last batch of an epoch, of 1, leaves a pass of one sample"):
        make(model=Normalised(), data=Some(129))


def test_a_last_batch_is_without_samples_that_cannot_be_read(tmp_path: Path) -> None:
    for number in range(12):
        for split in ("train", "val"):
            file = tmp_path / split / "ab"[number % 2] / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8), number).save(file)
    for number in (3, 8):
        (tmp_path / "train" / "ab"[number % 2] / f"{number}.png").write_bytes(b"no image")
    data = ImageFolder(str(tmp_path), size=8, channels=1, on_bad_sample="skip")
    make(model=Normalised(), data=data, batch_size=11)
    with pytest.raises(UserError, match=r"of 1, leaves a pass of one sample, .*--sampler.count 9"):
        make(model=Normalised(), data=data, batch_size=9)


@dataclass(frozen=True)
class Pooled(Model):
    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


def test_what_counts_epochs_knows_a_run_in_steps() -> None:
    staged = {"steps": 40, "unfreeze": ((2, "1.*"),)}  # of 12 in an epoch
    assert not any("never trained" in note for note in make(**staged).notes)
    grows = replace(Digits(), augment=Augment(progressive=Progressive(start=4, multiple=2)))
    (note,) = [note for note in make(model=Pooled(), data=grows, steps=40).notes if "images grow" in note]
    assert note == "images grow: 4 pixels from epoch 1, 6 pixels from epoch 2, 8 pixels from epoch 4"


@pytest.mark.parametrize(
    ("schedule", "note"),
    [
        (Cosine(warmup_epochs=2.5), "the learning rate rises to the end: the warm-up takes 2.5 epochs, and training 2"),
        (WarmUp(StepLR(), epochs=2), "the learning rate rises to the end: the warm-up takes 2 epochs, and training 2"),
        (
            WarmUp(Cosine(warmup_epochs=1), epochs=1),
            "the learning rate rises to the end: the warm-up takes 1 epoch, and",
        ),
        (SequentialLR((StepLR(), Cosine()), (2,)), "Cosine never begins: its milestone is 2 epochs, and training ends"),
        (Cosine(warmup_epochs=1), ""),
        (WarmUp(StepLR(), epochs=1.5), ""),
        (SequentialLR((StepLR(), Cosine()), (1.9,)), ""),
    ],
)
def test_a_part_of_a_schedule_beyond_the_end_is_noted(schedule: Schedule, note: str) -> None:
    found = [one for one in make(schedule=schedule, epochs=2).notes if "rises to" in one or "never begins" in one]
    assert len(found) == bool(note) and all(one.startswith(note) for one in found)


class Remembering(torch.optim.Optimizer):
    def __init__(self, parameters: Any, lr: float):
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter].setdefault("last", deque(maxlen=2)).append(parameter.grad)


@dataclass(frozen=True)
class Remembers(Optimizer):
    def build(self, parameters: Any) -> torch.optim.Optimizer:
        return Remembering(parameters, self.lr)


def test_an_optimizer_whose_state_cannot_be_read_back_is_refused() -> None:
    message = "cannot hold the state of Remembering, or not give it back, in .*; keep tensors and Python's own numbers"
    with pytest.raises(UserError, match=message):
        make(optimizer=Remembers())


@dataclass(frozen=True)
class Switches(Optimizer):
    def build(self, parameters: Any) -> torch.optim.Optimizer:
        return Switching(parameters, self.lr)


def test_an_optimizer_with_other_weights_in_evaluation_is_refused() -> None:
    message = "Switching puts other weights into the model by eval\\(\\), .*; use another optimizer"
    with pytest.raises(UserError, match=message):
        make(optimizer=Switches())


@dataclass(frozen=True)
class Sizes(Data):
    """Images with two numbers each, and no classes."""

    def index(self) -> dict[str, Index]:
        fields = (Field("image", (1, 8, 8), kind="image"), Field("size", (2,), "float32"))
        return {"train": Index(fields=fields, count=8), "val": Index(fields=fields, count=2)}

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        return {"image": np.zeros((len(samples), 1, 8, 8), np.uint8), "size": np.ones((len(samples), 2), np.float32)}


@pytest.mark.filterwarnings("error")
def test_a_model_with_an_output_for_each_class_needs_classes() -> None:
    with pytest.raises(
        UserError, match=r"CNN has an output for each class, and the data has no classes, .*; use --model"
    ):
        make(model=CNN(channels=(4,)), data=Sizes(), task=Regression())
    with pytest.raises(UserError, match=r"Classification needs labels, and the data has none, .*dicts with a `label`"):
        make(model=CNN(channels=(4,)), data=Sizes())
    assert make(model=CNN(channels=(4,), outputs=2), data=Sizes(), task=Regression())


@dataclass(frozen=True)
class Lazy(Model):
    passed: bool = False

    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))
        if self.passed:
            module(torch.zeros(1, *sample))
        return module


def test_layers_that_wait_for_a_batch_are_given_one_in_build() -> None:
    with pytest.raises(UserError, match=r"their sizes: 1 \(LazyLinear\), in Lazy.build .*torch.zeros\(1, \*sample\)"):
        make(model=Lazy())
    assert make(model=Lazy(passed=True)).parameters == (650, 650)
