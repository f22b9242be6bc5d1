"""Which axis of a search matters: the share of each in the variance of what the trials reached."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from raytrain.report.fanova import fanova
from raytrain.report.trials import Axis, Trial, number, text
from raytrain.sweep.compare import f_quantile

LEAST_TRIALS = 10
"""The fewest trials of a sampled space for which shares are computed."""

_MOST_GROUPS = 8
_SHUFFLES = 400
_LEAST_FREEDOM = 6  # degrees of freedom that interactions must leave to the noise


@dataclass(frozen=True)
class Share:
    """What one axis explains."""

    share: float
    """Of the variance, from 0 to 1: omega squared, at the least 0."""
    chance: float
    """The share that an axis without any effect exceeds once in twenty times."""


@dataclass(frozen=True)
class Explained:
    """What the axes explain."""

    shares: list[Share | None]
    """One for each axis."""
    pairs: dict[tuple[int, int], Share]
    """The interactions of two axes, by their places, where they can be told."""
    how: Literal["factorial", "forest", "groups"]
    """Where shares come from: the analysis of variance of a full factorial, that of a forest, or groups of trials."""


def column(axis: Axis, trials: Sequence[Trial]) -> list[float | str | None]:
    """Return the values of an axis: numbers, or texts where there is a choice; None where a trial has none."""
    if axis.levels is None:
        return [number(trial.values.get(axis.path)) for trial in trials]
    return [text(trial.values[axis.path]) if axis.path in trial.values else None for trial in trials]


def explained(columns: Sequence[Sequence[float | str | None]], results: np.ndarray) -> Explained:
    """Return what the axes explain: of a full factorial by an analysis of variance, of a sampled space by that of a
    random forest, and otherwise, as of few trials, by `importance`.

    Args:
        columns: for each axis the values of all trials: numbers, or texts; None where a trial has none.
        results: the objective of each trial, float64, shape (trials,).
    """
    if found := _anova(columns, results):
        return found
    if effects := fanova(columns, results):
        chance, places = effects.chance, range(len(columns))
        mains = [Share(effects.mains[n], chance[n]) if n in effects.mains else None for n in places]
        return Explained(mains, {pair: Share(one, chance[pair]) for pair, one in effects.pairs.items()}, "forest")
    return Explained(importance(columns, results), {}, "groups")


def _anova(columns: Sequence[Sequence[float | str | None]], results: np.ndarray) -> Explained | None:
    """Return the analysis of variance of trials that have every combination of the axes' values equally often, where
    the sums of squares of all effects add up to the total; None of other trials.

    Interactions of two axes are effects of their own if enough degrees of freedom are left; otherwise they are counted
    as noise. What is left is the noise, against which the F test sets the chance.
    """
    if any(value is None for column in columns for value in column) or len(results) < 2 or np.ptp(results) == 0:
        return None
    groups = {place: np.unique(np.array(column), return_inverse=True)[1] for place, column in enumerate(columns)}
    groups = {place: one for place, one in groups.items() if one.max() > 0}
    levels = {place: int(one.max()) + 1 for place, one in groups.items()}
    if not groups or math.prod(levels.values()) > len(results):
        return None
    cells = np.ravel_multi_index(tuple(groups.values()), tuple(levels.values()))
    if len(set(np.bincount(cells, minlength=math.prod(levels.values())).tolist())) > 1:
        return None
    centred, freedom = results - results.mean(), {place: count - 1 for place, count in levels.items()}
    mains = {place: _between(one, centred) for place, one in groups.items()}
    between, used = sum(mains.values()), sum(freedom.values())
    pairs, both = dict[tuple[int, int], float](), list(itertools.combinations(groups, 2))
    of_pairs = sum(freedom[a] * freedom[b] for a, b in both)
    if len(results) - 1 - used - of_pairs >= _LEAST_FREEDOM:
        for a, b in both:
            together = _between(groups[a] * levels[b] + groups[b], centred)
            pairs[a, b] = max(0.0, together - mains[a] - mains[b])
        between, used = between + sum(pairs.values()), used + of_pairs
    left = len(results) - 1 - used
    if left < 1:
        return None
    total = float(centred @ centred)
    noise = max(0.0, total - between) / left

    def share(squares: float, free: int) -> Share:
        by_chance = free * noise * (f_quantile(0.95, free, left) - 1) / (total + noise)
        return Share(max(0.0, squares - free * noise) / (total + noise), min(1.0, by_chance))

    found = [share(mains[place], freedom[place]) if place in mains else None for place in range(len(columns))]
    return Explained(found, {(a, b): share(one, freedom[a] * freedom[b]) for (a, b), one in pairs.items()}, "factorial")


def _between(groups: np.ndarray, centred: np.ndarray) -> float:
    """Return the sum of squares between groups of results with a mean of 0."""
    sums = np.bincount(groups, centred)
    return float((sums**2 / np.bincount(groups)).sum())


def importance(columns: Sequence[Sequence[float | str | None]], results: np.ndarray) -> list[Share | None]:
    """Return the main effect of each axis: the share of the results' variance that lies between groups of trials with
    the same value, as in a functional analysis of variance (Hutter, Hoos, Leyton-Brown 2014, "An Efficient Approach for
    Assessing Hyperparameter Importance"), here taken from the trials themselves and not from a model of them.

    Texts are groups as they are. Numbers are cut at their quantiles into groups of about equal size, so that a
    logarithmic axis needs no transformation. With few trials, groups differ by chance: the plain share (eta squared)
    of an axis without effect is (groups - 1) / (trials - 1) on average. Omega squared (Hays 1963) takes that away,

        (between - (groups - 1) * within / (trials - groups)) / (total + within / (trials - groups))

    with sums of squares, and is 0 on average for such an axis (negative values are given as 0). It assumes that the
    axes are independent of each other, as in a grid or a random search: a search that goes where results were good
    correlates them, and then an axis gets a part of what another one does. Interactions are in no share. An axis that
    some trials do not have is compared among those that have it; its share is of the variance of all.

    Args:
        columns: for each axis the values of all trials: numbers, or texts; None where a trial has none.
        results: the objective of each trial, float64, shape (trials,).

    Returns:
        One for each axis; None for an axis of fewer than two groups of values, or of more than half as many as there
        are trials that have it, and for all axes with fewer than `LEAST_TRIALS` trials or results that are all equal.
    """
    if len(results) < LEAST_TRIALS or np.ptp(results) == 0:
        return [None] * len(columns)
    total = float(((results - results.mean()) ** 2).sum())
    found = []
    for seed, values in enumerate(columns):
        there = np.array([value is not None for value in values])
        known = [value for value in values if value is not None]
        found.append(_share(grouped(known), results[there], total, seed) if known else None)
    return found


def _share(groups: np.ndarray, results: np.ndarray, total: float, seed: int) -> Share | None:
    count = int(groups.max()) + 1
    if count < 2 or 2 * count > len(results):
        return None
    shuffled = np.random.default_rng(seed).permuted(np.tile(results, (_SHUFFLES, 1)), axis=1)
    found = _omega_squared(groups, np.concatenate([results[None], shuffled]), total)
    return Share(max(0.0, float(found[0])), max(0.0, float(np.quantile(found[1:], 0.95))))


def _omega_squared(groups: np.ndarray, results: np.ndarray, total: float) -> np.ndarray:
    """Omega squared of each row of results, shape (rows, trials), in the groups given as integers, shape (trials,), of
    a total sum of squares."""
    members = np.eye(int(groups.max()) + 1)[groups]
    sizes, trials = members.sum(axis=0), results.shape[1]
    centred = results - results.mean(axis=1, keepdims=True)
    between = ((centred @ members) ** 2 / sizes).sum(axis=1)
    noise = ((centred**2).sum(axis=1) - between) / (trials - len(sizes))
    return (between - (len(sizes) - 1) * noise) / (total + noise)


def grouped(values: Sequence[float | str]) -> np.ndarray:
    """Return the group of each value, as integers from 0 on: of texts, and of few numbers that come several times, each
    value; of other numbers about equally many between quantiles."""
    different = len(set(values))
    if any(isinstance(value, str) for value in values) or 2 * different <= min(2 * _MOST_GROUPS, len(values)):
        return np.unique(np.array(values), return_inverse=True)[1]
    count = min(_MOST_GROUPS, max(2, math.isqrt(len(values))))
    numbers = np.array(values, dtype=np.float64)
    cuts = np.quantile(numbers, np.arange(1, count) / count)
    return np.unique(np.searchsorted(cuts, numbers, side="right"), return_inverse=True)[1]
