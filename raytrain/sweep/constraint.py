"""Constraints: limits that a trial's figures must keep, so that it may be the best or on the front."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raytrain import errors
from raytrain.sweep.objective import Objective, parse

_COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
_SECONDS = {"s": 1, "min": 60, "h": 3600}
_UNITS = {"peak_memory_bytes": _BYTES, "seconds": _SECONDS, "time_to_accuracy": _SECONDS}
_EXAMPLE = 'write it as in "peak_memory_bytes <= 8 GiB" or "val_loss < 0.5"'
_FORM = re.compile(r"\s*(?P<name>[^<>=\s]+)\s*(?P<sign><=|>=|<|>)\s*(?P<number>[-+\d.eE]+)\s*(?P<unit>[a-zA-Z]*)\s*")


@dataclass(frozen=True)
class Constraint:
    """A limit to one figure of a trial.

    Attributes:
        text: as the user wrote it.
        figure: the figure that is limited, read as an objective is.
        sign: `<=`, `<`, `>=` or `>`.
        bound: the limit, in the figure's own unit.
    """

    text: str
    figure: Objective
    sign: str
    bound: float

    def holds(self, best: Mapping[str, Any], rows: list[dict[str, Any]], summary: dict[str, Any]) -> bool:
        """Return whether a trial keeps the limit; one without the figure, as of an accuracy that was not reached, does
        not.

        Args:
            best: the row of its best validation, of which a metric is taken: its weights are those that are kept.
            rows: the rows of all its validations.
            summary: its run's summary.
        """
        value = best.get(self.figure.figure) if self.figure.every_epoch else self.figure.of(rows, summary)
        return isinstance(value, int | float) and _COMPARE[self.sign](value, self.bound)


def parse_constraints(texts: tuple[str, ...], directions: Mapping[str, str]) -> tuple[Constraint, ...]:
    """Read the constraints of a sweep.

    Args:
        directions: the task's metrics and their directions, as `Task.declared` returns them.

    Raises:
        UserError: a text is no constraint, no run reports its figure, or two of them exclude each other.
    """
    found = tuple(_parsed(text, directions) for text in texts)
    for one in found:
        for other in found:
            if one.figure.name != other.figure.name or one.sign[0] != "<" or other.sign[0] != ">":
                continue
            touch = one.bound == other.bound and (one.sign, other.sign) == ("<=", ">=")
            if one.bound <= other.bound and not touch:
                what = f"no trial can keep both {one.text!r} and {other.text!r}"
                raise errors.UserError(what, "in Sweep.constraints", "change a limit, or leave one out")
    return found


def figure_of(text: str) -> str:
    """Return the name of the figure that a constraint limits; an empty text for what is no constraint."""
    read = _FORM.fullmatch(text)
    return read["name"] if read else ""


def _parsed(text: str, directions: Mapping[str, str]) -> Constraint:
    where, read = "in Sweep.constraints", _FORM.fullmatch(text)
    try:
        number = float(read["number"] if read else "")
    except ValueError:
        read, number = None, 0.0
    if read is None:
        raise errors.UserError(f"{text!r} is no constraint", where, _EXAMPLE)
    figure, unit, scale = parse(read["name"], directions, where), read["unit"], 1.0
    if unit:
        units = _UNITS.get(figure.figure, {})
        if unit not in units:
            how = f"its units are {errors.listed(units, 12)}" if units else "give a plain number"
            raise errors.UserError(f"{figure.name} has no unit {unit!r}", f"{where}, {text!r}", how)
        scale = units[unit]
    return Constraint(text, figure, read["sign"], number * scale)
