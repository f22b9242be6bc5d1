"""Points: values that the first trials of a sweep get, where the user gives some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raytrain import config, errors
from raytrain.sweep.space import Axis, Grid, named, present


def decided(
    axes: tuple[Axis, ...], first: tuple[dict[str, Any], ...], grid: Sequence[dict[str, Any]], number: int
) -> dict[str, Any]:
    """Return the values of a trial that no search chooses: those of its point, and those of the `Grid` axes, which get
    all their combinations in turn, anew after the points.

    Args:
        first: the points, checked.
        grid: the combinations of the `Grid` axes.
    """
    crossed = {**grid[(number if number < len(first) else number - len(first)) % len(grid)]}
    if number >= len(first):
        return crossed
    by_path = {axis.path: axis for axis in axes}
    return crossed | {path: _meant(by_path[path], value)[0] for path, value in first[number].items()}


def check_points(axes: tuple[Axis, ...], first: tuple[dict[str, Any], ...]) -> None:
    """Check the points of a sweep.

    Raises:
        UserError: a point has an axis that is not there or does not exist under its values, or a value that its axis
            never has; or the axes are a grid, of which every combination is tried anyway.
    """
    by_path = {axis.path: axis for axis in axes}
    if first and all(isinstance(axis, Grid) for axis in axes):
        how = "leave first out, or make an axis a Choice"
        raise errors.UserError("every combination of the grid is tried, in its order", "in Sweep.first", how)
    for number, point in enumerate(first):
        where, found = f"in Sweep.first, point {number}", {}
        for path, value in point.items():
            if path not in by_path:
                how = f"{errors.nearest(str(path), by_path)}the axes are {errors.listed(by_path, 12)}"
                raise errors.UserError(f"{path} is no axis of the sweep", where, how)
            meant = _meant(by_path[path], value)
            if len(meant) != 1:
                what = f"the axis {path} {'has several values' if meant else 'never has the value'} {value!r}"
                raise errors.UserError(what, where, _range(by_path[path]))
            found[path] = meant[0]
        needless = found.keys() - present([by_path[path] for path in found], found).keys()
        missing = {path for path in found if (when := by_path[path].when) and when[0] not in found}
        for path in sorted(needless | missing):
            when = by_path[path].when or ("", "")
            how = f"give the point {when[0]}={when[1]!r} too, or leave {path} out"
            raise errors.UserError(f"the axis {path} does not exist under the other values", where, how)


def _meant(axis: Axis, value: Any) -> list[Any]:
    """Return the values of an axis that are meant by one of a point: itself, or objects by their class's name."""
    if axis.finite is not None:
        same = [one for one in axis.finite if one == value]
        return same[:1] or [one for one in axis.finite if named(one, value)]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number:
        return []
    near = axis.clip(value)
    return [near] if abs(near - value) <= 1e-9 * abs(value) else []


def _range(axis: Axis) -> str:
    if axis.finite is not None:
        return f"its values are {errors.listed(config.labels(axis.finite), 12)}"
    low, high = axis.examples()
    return f"give one from {low:g} to {high:g}"
