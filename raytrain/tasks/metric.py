"""Metric: one thing that an evaluation measures, as a value."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from raytrain import errors
from raytrain.config import Rule, check
from raytrain.data.batch import Batch

if TYPE_CHECKING:
    import numpy as np
    import torch

Direction = Literal["min", "max"]
Kind = Literal["label", "labels", "number", "mask"]
"""What a task wants of a sample: one class, several classes, numbers, or a class for each pixel."""


@dataclass(frozen=True)
class Metric:
    """The base of all metrics. Subclass it in an experiment file, as a frozen dataclass, and list it in a task's
    `metrics`.

    A metric returns sums over the samples of a batch. raytrain adds them up over micro-batches and ranks, so that the
    values are exact on any number of workers. The model runs once for all metrics.
    """

    directions: ClassVar[Mapping[str, Direction]] = {}
    """The names of the metric's values, and whether the lowest or the highest is the best. Override `declared` where
    they depend on fields."""
    takes: ClassVar[tuple[Kind, ...]] = ()
    """What tasks it suits, by what they want of a sample; empty suits all."""

    def __post_init__(self) -> None:
        check(self)

    def declared(self) -> Mapping[str, Direction]:
        """Return the names of the metric's values with their directions."""
        return self.directions

    def bound(self, classes: tuple[str, ...]) -> Self:
        """Return the metric for classes of these names, in the order of the model's outputs. By default the metric
        itself: override it where a field names a class.

        Raises:
            UserError: a field names none of them.
        """
        return self

    def check_classes(self, classes: int) -> None:
        """Check, before anything starts, that the metric suits a number of classes. No-op by default.

        Raises:
            UserError: it does not.
        """

    def sums(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Return what is added up over all samples: tensors of any shapes, the same at every call. Integers are added
        as int64, floats as float64.

        Args:
            outputs: of the model for the batch, [n, ...].
            batch: the samples; `batch["target"]` is what the task wants: int64 [n] labels, int64 [n, height, width]
                classes of pixels (-1 does not count), float32 [n, classes] or the numbers of a regression.
        """
        return {}

    def samples(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        """Return what is kept of each sample, [n, ...], for a value that no sums determine. Every rank gets that of all
        samples, in the order of their numbers: mind the memory.

        Args:
            outputs, batch: as in `sums`.
        """
        return {}

    def values(self, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the values by their declared names.

        Args:
            found: NumPy arrays of the sums over all samples, and of what was kept of all samples, by the names that
                `sums` and `samples` gave them.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a values(found)")


_CLASS: Rule = (
    lambda of: of != "" if isinstance(of, str) else of >= 0,
    "the name of a class, or a number of at least 0",
)


@dataclass(frozen=True)
class ClassMetric(Metric):
    """The base of metrics of each class, of which the value is one class's or an average."""

    word: ClassVar[str] = ""
    """The metric's part of the value's name."""

    _place: ClassVar[int | None] = None
    """The number of the class that `of` names, in what `bound` returns. It is no field: it follows from the data, so it
    is neither saved nor compared."""

    of: int | str | None = field(default=None, kw_only=True)
    """One class that is measured alone: its name, such as "cat", or its number, such as 1 for the second of two; None
    averages over all."""

    def __post_init__(self) -> None:
        check(self, of=_CLASS)

    @property
    def name(self) -> str:
        """The value's name: `word`, with the name or the number of the class that is measured alone, as `of` has it."""
        return self.word if self.of is None else f"{self.word}_{self.of}"

    @property
    def number(self) -> int | None:
        """The number of the class that is measured alone.

        Raises:
            UserError: `of` is a name, and the metric is not bound to classes.
        """
        if isinstance(self.of, str) and self._place is None:
            raise self._unknown("a class, and the metric knows no classes", "call bound(classes) first")
        return self._place if isinstance(self.of, str) else self.of

    def bound(self, classes: tuple[str, ...]) -> Self:
        """Return the metric with the number of the class that `of` names."""
        if not isinstance(self.of, str):
            return self
        if self.of not in classes:
            how = f"{errors.nearest(self.of, classes)}the classes are {errors.listed(classes, 20)}"
            how = how if classes else "the data names no classes: give the number of a class"
            raise self._unknown("a class that there is not", how)
        found = copy.copy(self)
        object.__setattr__(found, "_place", classes.index(self.of))
        return found

    def _unknown(self, what: str, how: str) -> errors.UserError:
        return errors.UserError(f"{type(self).__name__}(of={self.of!r}) names {what}", "in task.metrics", how)

    def declared(self) -> Mapping[str, Direction]:
        """Return the value's name; the highest value is the best."""
        return {self.name: "max"}

    def check_classes(self, classes: int) -> None:
        """Check that there is the class `of`."""
        if self.number is not None and self.number >= classes:
            what = f"a class that there is not: the {classes} classes are 0 to {classes - 1}"
            raise self._unknown(what, "give the number of a class")
