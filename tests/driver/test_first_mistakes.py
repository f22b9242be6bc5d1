"""What the plan says of models and data that a user of plain PyTorch brings first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raytrain import (
    Augment,
    Batch,
    Classification,
    Data,
    Digits,
    Experiment,
    Field,
    Index,
    Model,
    SimpleModel,
    Supervised,
    UserError,
)
from raytrain.driver import plan
from raytrain.driver.plan import Plan
from raytrain.driver.resources import Node, Resources
from raytrain.user_code import places


class Net(nn.Module):
    """A linear layer, whose outputs something is done with."""

    def __init__(self, classes: int, end: str):
        super().__init__()
        self.end, self.layer = end, nn.LazyLinear(classes)
        self.layer(torch.zeros(1, 64))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.end == "cuda":
            raise RuntimeError("Found no NVIDIA driver on your system.")
        found = self.layer(images.flatten(1))
        return {
            "softmax": lambda: found.softmax(1),
            "log_softmax": lambda: found.log_softmax(1),
            "argmax": lambda: found.argmax(1),
            "squeeze": lambda: found.squeeze(),
        }[self.end]()


@dataclass(frozen=True)
class Ending(Model):
    end: str = "log_softmax"

    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return Net(classes, self.end)


@dataclass(frozen=True)
class Convolution(Model):
    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, classes, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())


@dataclass(frozen=True)
class Turned(Digits):
    """Digits without an axis of channels, or with it at the end."""

    shape: tuple[int, ...] = (8, 8, 1)
    dtype: str = "float32"

    def index(self) -> dict[str, Index]:
        fields = (Field("image", self.shape, self.dtype),)
        known = super().index()
        return {split: Index(index.labels, index.classes, split=split, fields=fields) for split, index in known.items()}

    def read(self, index: Index, samples: np.ndarray) -> Any:
        return {"image": np.zeros((len(samples), *self.shape), self.dtype)}


@dataclass(frozen=True)
class OwnLoss(Classification):
    """A cross entropy with the labels, or as it should be where images are mixed."""

    mixed: bool = False

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        wanted = batch.targets if self.mixed and batch.targets is not None else batch.labels
        return nn.functional.cross_entropy(model(batch.images), wanted, reduction="sum"), len(batch)


@dataclass(frozen=True)
class OwnTask(Supervised):
    """A cross entropy with the labels, or as it should be where images are mixed."""

    monitor: str = "val_loss"
    mixed: bool = False

    def wanted(self, batch: Batch) -> torch.Tensor:
        return batch.targets if self.mixed and batch.targets is not None else batch.labels

    def each(self, outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, wanted, reduction="none")


@dataclass(frozen=True)
class Decayed(Classification):
    """A loss with the norm of the last layer's weights, or of all weights."""

    layer: str = "layer"

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        weights = getattr(model, self.layer).parameters() if self.layer else model.parameters()
        norm = sum(one.square().sum() for one in weights)
        return nn.functional.cross_entropy(model(batch.images), batch.labels, reduction="sum") + norm, len(batch)


@dataclass(frozen=True)
class Asking(Classification):
    """Asks for a part that some models have."""

    def forward(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return getattr(model, "head", model)(batch.images)


@dataclass(frozen=True)
class Halved(Classification):
    """Gives the model's answers without calling the model as a whole."""

    def forward(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return model.layer(batch.images.flatten(1)) / 2  # type: ignore[operator]


def make(model: Model, data: Data | None = None, **more: Any) -> Plan:
    experiment = Experiment(model, data or Digits(), **more)
    return plan.make(experiment, lambda: Resources((Node("n0", 4, 0, 8 << 30),), "this machine"), "runs/x-N")


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (Ending("argmax"), None, r"gives \[1\] for one sample .*; let it return logits \[n, 10\] of n images, without"),
        (Ending("squeeze"), None, r"gives \[10\] for one sample .*; let it return logits \[n, 10\] of n images"),
        (Ending("cuda"), None, r"; leave .cuda\(\) and device='cuda' out"),
        (Convolution(), Turned(), r"; put channels first, as in \[1, 8, 8\]: the data gives \[8, 8, 1\]"),
        (Convolution(), Turned(shape=(8, 8), dtype="uint8"), r"an axis of channels, \[1, 8, 8\]: it gives \[8, 8\]"),
    ],
)
def test_a_first_mistake_is_one_line_with_its_remedy(model: Model, data: Data | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(model, data)


@pytest.mark.parametrize(("end", "noted"), [("softmax", True), ("log_softmax", False)])
def test_probabilities_in_the_place_of_logits_are_noted(end: str, noted: bool) -> None:
    assert any("leave softmax out" in note for note in make(Ending(end)).notes) == noted


@pytest.mark.parametrize(
    ("task", "asked"),
    [(Decayed(), "layer"), (Halved(), "layer"), (Decayed(layer=""), ""), (OwnLoss(), ""), (Asking(), "")],
)
def test_a_task_that_takes_parts_of_the_model_is_noted(task: Classification, asked: str) -> None:
    notes = [note for note in make(Ending("log_softmax"), task=task).notes if "DistributedDataParallel" in note]
    assert len(notes) == bool(asked)
    assert all(f"{type(task).__name__} takes model.{asked}, and on several GPUs it gets" in note for note in notes)


def test_a_loss_with_the_labels_of_mixed_images_is_refused() -> None:
    data = Digits(augment=Augment(mixup=0.2))
    message = "the loss reads batch.labels, and mixup and cutmix give .*, in OwnLoss .*; take `batch"
    with pytest.raises(UserError, match=message):
        make(SimpleModel(), data, task=OwnLoss())
    make(SimpleModel(), data, task=OwnLoss(mixed=True))
    make(SimpleModel(), data)
    make(SimpleModel(), task=OwnLoss())
    with pytest.raises(UserError, match=r"is None else batch.targets` in wanted\(\)$"):
        make(SimpleModel(), data, task=OwnTask())
    make(SimpleModel(), data, task=OwnTask(mixed=True))


def test_the_reason_of_an_exported_program_has_no_line_of_its_graph() -> None:
    class Added(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images + torch.ones(3)

    with pytest.raises(RuntimeError) as error:
        torch.fx.Interpreter(torch.fx.symbolic_trace(Added())).run(torch.ones(2))
    assert "While executing" in str(error.value) and "executing" not in places.reason(error.value)


def test_one_whole_epoch_is_no_plural() -> None:
    with pytest.raises(UserError, match="swa_start_epoch is 2 and the run has 1 whole epoch,"):
        make(SimpleModel(), steps=30, swa_start_epoch=2)


class Bare(nn.Module):
    """A model all of whose layers are in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(64, 10)]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers[0](images.flatten(1))


class Listed(nn.Module):
    """A model whose layers its lists and dicts hide from PyTorch."""

    def __init__(self, kind: str, classes: int):
        super().__init__()
        self.layers: Any = {"list": list, "dict": lambda parts: dict(a=parts[0]), "modules": nn.ModuleList}[kind](
            [nn.Linear(64, 64)]
        )
        self.frozen = [nn.Linear(64, 64)]  # no gradient flows into it, as into a teacher kept out of checkpoints
        self.head = nn.Linear(64, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        layer = self.layers["a"] if isinstance(self.layers, dict) else self.layers[0]
        with torch.no_grad():
            given = self.frozen[0](images.flatten(1))
        return self.head(layer(given))


@dataclass(frozen=True)
class Hidden(Model):
    kind: str = "modules"

    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return Bare() if self.kind == "bare" else Listed(self.kind, classes)


SCALE = nn.Parameter(torch.ones(2))


@dataclass(frozen=True)
class Scaled(Classification):
    """A loss with a weight of its own."""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        loss, count = super().loss(model, batch)
        return loss * SCALE.sum(), count


def test_weights_that_nothing_trains_are_refused() -> None:
    for kind, name in (("list", "ModuleList"), ("dict", "ModuleDict")):
        message = rf"the layers in the {kind} `layers` are neither trained nor saved, in Listed .*write .*nn.{name}"
        with pytest.raises(UserError, match=message):
            make(Hidden(kind))
    make(Hidden())
    with pytest.raises(
        UserError, match=r"the model has no parameters, in Hidden .*; make lists of layers nn.ModuleList"
    ):
        make(Hidden("bare"))
    with pytest.raises(UserError, match=r"a weight \[2\] that the model does not have: it is not trained, in Scaled"):
        make(SimpleModel(), task=Scaled())
