"""Metrics from counts of right, given and true answers: F1, precision, recall, IoU, Dice, balanced accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from raytrain import errors
from raytrain.config import Rule
from raytrain.data.batch import Batch
from raytrain.tasks.metric import ClassMetric, Direction, Kind, Metric

if TYPE_CHECKING:
    import torch

WEIGHTS: Rule = (
    lambda weights: all(0 <= one < np.inf for one in weights) and (not weights or max(weights) > 0),
    "of finite numbers of at least 0, not all 0",
)
"""The rule of weights of classes."""


def count_answers(outputs: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return int64 [classes] counts: `right` answers, `answered` (as that class) and `actual` (of that class).

    Args:
        outputs: logits [n, classes, ...].
        target: int64 [n, ...], where -1 does not count; or floats [n, classes] of several labels, of which those above
            0.5 are true, and a logit above 0 answers yes.
    """
    if target.is_floating_point():
        answered, actual = outputs > 0, target > 0.5
        return {"right": (answered & actual).sum(0), "answered": answered.sum(0), "actual": actual.sum(0)}
    classes, counts = outputs.shape[1], target >= 0
    answers, labels = outputs.argmax(1)[counts], target[counts]
    return {
        "right": labels[answers == labels].bincount(minlength=classes),
        "answered": answers.bincount(minlength=classes),
        "actual": labels.bincount(minlength=classes),
    }


def divide(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return float64 quotients; 0 where the divisor is 0."""
    return np.divide(above, below, out=np.zeros(np.shape(above)), where=np.asarray(below) > 0)


def per_class(found: Mapping[str, np.ndarray], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each class: `class`, `precision`, `recall`, `f1`, `iou` and `count`, its true answers.

    Args:
        found: the sums of `count_answers`.
        names: of the classes; their numbers stand for missing ones.
    """
    right, answered, actual = (np.asarray(found[name]) for name in ("right", "answered", "actual"))
    return [
        {
            "class": names[number] if number < len(names) else str(number),
            "precision": float(divide(right, answered)[number]),
            "recall": float(divide(right, actual)[number]),
            "f1": float(divide(2 * right, answered + actual)[number]),
            "iou": float(divide(right, answered + actual - right)[number]),
            "count": int(actual[number]),
        }
        for number in range(len(right))
    ]


def of_confusion(confusion: np.ndarray) -> dict[str, np.ndarray]:
    """Return the counts of `count_answers`, from those of (label, answer), int64 [classes, classes]."""
    return {"right": confusion.diagonal(), "answered": confusion.sum(0), "actual": confusion.sum(1)}


def check_weights(field: str, weights: tuple[float, ...] | tuple[str, ...], classes: int) -> None:
    """Check that there is a weight, or a name, for each class, or none at all.

    Raises:
        UserError: there are too few or too many.
    """
    if weights and len(weights) != classes:
        kind = "name" if isinstance(weights[0], str) else "number"
        what = f"{field} must have a {kind} for each of the {classes} classes, got {len(weights)}"
        raise errors.UserError(what, f"in task.{field}", f"give {classes} {kind}s, in the classes' order")


@dataclass(frozen=True)
class _Ratio(ClassMetric):
    """A ratio of counts, averaged over classes."""

    takes: ClassVar[tuple[Kind, ...]] = ("label", "labels", "mask")

    average: Literal["macro", "micro"] = "macro"
    """macro is the mean over the classes that occur in labels or answers; micro counts all classes together."""

    @property
    def name(self) -> str:
        """The value's name, such as macro_f1, or f1_3 for class 3 and f1_cat for class "cat"."""
        return f"{self.average}_{self.word}" if self.of is None else super().name

    def sums(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the counts of each class."""
        self.check_classes(outputs.shape[1])
        return count_answers(outputs, batch["target"])

    def values(self, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the ratio; not a number where nothing was counted."""
        counts = [np.atleast_1d(found[name]) for name in ("right", "answered", "actual")]
        if (number := self.number) is not None:
            counts = [each[number : number + 1] for each in counts]
        elif self.average == "micro":
            counts = [each.sum(keepdims=True) for each in counts]
        right, answered, actual = counts
        there = answered + actual > 0
        ratios = divide(*self.ratio(right, answered, actual))[there]
        return {self.name: float(ratios.mean()) if len(ratios) else float("nan")}

    def ratio(self, right: np.ndarray, answered: np.ndarray, actual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return dividend and divisor of each class, from its counts."""
        raise NotImplementedError


@dataclass(frozen=True)
class Precision(_Ratio):
    """The share of right ones among the answers of a class: `macro_precision`."""

    word: ClassVar[str] = "precision"

    def ratio(self, right: np.ndarray, answered: np.ndarray, actual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return right by given answers."""
        return right, answered


@dataclass(frozen=True)
class Recall(_Ratio):
    """The share of a class's samples that are found: `macro_recall`."""

    word: ClassVar[str] = "recall"

    def ratio(self, right: np.ndarray, answered: np.ndarray, actual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return right by true answers."""
        return right, actual


@dataclass(frozen=True)
class F1(_Ratio):
    """The harmonic mean of precision and recall: `macro_f1`, `micro_f1`, or `f1_3` for class 3."""

    word: ClassVar[str] = "f1"

    def ratio(self, right: np.ndarray, answered: np.ndarray, actual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return twice the right ones by given and true ones."""
        return 2 * right, answered + actual


@dataclass(frozen=True)
class Dice(F1):
    """The Dice coefficient of the pixels of a class, which is their F1: `macro_dice`."""

    word: ClassVar[str] = "dice"


@dataclass(frozen=True)
class IoU(_Ratio):
    """Intersection over union, the Jaccard index: `macro_iou`, the mean over classes, or `iou_1` for class 1."""

    word: ClassVar[str] = "iou"

    def ratio(self, right: np.ndarray, answered: np.ndarray, actual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the intersection by the union."""
        return right, answered + actual - right


@dataclass(frozen=True)
class BalancedAccuracy(Metric):
    """The mean recall of the classes that occur in the labels: `balanced_accuracy`."""

    directions: ClassVar[Mapping[str, Direction]] = {"balanced_accuracy": "max"}
    takes: ClassVar[tuple[Kind, ...]] = ("label", "mask")

    def sums(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the counts of each class."""
        return count_answers(outputs, batch["target"])

    def values(self, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the mean recall."""
        there = found["actual"] > 0
        recalls = divide(found["right"], found["actual"])[there]
        return {"balanced_accuracy": float(recalls.mean()) if len(recalls) else float("nan")}
