"""Objectives: the figures of a run that a sweep optimises."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raytrain import errors
from raytrain.run.metrics_log import seconds_at

_MODES = {"samples_per_second": "max", "peak_memory_bytes": "min", "seconds": "min"}
_ACCURACY = "val_accuracy"


@dataclass(frozen=True)
class Objective:
    """One figure of a trial.

    Attributes:
        name: as it was given.
        figure: the figure's name, without its target.
        mode: whether the highest or the lowest is the best: `max` or `min`.
        target: the accuracy to reach, for `time_to_accuracy`.
    """

    name: str
    figure: str
    mode: str
    target: float | None = None

    @property
    def every_epoch(self) -> bool:
        """Whether it is a metric of each epoch, so that a scheduler may compare trials by it."""
        return self.target is None and self.figure not in _MODES

    @property
    def of_machine(self) -> bool:
        """Whether it is a time, a speed or memory, which other trials on the machine change."""
        return of_machine(self.name)

    def now(self, rows: list[dict[str, Any]]) -> float | None:
        """Return the last validation's value, for a scheduler."""
        value = rows[-1].get(self.figure) if rows else None
        return value if isinstance(value, int | float) and math.isfinite(value) else None

    def of(self, rows: list[dict[str, Any]], summary: dict[str, Any]) -> float | None:
        """Return the whole trial's: the best validation's metric, or the run's figure.

        Args:
            rows: the rows of its metrics that have a validation's, in order.
            summary: its run's summary; of a run that ended early, what there is.

        Returns:
            None where there is none, as of an accuracy that was not reached.
        """
        if self.target is not None:
            reached = ((row.get(_ACCURACY) or 0.0) >= self.target for row in rows)
            return next((seconds for seconds, there in zip(seconds_at(rows), reached, strict=True) if there), None)
        if self.every_epoch:
            found = [row[self.figure] for row in rows if row.get(self.figure) is not None]
            return (max(found) if self.mode == "max" else min(found)) if found else None
        value = summary.get(self.figure)
        if value is None and rows and self.figure == "samples_per_second":
            value = rows[-1].get(self.figure)
        if value is None and rows and self.figure == "seconds":
            value = seconds_at(rows)[-1]
        return value

    def cost(self, value: float | None) -> float:
        """Return a value to sort by: the best is the lowest, and none comes last."""
        if value is None:
            return math.inf
        return -value if self.mode == "max" else value

    def better(self, value: float | None, than: float | None) -> bool:
        """Return whether one value is better than another; any is better than none."""
        if value is None or than is None:
            return value is not None
        return value > than if self.mode == "max" else value < than


def of_machine(name: str) -> bool:
    """Return whether an objective of that name is a time, a speed or memory."""
    return name in _MODES or name.startswith("time_to_accuracy(")


def parse(name: str, directions: Mapping[str, str], where: str = "in Sweep.objective") -> Objective:
    """Read an objective's name.

    Args:
        directions: the task's metrics and their directions, as `Task.declared` returns them.
        where: what names it, for messages.

    Raises:
        UserError: no run reports it.
    """
    timing = ["time_to_accuracy(0.95)"] if _ACCURACY in directions else []
    known = [*directions, *_MODES, *timing]
    timed = re.fullmatch(r"time_to_accuracy\(([0-9.]+)\)", name)
    if timed and timing:
        try:
            target = float(timed[1])
        except ValueError:
            raise _unknown_objective(name, known, where) from None
        if not 0 < target <= 1:
            raise errors.out_of_range("time_to_accuracy", target, "above 0 and at most 1", where.removeprefix("in "))
        return Objective(name, "time_to_accuracy", "min", target)
    modes = {**directions, **_MODES}
    if name not in modes:
        raise _unknown_objective(name, known, where)
    return Objective(name, name, modes[name])


def _unknown_objective(name: str, known: Sequence[str], where: str) -> errors.UserError:
    how = f"{errors.nearest(name, known)}there are {errors.listed(known, 12)}"
    return errors.UserError(f"no run reports {name!r}", where, how)
