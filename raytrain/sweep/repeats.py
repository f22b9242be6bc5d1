"""Repeats: a configuration of a sweep is trained by several trials, which differ in their seed alone.

Trial `k` is repeat `k % repeats` of configuration `k // repeats`, so that a resume with more trials changes no number.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raytrain import order
from raytrain.sweep import record
from raytrain.sweep.compare import differing, groups, mean_of
from raytrain.sweep.objective import Objective

_REPEAT = 0x52455045
"""Keeps the seeds of repeats apart from other hashes of the experiment's seed."""
_MOST_ALIKE = 100
"""Configurations of which each lists those that it is like: the lists grow with the square of their number."""


def seed_of(seed: int, repeat: int) -> int:
    """Return the seed of a repeat: the experiment's own for the first one, a hash of 31 bits for the others."""
    return order.key(seed, _REPEAT, repeat) >> 33 if repeat else seed


def in_turn(count: int, repeats: int, rounds: bool) -> list[int]:
    """Return the numbers of so many trials in the order in which they start.

    Args:
        rounds: start the first repeats of all configurations, then the second ones, and so on, so that a drift of the
            machine hits all configurations alike; else the repeats of one configuration follow each other.
    """
    numbers = range(count)
    return sorted(numbers, key=lambda number: (number % repeats, number)) if rounds else [*numbers]


@dataclass(frozen=True)
class Configuration:
    """A configuration, as far as its repeats have come.

    Attributes:
        number: counted from 0.
        trials: the records of its trials with their figures.
        whole: whether all of its repeats have ended.
        failed: whether a repeat has no result or breaks a constraint: then the configuration has no mean.
        found: for each objective the values by repeat; those of trials that were interrupted count only where no
            repeat has ended.
        best: the number of the trial that is best in the first objective; None without values.
    """

    number: int
    trials: tuple[dict[str, Any], ...]
    whole: bool
    failed: bool
    found: tuple[dict[int, float], ...]
    best: int | None

    @property
    def means(self) -> list[float | None]:
        """The mean of each objective; None where a repeat lacks it."""
        return [statistics.fmean(one.values()) if one else None for one in self.found]


def configurations(
    records: Sequence[dict[str, Any]], objectives: Sequence[Objective], repeats: int
) -> list[Configuration]:
    """Return the configurations that have a trial, by number.

    Args:
        records: of the trials so far, with their figures.
    """
    grouped: dict[int, list[dict[str, Any]]] = {}
    for one in records:
        grouped.setdefault(one["number"] // repeats, []).append(one)
    return [_configuration(number, group, objectives, repeats) for number, group in sorted(grouped.items())]


def _configuration(
    number: int, group: list[dict[str, Any]], objectives: Sequence[Objective], repeats: int
) -> Configuration:
    ended = [one for one in group if one["status"] in record.ENDED]
    failed = any(one["objective"][0] is None or one.get("violates") for one in ended)
    usable = [] if failed else ended or [one for one in group if one["status"] == "interrupted"]
    usable = [one for one in usable if one["objective"][0] is not None]
    columns = [{one["number"] % repeats: one["objective"][place] for one in usable} for place in range(len(objectives))]
    found = tuple({} if None in column.values() else column for column in columns)
    pick, first = max if objectives[0].mode == "max" else min, found[0]
    best = number * repeats + next(r for r in first if first[r] == pick(first.values())) if first else None
    return Configuration(number, tuple(group), len(ended) == repeats, failed, found, best)


def ranked(found: Sequence[Configuration], objectives: Sequence[Objective]) -> list[Configuration]:
    """Return the configurations that have a mean of the first objective, the best first; of those that are equal in it,
    the best in the second. Those of which a repeat is left come last: a mean of fewer values is extreme more often."""

    def key(one: Configuration) -> list[float]:
        return [not one.whole, *(goal.cost(mean) for goal, mean in zip(objectives, one.means, strict=True))]

    return sorted((one for one in found if one.best is not None), key=key)


def kept(found: Sequence[Configuration], objectives: Sequence[Objective], keep: int) -> set[int]:
    """Return the trials that keep their weights: the best repeats of the best configurations, and those of
    configurations that may still become the best."""
    best = [one.best for one in ranked(found, objectives)[:keep]]
    return {number for number in (*best, *(one.best for one in found if not one.whole)) if number is not None}


def told(figures: Sequence[dict[str, Any]]) -> list[float] | None:
    """Return what a search is told of a configuration whose repeats have all ended: the mean of each objective, or None
    if a repeat failed.

    Args:
        figures: the records of its trials.
    """
    if any(None in one["objective"] or one.get("violates") for one in figures):
        return None
    if len(figures) == 1:
        return figures[0]["objective"]
    return [statistics.fmean(values) for values in zip(*(one["objective"] for one in figures), strict=True)]


def described(
    found: Sequence[Configuration], objectives: Sequence[Objective], confidence: float, tests: bool
) -> list[dict[str, Any]]:
    """Return what sweep.json lists of the configurations, the best first and those without a mean last.

    Args:
        confidence: of the intervals, and of all differences that are claimed together.
        tests: whether to compare each one with the others, which takes a time that grows with the square of their
            number.

    Returns:
        Of each one its `number`, its `trials`, the `values` of the axes, `whole`, and its `objectives`: the name,
        the `values` of the repeats, `n`, `mean`, `low` and `high` of the interval, `told_apart` from the best
        configuration in that objective (None for that one itself, or where it cannot be tested), and where it was
        tested `group`, its place in the order of groups that differ from each other, from 1 on, and `alike`, the
        numbers of those that it cannot be told apart from (of up to 100 configurations).
    """
    first = ranked(found, objectives)
    rows = [*first, *(one for one in found if one.best is None)]
    columns = [_column(rows, place, objective, confidence, tests) for place, objective in enumerate(objectives)]
    return [
        {
            "number": one.number,
            "trials": [trial["number"] for trial in one.trials],
            "values": one.trials[0]["values"],
            "whole": one.whole,
            "objectives": [column[place] for column in columns],
        }
        for place, one in enumerate(rows)
    ]


def _column(
    rows: Sequence[Configuration], place: int, objective: Objective, confidence: float, tests: bool
) -> list[dict[str, Any]]:
    values = [one.found[place] for one in rows]
    sign = 1.0 if objective.mode == "min" else -1.0
    means = {at: sign * mean for at, one in enumerate(rows) if (mean := one.means[place]) is not None}
    best = min(means, key=lambda at: (not rows[at].whole, means[at]), default=None)
    differ = differing(values, confidence) if tests else {}
    tested = sorted({at for pair in differ for at in pair}, key=means.__getitem__)
    group_of = {at: number for number, group in enumerate(groups(tested, differ), 1) for at in group}

    def compared(a: int, b: int | None) -> bool | None:
        return None if b is None else differ.get((min(a, b), max(a, b)))

    found = []
    for at, known in enumerate(values):
        listed = [known[repeat] for repeat in sorted(known)]
        mean = mean_of(listed, confidence) if listed else None
        figures = {name: getattr(mean, name) for name in ("n", "mean", "low", "high")} if mean else {"n": 0}
        more: dict[str, Any] = {"told_apart": compared(at, best)} | ({"group": group_of[at]} if at in group_of else {})
        if at in group_of and len(rows) <= _MOST_ALIKE:
            more["alike"] = [rows[other].number for other in tested if compared(at, other) is False]
        found.append({"name": objective.name, "values": listed, **figures, **more})
    return found
