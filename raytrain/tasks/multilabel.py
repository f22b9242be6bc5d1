"""Several labels for each sample."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from raytrain import errors
from raytrain.config import check
from raytrain.data.batch import Batch
from raytrain.tasks import counts
from raytrain.tasks.metric import Direction, Kind, Metric
from raytrain.tasks.supervised import Supervised, only_target, target_of
from raytrain.tasks.task import losses

if TYPE_CHECKING:
    import numpy as np
    import torch

    from raytrain.data.source import Index


def outside_of_answers(wanted: torch.Tensor, name: str) -> errors.UserError:
    """Return the error for targets of a sample of which one is below 0 or above 1: their binary cross entropy has no
    lowest value.

    Args:
        wanted: floats [classes].
        name: the sample's.
    """
    least, most = float(wanted.min()), float(wanted.max())
    number = most if most > 1 else least
    what = f"the targets of {name} have the number {number:g}, and those of MultiLabel are from 0 to 1"
    how = "write 1 for the classes that a sample has and 0 for others; derive a task for classes that are not known"
    return errors.UserError(what, "in task.target", how)


@dataclass(frozen=True)
class MultiLabel(Supervised):
    """Any number of labels a sample: binary cross entropy, the mean over classes, and the share of right yes-or-no
    answers (`accuracy`)."""

    directions: ClassVar[Mapping[str, Direction]] = {"accuracy": "max"}
    """The highest accuracy is the best."""
    kind: ClassVar[Kind] = "labels"
    """What the task wants of a sample."""

    target: str = ""
    """The field with a number for each class, 1 if the sample has it and 0 if not: [classes] of any dtype, or [] for
    one class. By default the data's only field besides the input and `inputs`."""
    classes: tuple[str, ...] = ()
    """Names of the classes, for predictions and tables; numbers by default."""
    pos_weight: tuple[float, ...] = ()
    """Factor on the training loss of what a sample has, for each class, or one for all: as in BCEWithLogitsLoss."""
    monitor: str = "val_loss"
    """The metric that chooses the best checkpoint: val_loss, val_accuracy, val_macro_f1 or another value of
    `metrics`."""
    metrics: tuple[Metric, ...] = field(default_factory=lambda: (counts.F1(),), kw_only=True)  # type: ignore[assignment]
    """What an evaluation measures besides, such as (F1(), AUROC()); each value can be `monitor`."""

    def __post_init__(self) -> None:
        check(self, pos_weight=counts.WEIGHTS)
        self.check_metrics()

    def training_loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the binary cross entropy: for each sample the mean over classes, summed over samples."""
        return losses().several(outputs, batch["target"], self.pos_weight).sum()

    def wanted(self, batch: Batch) -> torch.Tensor:
        """Return the targets, float32 [n, classes]."""
        wanted = target_of(batch, self.target).float()
        return wanted[:, None] if wanted.ndim == 1 else wanted

    def fitted(self, outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Check that outputs and targets have the same shape."""
        if outputs.shape != wanted.shape:
            what = f"the model gives {list(outputs.shape)} and the targets are {list(wanted.shape)}"
            count = wanted.shape[-1]
            raise errors.UserError(what, "in task", f"let the model end in {count} output{'s' * (count != 1)}")
        return outputs

    def each(self, outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Return the binary cross entropy, without weights."""
        return losses().several(outputs.float(), wanted)

    def own_sums(self, outputs: torch.Tensor, wanted: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the counts of each class, and how many answers are right."""
        same = ((outputs > 0) == (wanted > 0.5)).sum()
        return {"same": same, **counts.count_answers(outputs, wanted)}

    def results(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the mean loss and the share of right answers."""
        answers = float(sums["count"]) * len(sums["actual"])
        return {**super().results(sums), "accuracy": float(sums["same"]) / answers}

    def per_class(self, sums: Mapping[str, np.ndarray], classes: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return precision, recall, F1 and number of samples of each class."""
        names = self.class_names(classes)
        return counts.per_class(sums, names if len(names) == len(sums["actual"]) else ())

    def mean_of_views(self, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the logits of the mean probabilities."""
        return losses().mean_of_each(outputs)

    def predictions(self, outputs: torch.Tensor, classes: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return `labels`, the names of the classes with a probability above 0.5, with spaces between them, and the
        `probabilities` of all."""
        shares = outputs.float().sigmoid().cpu()
        labels = self._named(shares, classes)
        return [{"labels": names, "probabilities": share.tolist()} for names, share in zip(labels, shares, strict=True)]

    def truths(self, batch: Batch, classes: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return the names of a sample's classes as `true_labels`."""
        return [{"true_labels": names} for names in self._named(MultiLabel.wanted(self, batch), classes)]

    def _named(self, shares: torch.Tensor, classes: tuple[str, ...]) -> list[str]:
        """Return the names of the classes of which a sample has more than one half, with spaces between them."""
        names = self.class_names(classes)
        names = names if len(names) == shares.shape[1] else tuple(map(str, range(shares.shape[1])))
        words = [json.dumps(name, ensure_ascii=False) if re.search(r'[\s"]|^$', name) else name for name in names]
        return [
            " ".join(word for word, one in zip(words, share, strict=True) if one > 0.5) for share in shares.tolist()
        ]

    def class_names(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the task's names of classes, or the data's."""
        return self.classes or classes

    def constant(self, wanted: torch.Tensor, classes: int) -> torch.Tensor:
        """Return the logits of each class's share of the samples."""
        return wanted.double().mean(0).clamp(1e-7, 1 - 1e-7).logit().float()

    def constant_words(self, answer: torch.Tensor, classes: tuple[str, ...]) -> str:
        """Return that it answers with the classes' shares."""
        return "always each class's share of the training samples"

    def check_data(self, index: Index) -> None:
        """Check that there is a field with a number for each class, and a name and a weight for each, where given."""
        name = only_target(index, self.target, type(self).__name__)
        shape = next(field.shape for field in index.fields if field.name == name)
        if len(shape) > 1:
            what = f"the targets of {type(self).__name__} must be [classes], got {list(shape)} for {name!r}"
            raise errors.UserError(what, "in task.target", "declare a Field with a number for each class")
        classes = shape[0] if shape else 1
        counts.check_weights("classes", self.classes, classes)
        if len(self.pos_weight) != 1:
            counts.check_weights("pos_weight", self.pos_weight, classes)
        for metric in self.metrics:
            metric.check_classes(classes)
