"""Values for a population from a Gaussian process: those of Ray Tune's PB2, without its order of reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy
import pandas
from ray.tune.schedulers.pb2 import _explore

from raytrain.sweep.population import Comparison
from raytrain.sweep.space import Axis


def chosen(
    axes: tuple[Axis, ...], made: list[Comparison], trial: int, donor: int, values: Mapping[str, Any], better: int
) -> dict[str, Any]:
    """Return the values that a trial goes on with, from what all comparisons have seen. Draws from numpy's generator of
    the process.

    Args:
        made: all comparisons; the last one has the moves that are decided by now.
        values: the donor's.
        better: 1 where higher scores are better, -1 where lower ones are.
    """
    bounds = {axis.path: tuple(axis.examples()) for axis in axes}
    moved = [list(one.values.values()) for one in made[-1].moves]
    points: Any = numpy.array(moved) if moved else None
    explore: Any = _explore  # which takes names in place of Tune's trials
    found, _ = explore(_seen(made, [*bounds], better), bounds, points, _named(donor), _named(trial), {**values})
    return {axis.path: axis.clip(found[axis.path]) for axis in axes}


def _seen(made: list[Comparison], paths: list[str], better: int) -> pandas.DataFrame:
    """Return what Tune's PB2 would have noted: each report, and the donor's under the name of who took its weights."""
    rows = list[list[Any]]()
    for one in made:
        known = one.reports
        rows += [
            [_named(n), at.time, *(one.values[n][path] for path in paths), better * at.score] for n, at in known.items()
        ]
        for move in one.moves:
            at = known[move.donor]
            rows.append([_named(move.trial), at.time, *(move.values[path] for path in paths), better * at.score])
    return pandas.DataFrame(rows, columns=["Trial", "Time", *paths, "Reward"])


def _named(number: int) -> str:
    return f"trial_{number:04d}"
