"""The base of tasks that compare the model's outputs with a target, by metrics that are values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from raytrain import errors
from raytrain.config import check
from raytrain.data.batch import Batch
from raytrain.tasks.metric import Direction, Kind, Metric
from raytrain.tasks.task import Task, losses
from raytrain.user_code.places import place

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

    from raytrain.data.source import Index


@dataclass(frozen=True)
class Supervised(Task):
    """A task that compares the model's outputs with a target. A subclass has `wanted` and `each`, and `training_loss`
    where training has another loss than validation; the model runs once for its own sums and all `metrics`."""

    kind: ClassVar[Kind] = "number"
    """What the task wants of a sample, which decides which metrics suit it."""

    metrics: tuple[Metric, ...] = field(default_factory=tuple, kw_only=True)  # type: ignore[assignment]
    """What an evaluation measures besides, such as (F1(), AUROC()); each value can be `monitor`."""

    def __post_init__(self) -> None:
        check(self)
        self.check_metrics()

    def check_metrics(self) -> None:
        """Check that the metrics suit the task, and that their values have names of their own.

        Raises:
            UserError: they do not.
        """
        taken = [name.removeprefix("val_") for name in super().declared()]
        for metric in self.metrics:
            name, where = type(metric).__name__, f"in {type(self).__name__}.metrics"
            if metric.takes and self.kind not in metric.takes:
                of = f"{type(self).__name__} has {_KINDS[self.kind]}"
                what = f"{name} is for tasks with {_listed(metric.takes)}, and {of}"
                raise errors.UserError(what, where, "leave it out")
            names = metric.declared()
            if not names:
                how = 'write `directions = {"name": "max"}`, or "min" where the lowest value is the best'
                raise errors.UserError(f"{name} declares no value", f"in {place(type(metric))}", how)
            if (type(metric).sums, type(metric).samples) == (Metric.sums, Metric.samples):
                what = f"{name} has neither sums nor samples, so that its values say nothing of the data"
                how = "write `def sums(self, outputs, batch)`, which returns tensors to add up, in a dict"
                raise errors.UserError(what, f"in {place(type(metric))}", how)
            for value, direction in names.items():
                if value in taken:
                    how = "set its fields apart, or leave one out"
                    raise errors.UserError(f"two metrics are called {value!r}", where, how)
                if direction not in ("min", "max"):
                    what = f"the direction of {value!r} must be 'min' or 'max', got {direction!r}"
                    how = "write 'min' where the lowest value is the best"
                    raise errors.UserError(what, f"in {place(type(metric))}", how)
                taken.append(value)

    def declared(self) -> dict[str, Direction]:
        """Return the task's own names with their directions, and those of its metrics."""
        found = super().declared()
        for metric in self.metrics:
            found |= {f"val_{name}": direction for name, direction in metric.declared().items()}
        return found

    def bound(self, index: Index) -> Self:
        """Return the task with metrics that know the numbers of the classes that they name."""
        classes = self.class_names(index.classes)
        metrics = tuple(metric.bound(classes) for metric in self.metrics)
        same = all(one is other for one, other in zip(metrics, self.metrics, strict=True))
        return self if same else replace(self, metrics=metrics)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        """Return `training_loss` of the model's outputs, and the number of samples."""
        wanted = self.wanted(batch)
        outputs = self.fitted(self.forward(model, batch), wanted)
        return self.training_loss(outputs, _with_target(batch, wanted)), len(batch)

    def training_loss(self, outputs: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Return the training loss summed over samples; by default it is validation's.

        Args:
            outputs: the model's, as `fitted` returns them, [n, ...].
            batch: with what the task wants as `target`.
        """
        return self.each(outputs, batch["target"]).sum()

    def wanted(self, batch: Batch) -> torch.Tensor:
        """Return what the outputs are compared with, as metrics get it: see `Metric.sums`."""
        raise NotImplementedError(f"{type(self).__name__} needs a wanted(batch)")

    def fitted(self, outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Return the outputs in a shape that suits the target's.

        Raises:
            UserError: they do not suit it.
        """
        return outputs

    def each(self, outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Return the validation's loss of each sample, [n]."""
        raise NotImplementedError(f"{type(self).__name__} needs an each(outputs, wanted)")

    def truths(self, batch: Batch, classes: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return what the targets say of each sample: columns as of `predictions`, whose names begin with `true_`.
        `raytrain predict --split` writes them beside the predictions; by default there are none.

        Args:
            classes: the names of the data's classes.
        """
        return [{} for _ in batch.ids]

    def compared(self, outputs: torch.Tensor | None, batch: Batch, classes: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return `truths` of a batch's samples, and with the model's outputs [n, ...] also `loss`, the validation loss
        of each, if the task evaluates in the usual way; nothing of samples without targets.

        Args:
            classes: the names of the data's classes.
        """
        try:
            wanted, rows = self.wanted(batch), self.truths(batch, classes)
        except KeyError:  # a test split may have no targets
            return [{} for _ in batch.ids]
        if outputs is None or type(self).sums is not Supervised.sums:
            return rows
        losses = self.each(self.fitted(outputs, wanted), wanted).tolist()
        return [row | {"loss": loss} for row, loss in zip(rows, losses, strict=True)]

    def own_sums(self, outputs: torch.Tensor, wanted: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return sums for the task's own results, besides `loss` and `count`."""
        return {}

    def sums(self, model: nn.Module, batch: Batch) -> dict[str, Any]:
        """Return the sums of the loss, of the task's own results and of all metrics, after one forward pass."""
        return self.compare(self.forward(model, batch), batch)

    def compare(self, outputs: torch.Tensor, batch: Batch) -> dict[str, Any]:
        """Return the sums of one batch, from the model's outputs."""
        wanted = self.wanted(batch)
        outputs = self.fitted(outputs, wanted)
        found: dict[str, Any] = {
            "loss": self.each(outputs, wanted).double().sum(),
            "count": losses().count(len(batch)),
            **self.own_sums(outputs, wanted),
        }
        seen = _with_target(batch, wanted)
        for number, metric in enumerate(self.metrics):
            prefix = _prefix(number)
            sums, kept = metric.sums(outputs, seen), metric.samples(outputs, seen)
            _check_tensors(metric, "sums", sums)
            _check_tensors(metric, "samples", kept, len(batch))
            found |= {prefix + name: value for name, value in sums.items()}
            found |= {prefix + name: losses().PerSample(batch.ids, value) for name, value in kept.items()}
        return found

    def results(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the mean loss and the values of all metrics.

        Raises:
            UserError: a metric returns other names than it declares, or what is no number.
        """
        found = super().results(sums)
        for number, metric in enumerate(self.metrics):
            prefix = _prefix(number)
            given = {name.removeprefix(prefix): value for name, value in sums.items() if name.startswith(prefix)}
            values: Any = metric.values(given)
            _check_values(metric, values)
            found |= values
        return found

    def constant(self, wanted: torch.Tensor, classes: int) -> torch.Tensor | None:
        """Return the outputs of a model that ignores its input and answers all samples alike, as well as it can: one
        sample's, without the batch's axis. None, the default, if there is no such answer.

        Args:
            wanted: the targets of training samples, [n, ...].
            classes: the number of classes, or more.
        """
        return None

    def constant_words(self, answer: torch.Tensor, classes: tuple[str, ...]) -> str:
        """Return what `constant` answers, for people."""
        return "the same for every sample"

    def constant_note(self, wanted: torch.Tensor) -> str:
        """Return a line for the plan about the targets of training samples, [n, ...]; by default none."""
        return ""


def _with_target(batch: Batch, wanted: torch.Tensor) -> Batch:
    return Batch({**batch.arrays, "target": wanted}, batch.ids)


_KINDS = {
    "label": "one label a sample",
    "labels": "several labels a sample",
    "number": "numbers as targets",
    "mask": "a mask",
}


def _listed(kinds: tuple[Kind, ...]) -> str:
    return " or ".join(_KINDS[kind] for kind in kinds)


def _prefix(number: int) -> str:
    return f"metrics.{number}."


def _check_tensors(metric: Metric, method: str, found: Any, length: int | None = None) -> None:
    """Check what a metric's method has returned.

    Args:
        length: of the first axis of each tensor.

    Raises:
        UserError: it is no dict of tensors, or one has another length.
    """
    wrong = {} if isinstance(found, dict) else {"": found}
    for name, value in (wrong or found).items():
        tensor = hasattr(value, "is_floating_point")
        if wrong or not tensor or (length is not None and value.shape[:1] != (length,)):
            got = (
                type(value).__name__ + (f" {list(value.shape)}" if tensor else "") + (f" for {name!r}" if name else "")
            )
            shape = "" if length is None else f" [{length}, ...]"
            how = "write `torch.tensor(...)` around numbers" if length is None else "return a row for each sample"
            what = f"{method}() must return a dict of tensors{shape}, got {got}"
            raise errors.UserError(what, f"in {place(getattr(type(metric), method))}", how)


def _check_values(metric: Metric, values: Any) -> None:
    """Check what a metric's `values` has returned.

    Raises:
        UserError: it is no dict of numbers by the declared names.
    """
    names, where = metric.declared(), f"in {place(type(metric).values)}"
    if not isinstance(values, dict) or values.keys() != names.keys():
        got = ", ".join(map(repr, values)) if isinstance(values, dict) else type(values).__name__
        what = f"values() must return {', '.join(map(repr, names))}, got {got or 'nothing'}"
        raise errors.UserError(what, where, "return the names of `directions`")
    for name, value in values.items():
        if not isinstance(value, int | float):
            what = f"values() must return a dict of numbers, got {type(value).__name__} for {name!r}"
            raise errors.UserError(what, where, f"write `float(...)` around {name!r}")


def only_target(index: Index, name: str, task: str) -> str:
    """Return the name of the field that holds the target: the given one, or the only one besides the input and
    `inputs`, which a table's further inputs are called.

    Raises:
        UserError: there is no such field.
    """
    others = [field.name for field in index.fields[1:]]
    if name and name not in others:
        how = errors.nearest(name, others) + (f"there are {', '.join(others)}" if others else "add a Field to Index")
        raise errors.UserError(f"the data has no field {name!r} besides the input", f"in {task}", how)
    targets = [one for one in others if one != "inputs"]
    if not name and len(targets) != 1:
        what = f"{task} needs the name of its target field, and the data has " + (", ".join(others) or "none")
        how = (
            'let a dataset return a dict such as {"image": image, "price": 3.5}, or add a Field to the fields of Index'
        )
        how = f'write {task}(target="{targets[0]}")' if targets else how
        raise errors.UserError(what, "in task", how)
    return name or targets[0]


def target_of(batch: Batch, name: str) -> torch.Tensor:
    """Return the array of the target's field; without a name, the one that `only_target` names."""
    others = (key for key in [*batch.arrays][1:] if key not in ("label", "target", "inputs"))
    return batch[name or next(others, "target")]
