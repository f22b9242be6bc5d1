"""Axes: the fields that a sweep varies, by their dotted paths, and their values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

from raytrain import config, errors
from raytrain.experiment import Experiment
from raytrain.user_code.upgrades import is_old_argument


@dataclass(frozen=True)
class Axis:
    """The base of all axes. Subclass it to draw from another distribution."""

    path: str
    """The field's dotted path, as its flag has it: `optimizer.lr`."""

    @property
    def finite(self) -> tuple[Any, ...] | None:
        """All values, where they can be listed."""
        return None

    def draw(self, quantile: float) -> Any:
        """Return the value at a quantile in [0, 1): where `quantile` is uniform, values have the axis' distribution.

        Raises:
            NotImplementedError: always, in the base class.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a draw(quantile)")

    def clip(self, value: Any) -> Any:
        """Return the nearest value of the axis, for what a scheduler makes of one."""
        return value

    def examples(self) -> tuple[Any, ...]:
        """Values that show whether the field takes what the axis draws: all of them, or both ends."""
        return self.finite or (self.draw(0.0), self.draw(math.nextafter(1.0, 0.0)))


@dataclass(frozen=True)
class Choice(Axis):
    """One of some values, each as likely."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        config.check(self)
        if not self.values:
            raise _empty_axis(self.path, type(self).__name__)

    @property
    def finite(self) -> tuple[Any, ...]:
        """The values."""
        return self.values

    def draw(self, quantile: float) -> Any:
        """Return the value whose share of [0, 1) holds the quantile."""
        return self.values[int(quantile * len(self.values))]


@dataclass(frozen=True)
class Grid(Choice):
    """All of some values: axes of this kind are crossed, and every combination is tried as often as any other."""


@dataclass(frozen=True)
class _Range(Axis):
    low: float
    high: float

    def __post_init__(self) -> None:
        config.check(self)
        if not self.low < self.high or not math.isfinite(self.high - self.low):
            raise _empty_axis(self.path, type(self).__name__, self.low, self.high)

    def clip(self, value: float) -> float:
        """Return the nearest of [low, high]."""
        return min(max(value, self.low), self.high)


@dataclass(frozen=True)
class Uniform(_Range):
    """A number of [low, high)."""

    def draw(self, quantile: float) -> float:
        """Linear between the ends."""
        return self.low + quantile * (self.high - self.low)


@dataclass(frozen=True)
class LogUniform(_Range):
    """A number of [low, high) whose logarithm is uniform: for learning rates, weight decay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low <= 0:
            raise errors.out_of_range("low", self.low, "above 0", f"LogUniform({self.path!r})")

    def draw(self, quantile: float) -> float:
        """Linear in the logarithm; rounding does not lead beyond the ends."""
        found = math.exp(math.log(self.low) + quantile * (math.log(self.high) - math.log(self.low)))
        return self.clip(found)


@dataclass(frozen=True)
class Int(Axis):
    """A whole number from low to high, both included."""

    low: int
    high: int
    log: bool = False
    """Whether small numbers are as likely as large ones, by the logarithm."""

    def __post_init__(self) -> None:
        config.check(self)
        if self.low >= self.high:
            raise _empty_axis(self.path, "Int", self.low, self.high)
        if self.log and self.low <= 0:
            raise errors.out_of_range("low", self.low, "above 0 where log=True", f"Int({self.path!r})")

    def clip(self, value: float) -> int:
        """Return the nearest whole number from low to high."""
        return min(max(round(value), self.low), self.high)

    def draw(self, quantile: float) -> int:
        """Each number's share of [0, 1) is as wide as its likelihood."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high + 1)
            return min(max(int(math.exp(low + quantile * (high - low))), self.low), self.high)  # exp(log(5)) < 5
        return self.low + int(quantile * (self.high + 1 - self.low))


def combinations(axes: Iterable[Axis]) -> list[dict[str, Any]]:
    """Every combination of the finite axes' values, the last axis changing fastest; of no axes, one empty one."""
    finite = [(axis.path, axis.finite) for axis in axes if axis.finite is not None]
    return [
        dict(zip((path for path, _ in finite), values, strict=True))
        for values in product(*(values for _, values in finite))
    ]


def apply(experiment: Experiment, values: dict[str, Any]) -> Experiment:
    """Return the experiment with the values at their paths, all set before its fields are checked together: a batch
    size and a number of workers may fit each other and not the base's.

    Raises:
        UserError: there is no such field, or it refuses its value.
    """
    by_head: dict[str, dict[str, Any]] = {}
    for path, value in values.items():
        head, _, rest = path.partition(".")
        check_path(experiment, path)
        by_head.setdefault(head, {})[rest] = value
    changes = {}
    for head, parts in by_head.items():
        found = parts[""] if "" in parts else getattr(experiment, head)
        for rest, value in parts.items():
            found = config.replace(found, rest, value) if rest else found
        changes[head] = found
    return dataclasses.replace(experiment, **changes)


def check_path(experiment: Experiment, path: str) -> None:
    """Check that an axis can be of this field.

    Raises:
        UserError: there is none of that path.
    """
    known = path in config.paths(experiment) or _is_open(experiment, path)
    if not known and not is_old_argument(type(experiment), path):
        raise errors.unknown_field(path, config.paths(experiment), "an axis of the sweep")


def _is_open(experiment: Experiment, path: str) -> bool:
    """Return whether the path is of a field that holds a dataclass, such as `optimizer`, which an axis may replace
    whole."""
    found: Any = experiment
    for part in path.split("."):
        if not dataclasses.is_dataclass(found) or part not in {field.name for field in dataclasses.fields(found)}:
            return False
        found = getattr(found, part)
    return dataclasses.is_dataclass(found)


def _empty_axis(path: str, kind: str, low: float | None = None, high: float | None = None) -> errors.UserError:
    if low is None:
        return errors.UserError(f"axis {path} has no values", f"in {kind}", "give at least one")
    return errors.UserError(f"axis {path} has no values from {low} to {high}", f"in {kind}", "let low be below high")
