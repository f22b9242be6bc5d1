"""Regression: one or several numbers for each sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from raytrain import errors
from raytrain.config import above, check
from raytrain.data.batch import Batch
from raytrain.tasks.distances import MAE, R2, RMSE
from raytrain.tasks.metric import Metric
from raytrain.tasks.supervised import Supervised, only_target, target_of
from raytrain.tasks.task import losses

if TYPE_CHECKING:
    import torch

    from raytrain.data.source import Index

_SHOWN = 4
"""Numbers whose means a note shows."""


@dataclass(frozen=True)
class Regression(Supervised):
    """Numbers as targets: the squared, absolute or Huber error, the mean over a sample's numbers."""

    target: str = ""
    """The field to predict, of any shape and dtype: () for one number. By default the data's only field besides the
    input and `inputs`. The model's output must have as many numbers for a sample."""
    error: Literal["mse", "mae", "huber"] = "mse"
    """The loss: squared errors, absolute ones, or squared ones (halved) that go on as absolute ones."""
    huber_delta: float = 1.0
    """The error at which the Huber loss turns from squared to absolute."""
    monitor: str = "val_loss"
    """The metric that chooses the best checkpoint: val_loss, val_mae, val_rmse, val_r2 or another value of
    `metrics`."""
    metrics: tuple[Metric, ...] = field(default_factory=lambda: (MAE(), RMSE(), R2()), kw_only=True)  # type: ignore[assignment]
    """What an evaluation measures besides; each value can be `monitor`."""
    mean: tuple[float, ...] = field(default=(), kw_only=True)
    """Mean of the training targets, of all numbers or of each. The model learns (target - mean) / std, so that learning
    rates, the loss and `huber_delta` do not depend on the targets' units. Metrics, predictions and exported programs
    have the targets' units."""
    std: tuple[float, ...] = field(default=(), kw_only=True)
    """Standard deviation of the training targets, of all numbers or of each."""
    names: tuple[str, ...] = field(default=(), kw_only=True)
    """Names of a sample's numbers in predictions and reports, such as the columns of a table; by default the name of
    the target, with a number behind it if there are several."""

    def __post_init__(self) -> None:
        finite = (lambda values: all(map(math.isfinite, values)), "with finite numbers")
        positive = (lambda values: all(0 < value < math.inf for value in values), "with finite numbers above 0")
        apart = (lambda names: all(names) and len({*names}) == len(names), "with different names")
        check(self, huber_delta=above(0), mean=finite, std=positive, names=apart)
        self.check_metrics()

    def wanted(self, batch: Batch) -> torch.Tensor:
        """Return the targets [n, ...]."""
        return target_of(batch, self.target)

    def fitted(self, outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Return the outputs in the targets' shape: [n, 1] suits one number a sample, and so does [], which `squeeze()`
        makes of a batch of one."""
        if outputs.numel() != wanted.numel() or _count(outputs) != len(wanted):
            what = f"the model gives {list(outputs.shape)} and the targets are {list(wanted.shape)}"
            count = wanted.shape[1:].numel()
            raise errors.UserError(what, "in task", f"let the model end in {count} output{'s' * (count != 1)}")
        return self.in_units(outputs.reshape(wanted.shape))

    def in_units(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the model's outputs in the units of the targets."""
        if not self.mean and not self.std:
            return outputs
        outputs = losses().wide(outputs)
        return outputs * self._of_each(self.std, 1.0, outputs) + self._of_each(self.mean, 0.0, outputs)

    def _of_each(self, values: tuple[float, ...], default: float, outputs: torch.Tensor) -> torch.Tensor | float:
        """Return the mean or the standard deviation as it suits outputs or targets [n, ...]."""
        if len(values) < 2:
            return values[0] if values else default
        shape = outputs.shape[1:]
        if shape.numel() != len(values):
            what = f"mean and std must have one number or {shape.numel()}, as many as the target, got {len(values)}"
            raise errors.UserError(what, "in task", "give one for each number of the target")
        found = losses().numbers(values, outputs.device)
        assert found is not None
        return found.reshape(shape)

    def each(self, outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Return the error of each sample, the mean over its numbers, divided by std."""
        outputs = losses().wide(outputs)
        wanted = wanted.to(outputs.dtype)
        if self.std:
            std = self._of_each(self.std, 1.0, outputs)
            outputs, wanted = outputs / std, wanted / std
        return losses().distances(outputs, wanted, self.error, self.huber_delta)

    def mean_of_views(self, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the mean."""
        return losses().mean(outputs)

    def predictions(self, outputs: torch.Tensor, classes: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return a column for each number, called as `names` says."""
        return self._rows(self.in_units(outputs.float()), "prediction")

    def truths(self, batch: Batch, classes: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return a column for each number, called as `names` says, with `true_` before it; or `true_value`."""
        rows = self._rows(target_of(batch, self.target), "value")
        return [{f"true_{name}": value for name, value in row.items()} for row in rows]

    def _rows(self, numbers: torch.Tensor, name: str) -> list[dict[str, Any]]:
        rows, name = numbers.reshape(_count(numbers), -1), self.target or name
        count = rows.shape[1]
        names = self.names or ((name,) if count == 1 else tuple(f"{name}_{number}" for number in range(count)))
        return [dict(zip(names, row, strict=True)) for row in rows.tolist()]

    def constant(self, wanted: torch.Tensor, classes: int) -> torch.Tensor:
        """Return what gives the mean of the targets for squared errors, else their median."""
        numbers = wanted.double()
        answer = numbers.mean(0) if self.error == "mse" else numbers.quantile(0.5, 0)
        scaled = (answer[None] - self._of_each(self.mean, 0.0, wanted)) / self._of_each(self.std, 1.0, wanted)
        return scaled[0].float()

    def constant_words(self, answer: torch.Tensor, classes: tuple[str, ...]) -> str:
        """Return the number, or which numbers."""
        which = "mean" if self.error == "mse" else "median"
        if answer.numel() > 1:
            return f"always the {which} of each target"
        return f"always the {which}, {float(self.in_units(answer[None])):.4g}"

    def constant_note(self, wanted: torch.Tensor) -> str:
        """Return a line where the targets are far from a mean of 0 and a standard deviation of 1."""
        numbers = wanted.double().flatten(1) if wanted.ndim > 1 else wanted.double()[:, None]
        mean, std = numbers.mean(0), numbers.std(0, correction=0)
        far = (std > 10) | (std < 0.1) | (mean.abs() > 10 * std)
        if self.mean or self.std or not far.any() or not (std > 0).all():
            return ""
        values = [", ".join(f"{value:.4g}" for value in one.tolist()) for one in (mean, std)]
        comma = "," if len(mean) == 1 else ""
        how = f"Regression(mean=({values[0]}{comma}), std=({values[1]}{comma}))"
        how = how if len(mean) <= _SHOWN else "set mean and std of Regression"
        return f"a model learns these numbers faster if they are scaled: {how}"

    def check_data(self, index: Index) -> None:
        """Check that there is the target's field, with as many numbers as there are names."""
        target = only_target(index, self.target, type(self).__name__)
        count = next(math.prod(one.shape) for one in index.fields if one.name == target)
        if self.names and len(self.names) != count:
            what = f"names must have {count}, one for each number of the target, got {len(self.names)}"
            raise errors.UserError(what, "in task", "name each number, or leave names out")


def _count(outputs: torch.Tensor) -> int:
    """Return the number of samples of a model's outputs."""
    return len(outputs) if outputs.ndim else 1
