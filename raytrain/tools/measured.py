"""What an evaluation has added up, before it becomes metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from raytrain.tasks.metrics import Sums
from raytrain.tasks.task import Task
from raytrain.tools.groups import Groups

_HERE = torch.device("cpu")


class Measured(NamedTuple):
    """The sums of a checkpoint over samples.

    Attributes:
        task: the run's, as it is for the split.
        groups: the same sums by the values of a column.
        samples: their number.
        facts: what was evaluated.
        skipped: the samples that were left out.
    """

    task: Task
    sums: Sums
    groups: Groups | None
    samples: int
    classes: tuple[str, ...]
    facts: dict[str, Any]
    skipped: tuple[str, ...]

    def metrics(self) -> dict[str, Any]:
        """Return the metrics, and `count`."""
        return self._metrics(self.sums.reduce(_HERE))

    def figures(self) -> dict[str, Any]:
        """Return the metrics, the facts, and `confusion`, `per_class` and `groups` where there are some."""
        parted = {"groups": self.groups.results(_HERE)} if self.groups else {}
        sums = self.sums.reduce(_HERE)
        by_class = _by_class(self.task, sums, self.classes)
        return {**self._metrics(sums), **self.facts, "skipped": [*self.skipped], **by_class, **parted}

    def _metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return {**self.task.results(sums), "count": int(sums["count"]) if "count" in sums else self.samples}

    def merged(self, other: Measured) -> Measured:
        """Return the sums over two sets of samples, of runs of the same experiment."""
        self.sums.merge(other.sums)
        if self.groups and other.groups:
            self.groups.merge(other.groups)
        return self._replace(samples=self.samples + other.samples, skipped=(*self.skipped, *other.skipped))


def _by_class(task: Task, sums: Mapping[str, np.ndarray], classes: tuple[str, ...]) -> dict[str, Any]:
    """Return the confusion matrix and the rows per class, of a task that has them."""
    found: dict[str, Any] = {}
    if "confusion" in sums:
        found |= {"classes": list(classes), "confusion": sums["confusion"].tolist()}
    if table := task.per_class(sums, classes):
        found["per_class"] = table
    return found
