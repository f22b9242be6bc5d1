"""Values for a population from a Gaussian process: those of Ray Tune's PB2, without its order of reports."""

from __future__ import annotations

from typing import Any

import numpy
import pandas
from ray.tune.schedulers.pb2 import _explore

from raytrain.sweep.population import Comparison, Taker


def chosen(taker: Taker) -> dict[str, Any]:
    """Return the values that a trial goes on with, from what all comparisons have seen. Draws from numpy's generator of
    the process."""
    bounds = {axis.path: tuple(axis.examples()) for axis in taker.axes}
    moved = [list(one.values.values()) for one in taker.made[-1].moves]
    points: Any = numpy.array(moved) if moved else None
    explore: Any = _explore  # which takes names in place of Tune's trials
    seen, names = _seen(taker.made, [*bounds], taker.better), (_named(taker.donor), _named(taker.trial))
    found, _ = explore(seen, bounds, points, *names, {**taker.values})
    return {axis.path: axis.clip(found[axis.path]) for axis in taker.axes}


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
