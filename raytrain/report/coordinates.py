"""Parallel coordinates in numbers: how far up its axis each value of a trial lies."""

from __future__ import annotations

import math
from collections.abc import Sequence

from raytrain.report.trials import Axis, Objective, Trial, number, text

ABSENT = -0.13
"""The height at which trials pass an axis that they do not have."""


def goal_axis(objective: Objective, place: int, trials: Sequence[Trial]) -> Axis:
    """Return the axis of an objective, from the least to the largest value of trials."""
    found = [trial.objective[place] for trial in trials if place < len(trial.objective)]
    seen = [float(value) for value in found if value is not None]
    low, high = min(seen, default=0.0), max(seen, default=1.0)
    return Axis(objective.name, objective.name, None, low, high, 0 < low and high / low > 100)


def height_of(axis: Axis, trial: Trial) -> float:
    """Return how far up an axis a trial's value lies, from 0 to 1; equal values of a choice have equal heights. NaN of
    a value that is not known."""
    if axis.path not in trial.values:
        return ABSENT
    value = trial.values[axis.path]
    if axis.levels is None:
        return fraction(axis, number(value))
    return axis.levels.index(text(value)) / (len(axis.levels) - 1) if len(axis.levels) > 1 else 0.5


def fraction(axis: Axis, value: float | None) -> float:
    """Return how far up an axis of numbers a value lies, from 0 to 1; NaN for None."""
    if value is None:
        return math.nan
    low, high = axis.low, axis.high
    if axis.log:
        low, high, value = math.log(low), math.log(high), math.log(value)
    return (value - low) / (high - low) if high > low else 0.5


def said(axis: Axis, value: float) -> str:
    """Return a value of an axis of numbers, for its tick."""
    return f"{value / 2**20:,.5g} MiB" if axis.path == "peak_memory_bytes" else text(value, 6)
