"""Axes: the fields that a sweep varies, by their dotted paths, and their values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from raytrain import config, errors
from raytrain.experiment import Experiment
from raytrain.user_code import hints
from raytrain.user_code.upgrades import is_old_argument


@dataclass(frozen=True)
class Axis:
    """The base of all axes. Subclass it to draw from another distribution."""

    path: str
    """The field's dotted path, as its flag has it: `optimizer.lr`."""
    when: tuple[Any, ...] | None = field(default=None, kw_only=True)
    """The path of another axis and some of its values: `("optimizer", "SGD")`. The axis exists only in trials in which
    that other axis has one of them. An object may be named by its class. None: the axis exists in every trial."""

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

    def __post_init__(self) -> None:
        super().__post_init__()
        for number, value in enumerate(self.values):
            if any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in self.values[:number]):
                what = f"Grid({self.path!r}) has the value {config.labels((value,))[0]} twice"
                raise errors.UserError(what, "in Sweep.axes", "leave one out; repeats=2 tries each combination twice")


@dataclass(frozen=True)
class _Range(Axis):
    low: float
    high: float

    def __post_init__(self) -> None:
        config.check(self)
        if not self.low < self.high or not math.isfinite(self.high - self.low):
            raise _empty_axis(self.path, type(self).__name__, self.low, self.high)

    def clip(self, value: float) -> float:
        """Return the nearest of [low, high]. A float, also where an end is written as a whole number: Tune goes on with
        the type that it is given, and would round all that follows."""
        return float(min(max(value, self.low), self.high))


@dataclass(frozen=True)
class Uniform(_Range):
    """A number of [low, high)."""

    step: float | None = None
    """If set, the values are low, low + step and so on, up to high: each as likely."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_step(self, self.step, self.low, self.high)

    def clip(self, value: float) -> float:
        """Return the nearest of [low, high], or of the steps in it."""
        return super().clip(value) if self.step is None else _nearest(value, self.low, self.high, self.step)

    def draw(self, quantile: float) -> float:
        """Linear between the ends, or each step's share of [0, 1) as wide."""
        if self.step is None:
            return self.low + quantile * (self.high - self.low)
        return _stepped(self.low, self.step, int(quantile * (_steps(self.low, self.high, self.step) + 1)))


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
    step: int = 1
    """The values are low, low + step and so on, up to high."""

    def __post_init__(self) -> None:
        config.check(self)
        if self.low >= self.high:
            raise _empty_axis(self.path, "Int", self.low, self.high)
        if self.log and self.low <= 0:
            raise errors.out_of_range("low", self.low, "above 0 where log=True", f"Int({self.path!r})")
        _check_step(self, self.step, self.low, self.high)
        if self.log and self.step != 1:
            how = "leave one of them out, or list the values in a Choice"
            raise errors.UserError("log and step exclude each other", f"in Int({self.path!r})", how)

    def clip(self, value: float) -> int:
        """Return the nearest of the values."""
        return int(_nearest(value, self.low, self.high, self.step))

    def draw(self, quantile: float) -> int:
        """Each number's share of [0, 1) is as wide as its likelihood."""
        if self.log:
            low, high = math.log(self.low), math.log(self.high + 1)
            return min(max(int(math.exp(low + quantile * (high - low))), self.low), self.high)  # exp(log(5)) < 5
        return self.low + self.step * int(quantile * ((self.high - self.low) // self.step + 1))


def combinations(axes: Iterable[Axis]) -> list[dict[str, Any]]:
    """Every combination of the finite axes' values, the last axis changing fastest; of no axes, one empty one. Axes
    whose conditions a combination does not meet are left out of it, and count as if they had their first value in its
    place in the order."""
    known = [axis for axis in axes if axis.finite is not None]
    finite, values = {axis.path: axis for axis in known}, {axis.path: axis.finite or () for axis in known}

    def depth(axis: Axis) -> int:
        return 1 + depth(finite[axis.when[0]]) if axis.when and axis.when[0] in finite else 0

    def exists(axis: Axis, places: dict[str, int]) -> bool:
        if not axis.when or axis.when[0] not in finite:
            return True
        on, *wanted = axis.when
        return on in places and any(named(values[on][places[on]], one) for one in wanted)

    crossed: list[dict[str, int]] = [{}]  # the places of the values
    for axis in sorted(known, key=depth):  # no combination is made of axes that do not exist beside each other
        each = [{axis.path: place} for place in range(len(values[axis.path]))]
        crossed = [{**places, **one} for places in crossed for one in (each if exists(axis, places) else [{}])]
    crossed.sort(key=lambda places: [places.get(path, 0) for path in finite])
    found = [{path: values[path][places[path]] for path in finite if path in places} for places in crossed]
    if all(axis.when is None for axis in known):
        return found
    return list({repr(one): one for one in found}.values())


def present(axes: Iterable[Axis], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the axes that exist beside each other: without those whose conditions are not met. A
    condition on an axis that is not among `axes` counts as met."""
    by_path = {axis.path: axis for axis in axes}

    def exists(path: str) -> bool:
        when = by_path[path].when if path in by_path else None
        if when is None or when[0] not in by_path:
            return True
        return when[0] in values and exists(when[0]) and any(named(values[when[0]], one) for one in when[1:])

    return {path: value for path, value in values.items() if exists(path)}


def named(value: Any, name: Any) -> bool:
    """Return whether a value of an axis is meant by the value itself, or, if it is an object, by its class's name."""
    return value == name or (dataclasses.is_dataclass(value) and type(value).__name__ == name)


def check_axes(axes: tuple[Axis, ...]) -> None:
    """Check that there are axes, each of a field of its own and under a condition that can be met.

    Raises:
        UserError: there are none, or two of one field, or a condition cannot be met.
    """
    if not axes:
        how = 'say what differs, as in axes=(Grid("optimizer.lr", (0.1, 1)),)'
        raise errors.UserError("a sweep without axes", "in Sweep", how)
    known = [axis.path for axis in axes]
    for path in known:
        if known.count(path) > 1:
            raise errors.UserError(f"two axes have the path {path}", "in Sweep.axes", "make one of them")
    _check_conditions(axes)


def _check_conditions(axes: tuple[Axis, ...]) -> None:
    """Check that each condition can be met.

    Raises:
        UserError: it is on an axis that is not there, on one whose values cannot be listed, on a value that the axis
            never has, or, over other axes, on itself.
    """
    by_path = {axis.path: axis for axis in axes}
    for axis in axes:
        if axis.when is None:
            continue
        where = f"in the condition of the axis {axis.path}"
        if len(axis.when) < 2 or not isinstance(axis.when[0], str):
            how = 'name an axis and its values, as in when=("optimizer", "SGD")'
            raise errors.UserError(f"when = {axis.when!r} is no condition", where, how)
        path, *wanted = axis.when
        if path not in by_path:
            how = f"{errors.nearest(path, by_path)}the axes are {errors.listed(list(by_path), 12)}"
            raise errors.UserError(f"{path} is no axis of the sweep", where, how)
        values = by_path[path].finite
        if values is None:
            how = f"make {path} a Choice or a Grid"
            raise errors.UserError(f"{path} has too many values to name one", where, how)
        for one in wanted:
            if not any(named(value, one) for value in values):
                names = [str(label) for label in config.labels(values)]
                how = f"{errors.nearest(str(one), names)}its values are {errors.listed(names, 12)}"
                raise errors.UserError(f"the axis {path} never has the value {one!r}", where, how)
        chain = [axis.path]
        while (condition := by_path[chain[-1]].when) is not None and condition[0] in by_path:
            if condition[0] in chain:
                how = "let one of these axes exist in every trial"
                raise errors.UserError(f"{' needs '.join([*chain, condition[0]])}", where, how)
            chain.append(condition[0])


def apply(experiment: Experiment, values: dict[str, Any]) -> Experiment:
    """Return the experiment with the values at their paths, all set before its fields are checked together: a batch
    size and a number of workers may fit each other and not the base's.

    Raises:
        UserError: there is no such field, or it refuses its value.
    """
    changes: dict[str, Any] = {}
    for path in sorted(values, key=lambda path: path.count(".")):  # an object before the fields within it
        head, _, rest = path.partition(".")
        if head not in changes:
            check_path(experiment, path)
        elif rest not in config.paths(changes[head]) and not _is_open(changes[head], rest):
            kind = type(changes[head]).__name__
            raise errors.unknown_field(
                path, config.paths(changes[head], f"{head}."), f"an axis of the sweep, in {kind}"
            )
        changes[head] = (
            config.replace(changes.get(head, getattr(experiment, head)), rest, values[path]) if rest else values[path]
        )
    return dataclasses.replace(experiment, **changes)


def longest(experiment: Experiment, axes: Iterable[Axis]) -> int:
    """Return the most epochs of a trial."""
    over = [axis for axis in axes if axis.path == "epochs"]
    base = [] if any(axis.when is None for axis in over) else [experiment.epochs]
    return max([*base, *(epochs for axis in over for epochs in axis.examples())])


def check_path(experiment: Experiment, path: str) -> None:
    """Check that an axis can be of this field.

    Raises:
        UserError: there is none of that path.
    """
    known = path in config.paths(experiment) or _is_open(experiment, path)
    if not known and not is_old_argument(type(experiment), path):
        fields = config.paths(experiment)
        raise errors.unknown_field(path, fields, "an axis of the sweep", hints.flags(path, fields)[:1])


def _is_open(found: Any, path: str) -> bool:
    """Return whether the path is of a field that holds a dataclass, such as `optimizer`, or several, such as `hooks`,
    which an axis may replace whole."""
    for part in path.split("."):
        if not dataclasses.is_dataclass(found) or part not in {field.name for field in dataclasses.fields(found)}:
            return False
        found = getattr(found, part)
    return any(map(dataclasses.is_dataclass, found if isinstance(found, tuple) else (found,)))


def _empty_axis(path: str, kind: str, low: float | None = None, high: float | None = None) -> errors.UserError:
    if low is None:
        return errors.UserError(f"axis {path} has no values", f"in {kind}", "give at least one")
    return errors.UserError(f"axis {path} has no values from {low} to {high}", f"in {kind}", "let low be below high")


def _check_step(axis: Uniform | Int, step: float | None, low: float, high: float) -> None:
    if step is not None and not 0 < step <= high - low:
        raise errors.out_of_range(
            "step", step, f"above 0 and at most {high - low:g}", f"{type(axis).__name__}({axis.path!r})"
        )


def _steps(low: float, high: float, step: float) -> int:
    """Return how many steps lie between the ends, in decimal numbers: 0.3 is 3 steps of 0.1."""
    return int((Decimal(str(high)) - Decimal(str(low))) / Decimal(str(step)))


def _stepped(low: float, step: float, count: int) -> float:
    return float(Decimal(str(low)) + count * Decimal(str(step)))


def _nearest(value: float, low: float, high: float, step: float) -> float:
    """Return the value of a stepped axis that is nearest to another number."""
    return _stepped(low, step, min(max(round((value - low) / step), 0), _steps(low, high, step)))
