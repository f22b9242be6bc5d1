"""Regression: one or several numbers for each sample."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from raytrain import errors
from raytrain.config import above, check
from raytrain.data.batch import Batch
from raytrain.tasks.distances import MAE, R2, RMSE
from raytrain.tasks.metric import Kind, Metric
from raytrain.tasks.supervised import Supervised, only_target, target_of
from raytrain.tasks.task import losses

if TYPE_CHECKING:
    import torch
    from torch import nn

    from raytrain.data.source import Index


@dataclass(frozen=True)
class Regression(Supervised):
    """Numbers as targets: the squared, absolute or Huber error, the mean over a sample's numbers."""

    kind: ClassVar[Kind] = "number"
    """What the task wants of a sample."""

    target: str = ""
    """The field to predict, of any shape and dtype: () for one number. By default the data's only field besides the
    input. The model's output must have as many numbers for a sample."""
    error: Literal["mse", "mae", "huber"] = "mse"
    """The loss: squared errors, absolute ones, or squared ones (halved) that go on as absolute ones."""
    huber_delta: float = 1.0
    """The error at which the Huber loss turns from squared to absolute."""
    monitor: str = "val_loss"
    """The metric that chooses the best checkpoint: val_loss, val_mae, val_rmse, val_r2 or another value of
    `metrics`."""
    metrics: tuple[Metric, ...] = field(default_factory=lambda: (MAE(), RMSE(), R2()), kw_only=True)  # type: ignore[assignment]
    """What an evaluation measures besides; each value can be `monitor`."""

    def __post_init__(self) -> None:
        check(self, huber_delta=above(0))
        self.check_metrics()

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        """Return the error: for each sample the mean over its numbers, summed over samples."""
        wanted = self.wanted(batch)
        return self.each(self.fitted(model(batch.input), wanted), wanted).sum(), len(batch)

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
        return outputs.reshape(wanted.shape)

    def each(self, outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Return the error of each sample."""
        outputs = losses().wide(outputs)
        return losses().distances(outputs, wanted.to(outputs.dtype), self.error, self.huber_delta)

    def predictions(self, outputs: torch.Tensor, classes: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return the numbers as columns: the target's name, with a number behind it if there are several."""
        rows, name = outputs.float().reshape(_count(outputs), -1).tolist(), self.target or "prediction"
        return [
            {name: row[0]} if len(row) == 1 else {f"{name}_{number}": value for number, value in enumerate(row)}
            for row in rows
        ]

    def constant(self, wanted: torch.Tensor, classes: int) -> torch.Tensor:
        """Return the mean of the targets for squared errors, else their median."""
        numbers = wanted.double()
        return (numbers.mean(0) if self.error == "mse" else numbers.quantile(0.5, 0)).float()

    def constant_words(self, answer: torch.Tensor, classes: tuple[str, ...]) -> str:
        """Return the number, or which numbers."""
        which = "mean" if self.error == "mse" else "median"
        return f"always the {which}" + (f", {float(answer):.4g}" if answer.numel() == 1 else " of each target")

    def check_data(self, index: Index) -> None:
        """Check that there is the target's field."""
        only_target(index, self.target, type(self).__name__)


def _count(outputs: torch.Tensor) -> int:
    """Return the number of samples of a model's outputs."""
    return len(outputs) if outputs.ndim else 1
