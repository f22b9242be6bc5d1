"""Metrics of the order of scores, which no sums determine: AUROC and average precision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raytrain.data.batch import Batch
from raytrain.tasks.metric import ClassMetric, Kind

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class _Area(ClassMetric):
    """An area below a curve: each class against the others, averaged over the classes that have an area.

    Keeps the scores of all samples, 4 bytes for each sample and class, on every rank while it evaluates.
    """

    takes: ClassVar[tuple[Kind, ...]] = ("label", "labels")

    def samples(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the scores, float32 [n, classes] or [n, 1] for one class, and whether each is true, bool of that
        shape. The scores of labels are probabilities."""
        classes, target = outputs.shape[1], batch["target"]
        self.check_classes(classes)
        chosen = slice(None) if (number := self.number) is None else slice(number, number + 1)
        if target.is_floating_point():
            return {"scores": outputs.float()[:, chosen], "true": target[:, chosen] > 0.5}
        numbers = target.new_tensor(range(classes))[chosen]
        return {"scores": outputs.float().softmax(1)[:, chosen], "true": target[:, None] == numbers}

    def values(self, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the mean area; not a number if no class has one, or a score is not finite."""
        scores, true = found["scores"], found["true"].astype(bool)
        mixed = [number for number in range(scores.shape[1]) if self.defined(true[:, number])]
        if not mixed or not np.isfinite(scores).all():
            return {self.name: float("nan")}
        return {self.name: float(np.mean([self.area(scores[:, number], true[:, number]) for number in mixed]))}

    def defined(self, true: np.ndarray) -> bool:
        """Return whether a class with these samples has an area."""
        return bool(true.any())

    def area(self, scores: np.ndarray, true: np.ndarray) -> float:
        """Return the area of one class, from float32 [n] and bool [n]."""
        raise NotImplementedError


@dataclass(frozen=True)
class AUROC(_Area):
    """Area under the ROC curve: `auroc`, the mean over classes (each against the others), or `auroc_1` for class 1.
    Classes that all samples have, or none, are left out."""

    word: ClassVar[str] = "auroc"

    def defined(self, true: np.ndarray) -> bool:
        """Return whether there are samples of the class and of others."""
        return bool(true.any() and not true.all())

    def area(self, scores: np.ndarray, true: np.ndarray) -> float:
        """Return the share of pairs (of the class, of another) that the scores order; equal scores count half."""
        _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
        middles = np.cumsum(counts) - (counts - 1) / 2  # ranks from 1; equal scores share the middle one
        yes = int(true.sum())
        return (middles[places][true].sum() - yes * (yes + 1) / 2) / (yes * (len(true) - yes))


@dataclass(frozen=True)
class AveragePrecision(_Area):
    """Area under the precision-recall curve by steps: `average_precision`, the mean over classes (each against the
    others), or `average_precision_1` for class 1. Classes without samples are left out."""

    word: ClassVar[str] = "average_precision"

    def area(self, scores: np.ndarray, true: np.ndarray) -> float:
        """Return the sum over thresholds of precision times the gain in recall."""
        _, places = np.unique(-scores, return_inverse=True)
        all_, yes = np.bincount(places), np.bincount(places, weights=true)
        precision = np.cumsum(yes) / np.cumsum(all_)
        return float((precision * yes).sum() / yes.sum())
