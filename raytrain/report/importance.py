"""Which axis of a search matters: the share of each in the variance of what the trials reached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_TRIALS = 10
"""The fewest trials for which shares are computed."""

_MOST_GROUPS = 8
_SHUFFLES = 400


@dataclass(frozen=True)
class Share:
    """What one axis explains."""

    share: float
    """Of the variance, from 0 to 1: omega squared, at the least 0."""
    chance: float
    """The share that an axis without any effect exceeds once in twenty times, found by shuffling the results."""


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
    correlates them, and then an axis gets a part of what another one does. Interactions are in no share.

    Args:
        columns: for each axis the values of all trials: numbers, or texts; None where a trial has none (a group).
        results: the objective of each trial, float64, shape (trials,).

    Returns:
        One for each axis; None for an axis of fewer than two groups of values, or of more than half as many as there
        are trials, and for all axes with fewer than `LEAST_TRIALS` trials or results that are all equal.
    """
    if len(results) < LEAST_TRIALS or np.ptp(results) == 0:
        return [None] * len(columns)
    return [_share(_groups(column), results, seed) for seed, column in enumerate(columns)]


def _share(groups: np.ndarray, results: np.ndarray, seed: int) -> Share | None:
    count = int(groups.max()) + 1
    if count < 2 or 2 * count > len(results):
        return None
    shuffled = np.random.default_rng(seed).permuted(np.tile(results, (_SHUFFLES, 1)), axis=1)
    found = _omega_squared(groups, np.concatenate([results[None], shuffled]))
    return Share(max(0.0, float(found[0])), max(0.0, float(np.quantile(found[1:], 0.95))))


def _omega_squared(groups: np.ndarray, results: np.ndarray) -> np.ndarray:
    """Omega squared of each row of results, shape (rows, trials), in the groups given as integers, shape (trials,)."""
    members = np.eye(int(groups.max()) + 1)[groups]
    sizes, trials = members.sum(axis=0), results.shape[1]
    centred = results - results.mean(axis=1, keepdims=True)
    between = ((centred @ members) ** 2 / sizes).sum(axis=1)
    total = (centred**2).sum(axis=1)
    noise = (total - between) / (trials - len(sizes))
    return (between - (len(sizes) - 1) * noise) / (total + noise)


def _groups(column: Sequence[float | str | None]) -> np.ndarray:
    """Return the group of each trial, as integers from 0 on."""
    numbers = np.array([math.nan if not isinstance(x, int | float) else x for x in column], dtype=np.float64)
    if any(isinstance(value, str) for value in column) or len(np.unique(numbers)) <= _MOST_GROUPS:
        names = [str(value) for value in column]
    else:
        known = numbers[~np.isnan(numbers)]
        count = min(_MOST_GROUPS, max(2, math.isqrt(len(known))))
        cuts = np.quantile(known, np.arange(1, count) / count)
        names = ["none" if math.isnan(x) else str(np.searchsorted(cuts, x, side="right")) for x in numbers]
    return np.unique(names, return_inverse=True)[1]
