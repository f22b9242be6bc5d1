"""TorchMetric: a metric of torchmetrics."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from raytrain import errors
from raytrain.config import check
from raytrain.data.batch import Batch
from raytrain.tasks.metric import Direction, Metric
from raytrain.tasks.task import losses
from raytrain.user_code.wrappers import Wrapped, Wraps, target_of, where_is

if TYPE_CHECKING:
    import numpy as np
    import torch


@dataclass(frozen=True, repr=False)
class TorchMetric(Wrapped, Metric):
    """A metric of torchmetrics: `TorchMetric(torchmetrics.classification.MulticlassCohenKappa)`.

    The first argument is a class derived from `torchmetrics.Metric`, or a function of your own that returns a metric.
    All its other arguments are given by name and become fields. An argument `num_classes` or `num_labels` that is not
    given is the size of the second axis of the model's outputs. Metrics of torchmetrics.classification get targets of
    several labels as int64. The metric gets the outputs and targets of all samples at once, so that its value has the
    same bits on any number of workers: they take memory on every rank.
    """

    column: str = dataclasses.field(default="", kw_only=True)
    """The value's name in metrics.jsonl, after `val_`; empty is the class's name, as in multiclass_cohen_kappa."""
    direction: Literal["declared", "min", "max"] = dataclasses.field(default="declared", kw_only=True)
    """Whether the lowest or the highest value is the best; declared takes the metric's own `higher_is_better`."""

    _wraps: ClassVar[Wraps] = Wraps(
        "a class derived from torchmetrics.Metric or a function that returns a metric",
        "torchmetrics.classification.MulticlassCohenKappa",
        ("torchmetrics", "Metric"),
        derived=("num_classes", "num_labels"),
    )
    """What it wraps."""

    def __post_init__(self) -> None:
        check(self)
        if self.column and not re.fullmatch(r"[a-z0-9_]+", self.column):
            raise errors.out_of_range("column", self.column, "of lower-case letters, digits and _", "TorchMetric")
        target = target_of(type(self))
        if self.direction == "declared" and not isinstance(getattr(target, "higher_is_better", None), bool):
            what = f"{target.__name__} does not declare whether a higher value is better"
            raise errors.UserError(what, f"in {where_is(target)}", 'add direction="max", or "min"')

    def declared(self) -> Mapping[str, Direction]:
        """Return the one value's name and direction."""
        target = target_of(type(self))
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", target.__name__)
        name = self.column or words.lower()
        if self.direction == "declared":
            return {name: "max" if target.higher_is_better else "min"}
        return {name: self.direction}

    def samples(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Return the outputs and the targets."""
        return {"outputs": losses().wide(outputs), "target": batch["target"]}

    def values(self, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the metric's value over all samples.

        Raises:
            UserError: it is not one number.
        """
        outputs = found["outputs"]
        size: Any = outputs.shape[1] if outputs.ndim > 1 else None
        value = losses().measured(self._called(num_classes=size, num_labels=size), outputs, found["target"])
        (name,) = self.declared()
        if value is None:
            target = target_of(type(self))
            how = 'give it arguments with which it does, such as average="macro"'
            raise errors.UserError(f"{target.__name__} does not compute one number", f"in {where_is(target)}", how)
        return {name: value if math.isfinite(value) else math.nan}
