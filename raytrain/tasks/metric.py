"""Metric: one thing that an evaluation measures, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from raytrain import errors
from raytrain.config import at_least, check
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
            found: the sums over all samples, and the arrays of all samples, by the names that `sums` and `samples`
                gave them.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a values(found)")


@dataclass(frozen=True)
class ClassMetric(Metric):
    """The base of metrics of each class, of which the value is one class's or an average."""

    word: ClassVar[str] = ""
    """The metric's part of the value's name."""

    of: int | None = field(default=None, kw_only=True)
    """The number of one class, such as 1 for the second of two, to measure it alone; None averages over all."""

    def __post_init__(self) -> None:
        check(self, of=at_least(0))

    @property
    def name(self) -> str:
        """The value's name: `word`, with the number of the class that is measured alone."""
        return self.word if self.of is None else f"{self.word}_{self.of}"

    def declared(self) -> Mapping[str, Direction]:
        """Return the value's name; the highest value is the best."""
        return {self.name: "max"}

    def check_classes(self, classes: int) -> None:
        """Check that there is the class `of`."""
        if self.of is not None and self.of >= classes:
            what = (
                f"{type(self).__name__}(of={self.of}) names a class that there is not: the {classes} classes are 0 to"
            )
            raise errors.UserError(f"{what} {classes - 1}", "in task.metrics", "give the number of a class")
