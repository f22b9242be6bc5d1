"""A training loss of the user's own, in each task that compares outputs with a target."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from helpers.scenes import CLASSES, SIDE, Scenes, experiment
from torch import nn
from torch.nn import functional
from torchvision.ops import sigmoid_focal_loss

from raytrain import Batch, Classification, Model, MultiLabel, Regression, Segmentation, Supervised, Task, UserError
from raytrain.data.checks import checked_read
from raytrain.driver.plan import Plan, make
from raytrain.driver.resources import Node, Resources
from raytrain.tools.groups import Groups


@dataclass(frozen=True)
class Margin(Classification):
    def training_loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return functional.multi_margin_loss(outputs, batch.labels, reduction="sum")


@dataclass(frozen=True)
class Focal(MultiLabel):
    gamma: float = 2.0

    def training_loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return sigmoid_focal_loss(outputs, batch["target"], gamma=self.gamma, reduction="none").mean(1).sum()


@dataclass(frozen=True)
class Quantile(Regression):
    share: float = 0.9

    def training_loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        over = batch["target"] - outputs
        return torch.maximum(self.share * over, (self.share - 1) * over).sum()


@dataclass(frozen=True)
class Overlap(Segmentation):
    def training_loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        valid = batch["target"] >= 0
        wanted = functional.one_hot(batch["target"].clamp_min(0), outputs.shape[1]).movedim(-1, 1) * valid[:, None]
        shares = outputs.softmax(1) * valid[:, None]
        both, all_ = ((one).flatten(1).sum(1) for one in (shares * wanted, shares + wanted))
        return (1 - (2 * both + 1) / (all_ + 1)).sum()


@dataclass(frozen=True)
class Least(Supervised):
    """A task of one's own that has no more than it needs."""

    def wanted(self, batch: Batch) -> torch.Tensor:
        return batch["size"]

    def each(self, outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return (outputs[:, 0] - wanted).abs()


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(SIDE * SIDE, 1), nn.Linear(SIDE * SIDE, 1)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"low": self.low(images.flatten(1)), "high": self.high(images.flatten(1))}


@dataclass(frozen=True)
class Heads(Model):
    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return TwoHeads()


@dataclass(frozen=True)
class Between(Least):
    """A loss of both heads."""

    def each(self, outputs: dict[str, torch.Tensor], wanted: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return sum(((outputs[name][:, 0] - wanted).abs() for name in ("low", "high")), torch.zeros(()))


def plan(task: Task, wanted: str, outputs: int, pixels: bool = False) -> Plan:
    value = experiment(task, wanted, outputs, pixels)
    return make(value, lambda: Resources((Node("n0", 4, 0, 8 << 30),), "this machine"), "runs/x-N")


def batch_of(wanted: str) -> Batch:
    data, ids = Scenes(wanted=wanted), np.arange(8)
    index = data.index()["train"]
    arrays = {name: torch.from_numpy(array) for name, array in checked_read(data, index, ids).items()}
    return Batch(arrays | {"image": arrays["image"].float(), "label": torch.from_numpy(index.labels[ids])}, ids)


class Constant(nn.Module):
    """Answers with numbers of its own."""

    def __init__(self, *shape: int):
        super().__init__()
        self.answers = nn.Parameter(torch.randn(8, *shape, generator=torch.Generator().manual_seed(0)))

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        return self.answers


def test_the_loss_of_each_task_can_be_overridden_alike() -> None:
    batch, model = batch_of("mask"), Constant(CLASSES)
    loss, count = Margin().loss(model, batch)
    assert count == 8 and loss.item() == nn.MultiMarginLoss(reduction="sum")(model.answers, batch.labels).item()

    batch, model = batch_of("tags"), Constant(5)
    loss, count = Focal(gamma=3.0).loss(model, batch)
    expected = sigmoid_focal_loss(model.answers, batch["tags"].float(), gamma=3.0, reduction="none").mean(1).sum()
    assert count == 8 and torch.equal(loss, expected)

    batch, model = batch_of("size"), Constant(1)
    loss, count = Quantile(mean=(3.0,), std=(2.0,)).loss(model, batch)
    over = (batch["size"] - (model.answers[:, 0] * 2 + 3)).double()
    expected = (over.clamp_min(0) * 0.9 + (-over).clamp_min(0) * 0.1).sum()
    torch.testing.assert_close(loss.double(), expected)

    batch = batch_of("mask")
    model = Constant(CLASSES, *batch["mask"].shape[1:])
    loss, _ = Overlap().loss(model, batch)
    assert loss.requires_grad and 0 < loss.item() < 8


def test_validation_keeps_its_loss() -> None:
    batch, model = batch_of("tags"), Constant(5)
    assert torch.equal(Focal().sums(model, batch)["loss"], MultiLabel().sums(model, batch)["loss"])
    batch, model = batch_of("size"), Constant(1)
    for task in (Regression(), Least()):
        loss, count = task.loss(model, batch)
        assert count == 8 and loss.item() == pytest.approx(task.sums(model, batch)["loss"].item())


@pytest.mark.parametrize(
    ("task", "wanted", "outputs", "pixels"),
    [
        (Margin(), "mask", CLASSES, False),
        (Focal(), "tags", 5, False),
        (Quantile(), "size", 1, False),
        (Overlap(), "mask", CLASSES, True),
        (Least(), "size", 1, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Task) else "",
)
def test_the_plan_takes_them(task: Task, wanted: str, outputs: int, pixels: bool) -> None:
    assert not [note for note in plan(task, wanted, outputs, pixels).notes if "loss" in note]


def test_a_task_of_ones_own_may_take_several_outputs() -> None:
    value = replace(experiment(Between(), "size", 1), model=Heads())
    make(value, lambda: Resources((Node("n0", 4, 0, 8 << 30),), "this machine"), "runs/x-N")
    batch, groups = batch_of("size"), Groups(Between(), np.arange(21) % 2)
    model = TwoHeads()
    outputs = model(batch.images)
    groups.add(outputs, batch)
    found = groups.results(torch.device("cpu"))
    losses = Between().each(outputs, batch["size"])
    for group in (0, 1):
        assert found[str(group)]["loss"] == pytest.approx(losses[group::2].mean().item())
    with pytest.raises(UserError, match="the model returns a dict of low, high, and the task takes a tensor"):
        make(replace(value, task=Quantile()), lambda: Resources((Node("n0", 4, 0, 8 << 30),), ""), "runs/x-N")


@dataclass(frozen=True)
class Mean(MultiLabel):
    def training_loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(outputs, batch["target"])


@dataclass(frozen=True)
class Broken(Regression):
    def training_loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        raise RuntimeError("a mistake")


def test_the_plan_says_what_is_wrong_with_them() -> None:
    (note,) = (note for note in plan(Mean(), "tags", 5).notes if "loss" in note)
    assert "does not grow with the batch, in Mean" in note and "test_training_loss.py" in note
    with pytest.raises(
        UserError, match=r"the first training step fails .*: RuntimeError: a mistake, .*test_training_loss"
    ):
        plan(Broken(), "size", 1)
