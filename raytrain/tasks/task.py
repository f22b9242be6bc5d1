"""Task: a loss, and the sums that its metrics need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, ClassVar, Literal

from raytrain import errors
from raytrain.config import check
from raytrain.data.batch import Batch
from raytrain.user_code.places import place

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn


@dataclass(frozen=True)
class Task:
    """The base of all tasks. Subclass it in an experiment file, as a frozen dataclass, to bring your own.

    A task returns sums over samples: raytrain adds them up over micro-batches and ranks and divides once, so losses and
    metrics are exact for any number of workers.
    """

    directions: ClassVar[Mapping[str, Literal["min", "max"]]] = {"loss": "min"}
    """Whether the lowest or the highest value of a metric is the best, by the metric's name in `metrics`. A subclass
    declares its own metrics; what its base classes declare holds too."""

    monitor: str = "val_loss"
    """The metric that chooses the best checkpoint: `val_` and a name that `directions` declares."""

    def __post_init__(self) -> None:
        check(self)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        """Return the loss summed over the batch's samples (a scalar with gradient), and the number of samples.

        Raises:
            NotImplementedError: always, in the base class.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a loss(model, batch)")

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        """Return what evaluation adds up over all samples: tensors of any shape, with `loss` and `count` among them."""
        import torch  # `--help` needs the fields only

        loss, count = self.loss(model, batch)
        return {"loss": loss, "count": torch.tensor(count)}

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the metrics from the sums over all samples, `loss` among them."""
        return {"loss": float(sums["loss"] / sums["count"])}

    def check_model(self, output: tuple[int, ...], classes: int, where: str) -> None:
        """Check, before anything starts, that the shape of the model's output for one sample suits the task.

        Raises:
            UserError: it does not.
        """

    @classmethod
    def declared(cls) -> dict[str, Literal["min", "max"]]:
        """Return `directions` of this class and its base classes, by the metric's name in metrics.jsonl: `val_loss`."""
        found = [vars(kind).get("directions", {}) for kind in reversed(cls.__mro__)]
        return {f"val_{name}": direction for each in found for name, direction in each.items()}

    def check_monitor(self) -> None:
        """Check that `monitor` has a declared direction.

        Raises:
            UserError: it has none, or one that is neither `min` nor `max`.
        """
        kind, known = type(self), self.declared()
        for name, direction in known.items():
            if direction not in ("min", "max"):
                metric = name.removeprefix("val_")
                what = f"directions[{metric!r}] must be 'min' or 'max', got {direction!r}"
                raise errors.UserError(what, f"in {place(kind)}", "write 'min' where the lowest value is the best")
        if self.monitor in known:
            return
        metric, others = self.monitor.removeprefix("val_"), [name.removeprefix("val_") for name in known]
        close = get_close_matches(metric, others, n=1)
        how = f"did you mean val_{close[0]}? " if close else ""
        if kind.__module__.startswith("raytrain."):
            how += f"the metrics are {', '.join(known)}"
        else:
            how += (
                f'write `directions = {{"{metric}": "min"}}` into class {kind.__name__}, '
                'or "max" where the highest value is the best'
            )
            how += "" if self.monitor.startswith("val_") else f", and monitor val_{metric}"
        raise errors.UserError(f"no direction is declared for task.monitor {self.monitor!r}", f"in {place(kind)}", how)

    @property
    def highest_is_best(self) -> bool:
        """Whether a higher value of `monitor` is better.

        Raises:
            UserError: `monitor` has no declared direction.
        """
        self.check_monitor()
        return self.declared()[self.monitor] == "max"
