"""Task: a loss, and the sums that its metrics need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import isfunction
from typing import TYPE_CHECKING, Any, ClassVar, Self

from raytrain import errors
from raytrain.config import check
from raytrain.data.batch import Batch
from raytrain.tasks.metric import Direction
from raytrain.user_code.places import place

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

    from raytrain.data.source import Index


@dataclass(frozen=True)
class Task:
    """The base of all tasks. Subclass it in an experiment file, as a frozen dataclass, to bring your own.

    A task returns sums over samples: raytrain adds them up over micro-batches and ranks and divides once, so losses and
    metrics are exact for any number of workers.
    """

    directions: ClassVar[Mapping[str, Direction]] = {"loss": "min"}
    """Whether the lowest or the highest value of a metric is the best, by the metric's name in `results`. A subclass
    declares its own metrics; what its base classes declare holds too."""

    monitor: str = "val_loss"
    """The metric that chooses the best checkpoint: `val_` and a name that `directions` declares."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if isfunction(own := vars(cls).get("metrics")) and "results" not in vars(cls):
            cls.results = own  # in raytrain 0.1 it had that name

    def __post_init__(self) -> None:
        check(self)

    def start(self, open_model: Callable[[str], nn.Module], device: torch.device) -> None:
        """Prepare this process, before the first loss. No-op by default.

        Args:
            open_model: returns the model of a run's directory or of an exported .pt2 file, on the CPU.
            device: of the batches.
        """

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """Return the model's outputs for a batch: of its input alone, `model(batch.input)`, by default.

        Override it to give a model more, as `return model(batch.images, batch["age"])`. The losses and sums of the
        package's tasks call it, and so do the plan and `predict --split`.
        """
        return model(batch.input)

    @property
    def gives_more(self) -> bool:
        """Whether the task gives a model something else than the batch's input."""
        return type(self).forward is not Task.forward

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        """Return the loss summed over the batch's samples (a scalar with gradient), and the number of samples.

        Raises:
            NotImplementedError: always, in the base class.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a loss(model, batch)")

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, Any]:
        """Return what evaluation adds up over all samples: tensors of any shape, with `loss` and `count` among them;
        and what it collects of each sample, as `PerSample`."""
        loss, count = self.loss(model, batch)
        return {"loss": loss, "count": losses().count(count)}

    def results(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the metrics from the sums over all samples, `loss` among them."""
        return {"loss": float(sums["loss"] / sums["count"])}

    def metrics(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return `results` of the first base class that has it under this name; classes that override `metrics`, its
        name in raytrain 0.1, call it."""
        kinds = [kind for kind in type(self).__mro__ if "results" in vars(kind)]
        kind = next(kind for kind in kinds if kind is Task or not isfunction(vars(kind).get("metrics")))
        return kind.results(self, sums)

    def per_class(self, sums: Mapping[str, np.ndarray], classes: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return a row of figures for each class, for `raytrain evaluate`; none by default."""
        return []

    def predictions(self, outputs: torch.Tensor, classes: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return what the model's outputs [n, ...] say of each sample: columns of `raytrain predict` by name, each a
        number or a string; `probabilities`, a number for each class; or `mask`, uint8 or int32 [height, width].

        Args:
            classes: the names of the data's classes.

        Raises:
            UserError: the task does not say, as in the base class.
        """
        how = "write `def predictions(self, outputs, classes)`, or use the model: raytrain.Run(path).model()"
        raise self._lacks("predict needs a task that says what it predicts", how)

    def in_units(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the model's outputs as exported programs give them: as they are by default."""
        return outputs

    def mean_of_views(self, outputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return one answer from those to several views of each sample, for `--tta`.

        Args:
            outputs: the model's [n, ...], of each view.

        Raises:
            UserError: the task does not say, as in the base class.
        """
        how = "leave it out, or write `def mean_of_views(self, outputs)`, which returns one answer for a list of them"
        raise self._lacks("--tta needs a task that averages its answers", how)

    def _lacks(self, what: str, how: str) -> errors.UserError:
        what = f"{what}, and this run's task is {type(self).__name__}"
        return errors.UserError(what, f"in {place(type(self))}", how)

    def class_names(self, classes: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of what `probabilities` are of: the data's classes by default."""
        return classes

    def bound(self, index: Index) -> Self:
        """Return the task for the data of an index, whose `classes` are those of training: of each process that trains
        or evaluates, and of the plan. By default the task itself.

        Raises:
            UserError: a field names a class that there is not.
        """
        return self

    def check_data(self, index: Index) -> None:
        """Check, before anything starts, that the training samples have what the task needs. No-op by default.

        Raises:
            UserError: they do not.
        """

    def check_model(self, output: tuple[int, ...], classes: int, where: str) -> None:
        """Check, before anything starts, that the shape of the model's output for one sample suits the task.

        Raises:
            UserError: it does not.
        """

    def absolute(self) -> Task:
        """Return the task with absolute paths, which hold in workers too: they run in other folders."""
        return self

    def declared(self) -> dict[str, Direction]:
        """Return `directions` of the class and its base classes, by the metric's name in metrics.jsonl: `val_loss`."""
        found = [vars(kind).get("directions", {}) for kind in reversed(type(self).__mro__)]
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
        what = f"no direction is declared for task.monitor {self.monitor!r}"
        close = errors.close(metric, others)
        how = f"did you mean val_{close[0]}? " if close else ""
        takes = any(f.name == "metrics" for f in fields(self))
        own = [one for one in kind.__mro__ if not one.__module__.startswith("raytrain.")]
        if kind not in own or (takes and not any({"directions", "results", "sums"} & vars(one).keys() for one in own)):
            what = f"task.monitor {self.monitor!r} is no metric of this task"
            how += f"take one of {', '.join(known)}"
            how += ", or add its metric to task.metrics" if takes else ""
        else:
            how += (
                f'write `directions = {{"{metric}": "min"}}` into class {kind.__name__}, '
                'or "max" where the highest value is the best'
            )
            how += "" if self.monitor.startswith("val_") else f", and monitor val_{metric}"
        raise errors.UserError(what, f"in {place(kind)}", how)

    @property
    def highest_is_best(self) -> bool:
        """Whether a higher value of `monitor` is better.

        Raises:
            UserError: `monitor` has no declared direction.
        """
        self.check_monitor()
        return self.declared()[self.monitor] == "max"


def losses():
    """Return the module of losses, imported late: `--help` needs the fields only."""
    from raytrain.tasks import losses

    return losses
