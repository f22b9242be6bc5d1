"""Classification by cross-entropy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from raytrain import errors
from raytrain.config import check
from raytrain.data.batch import Batch
from raytrain.tasks.task import Task

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn


@dataclass(frozen=True)
class Classification(Task):
    """One label a sample: cross entropy, top-1 and top-5 accuracy, and a confusion matrix."""

    directions: ClassVar[Mapping[str, Literal["min", "max"]]] = {"accuracy": "max", "top5_accuracy": "max"}
    """The highest accuracy is the best."""

    monitor: str = "val_accuracy"
    """The metric that chooses the best checkpoint: val_accuracy, val_loss, or val_top5_accuracy for more than
    five classes."""
    label_smoothing: float = 0.0
    """Share of the target that is spread over all classes while training (Szegedy et al., 2016)."""

    def __post_init__(self) -> None:
        check(self, label_smoothing=(lambda share: 0 <= share < 1, "in [0, 1)"))

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        """Return the cross entropy with label smoothing, to the targets of mixed images."""
        torch = _torch()
        logits = model(batch.input)
        wanted = batch.labels if batch.targets is None else batch.targets
        loss = torch.nn.functional.cross_entropy
        return loss(logits, wanted, label_smoothing=self.label_smoothing, reduction="sum"), len(batch)

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the cross entropy (without smoothing), right answers among the first 1 and 5, and counts of
        (label, answer), int64 [classes, classes]."""
        torch = _torch()
        logits = model(batch.input)
        classes = logits.shape[1]
        best = logits.topk(min(5, classes), dim=1).indices
        pairs = torch.bincount(batch.labels * classes + best[:, 0], minlength=classes * classes)
        return {
            "loss": torch.nn.functional.cross_entropy(logits.float(), batch.labels, reduction="none").double().sum(),
            "count": torch.tensor(len(batch)),
            "top1": (best[:, 0] == batch.labels).sum(),
            "top5": (best == batch.labels[:, None]).any(dim=1).sum(),
            "confusion": pairs.view(classes, classes),
        }

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the mean loss, the accuracy, and the top-5 accuracy for more than five classes."""
        count = float(sums["count"])
        result = {"loss": float(sums["loss"]) / count, "accuracy": float(sums["top1"]) / count}
        if len(sums["confusion"]) > 5:
            result["top5_accuracy"] = float(sums["top5"]) / count
        return result

    def check_model(self, output: tuple[int, ...], classes: int, where: str) -> None:
        """Check that the data has labels and the output is [1, classes]."""
        if not classes:
            raise errors.UserError(
                f"{type(self).__name__} needs labels, and the data has none",
                "in task",
                "give labels and classes to Index, or write a Task of your own, with a loss for this data",
            )
        if output != (1, classes):
            raise errors.UserError(
                f"the model's head does not fit the classes: it gives {list(output)} for one sample and "
                f"the data has {classes} classes",
                f"in {where}",
                f"let its build() end in {classes} outputs",
            )


def _torch():
    """Return torch, imported late: `--help` needs the fields only."""
    import torch

    return torch
