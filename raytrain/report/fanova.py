"""The functional analysis of variance of a sampled space, by a random forest (Hutter, Hoos, Leyton-Brown 2014, "An
Efficient Approach for Assessing Hyperparameter Importance"), with interactions of two axes."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

LEAST_TRIALS = 30
"""The fewest trials for which a forest is grown: one of fewer predicts too little."""

_TREES, _LEAF, _POINTS = 24, 2, 24
_SHUFFLES = 19  # the largest of so many copies is exceeded by chance once in twenty times
_MOST_PAIRED = 8  # axes; pairs grow with the square of their number

Pair = tuple[int, int]


@dataclass(frozen=True)
class Effects:
    """Shares of the results' variance.

    Attributes:
        mains: of each axis alone, by its place; axes of one value are left out.
        pairs: of interactions of two axes, beyond the two alone.
        chance: what an axis, or a pair, exceeds once in twenty times if it has no effect.
    """

    mains: dict[int, float]
    pairs: dict[Pair, float]
    chance: dict[int | Pair, float]


def fanova(columns: Sequence[Sequence[float | str | None]], results: np.ndarray) -> Effects | None:
    """Return the effects of the axes; None of fewer than `LEAST_TRIALS` trials, without scikit-learn, and where a trial
    lacks an axis.

    A tree of the forest predicts a constant in each of its boxes of the space. So the mean of its prediction over all
    axes but one or two is a sum over boxes, and the variance of that mean is what these axes explain. Each axis is
    weighed by the values that the trials have, independently of the others. Shares are means over the trees, times the
    variance that the forest predicts of trials that its trees have not seen (R² out of bag): the noise is in none.

    An axis without effect gets a share too, since trees fit noise. Copies of the axes, with their values shuffled among
    the trials, tell how much: the forests are grown over the axes and such copies, with others for each forest.

    Args:
        columns: for each axis the values of all trials: numbers, or texts; None where a trial has none.
        results: the objective of each trial, float64, shape (trials,).
    """
    return _effects(tuple(map(tuple, columns)), tuple(results.tolist()))


@lru_cache(maxsize=6)
def _effects(columns: tuple[tuple[float | str | None, ...], ...], reached: tuple[float, ...]) -> Effects | None:
    """As `fanova`; a sweep's pictures and its page ask for the same."""
    results = np.array(reached)
    lacks = any(value is None for column in columns for value in column)
    if lacks or len(results) < LEAST_TRIALS or np.ptp(results) == 0 or importlib.util.find_spec("sklearn") is None:
        return None
    places = [place for place, column in enumerate(columns) if len({*column}) > 1]
    if not places:
        return None
    values = np.stack([_coded(columns[place]) for place in places], axis=1)
    count, random = len(places), np.random.default_rng(0)
    both = [*itertools.combinations(range(count), 2)] if count <= _MOST_PAIRED else []
    copies = [(a, count + b) for pair in both for a, b in (pair, pair[::-1])]
    forests = [
        _shares(np.concatenate([values, random.permuted(values, axis=0)], axis=1), results, [*both, *copies])
        for _ in range(_SHUFFLES)
    ]
    found = Effects({}, {}, {})
    for i, place in enumerate(places):
        found.mains[place] = float(np.mean([alone[i] for alone, _ in forests]))
        found.chance[place] = float(max(alone[count + i] for alone, _ in forests))
    for a, b in both:
        pair = places[a], places[b]
        found.pairs[pair] = float(np.mean([together[a, b] for _, together in forests]))
        found.chance[pair] = max(max(one[a, count + b], one[b, count + a]) for _, one in forests)
    return found


def _coded(column: Sequence[float | str | None]) -> np.ndarray:
    """Return values as numbers of the forest's precision; texts by their place in the alphabet."""
    if any(isinstance(value, str) for value in column):
        return np.unique(np.array(column), return_inverse=True)[1].astype(np.float32)
    return np.array(column, dtype=np.float32)


def _shares(values: np.ndarray, results: np.ndarray, pairs: Sequence[Pair]) -> tuple[np.ndarray, dict[Pair, float]]:
    """Return the share of each axis, shape (axes,), and of pairs of axes.

    Args:
        values: of the axes, float32, shape (trials, axes).
    """
    grow = importlib.import_module("sklearn.ensemble").RandomForestRegressor
    forest = grow(_TREES, min_samples_leaf=_LEAF, oob_score=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a trial that all trees have seen
        forest.fit(values, (results - results.mean()) / results.std())
    axes = [_points(column) for column in values.T]
    mains, of_pairs = np.zeros(len(axes)), dict.fromkeys(pairs, 0.0)
    for one in forest.estimators_:
        alone, together = _of_tree(one.tree_, axes, pairs)
        mains += alone
        for pair, share in together.items():
            of_pairs[pair] += share
    known = max(0.0, float(forest.oob_score_)) / _TREES
    return mains * known, {pair: share * known for pair, share in of_pairs.items()}


def _points(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the values at which a prediction is looked at along an axis, and their weights, with a sum of 1."""
    values, counts = np.unique(column, return_counts=True)
    if len(values) <= _POINTS:
        return values, counts / counts.sum()
    middles = np.quantile(column, (np.arange(_POINTS) + 0.5) / _POINTS).astype(np.float32)
    return middles, np.full(_POINTS, 1 / _POINTS)


def _of_tree(
    tree: Any, axes: Sequence[tuple[np.ndarray, np.ndarray]], pairs: Sequence[Pair]
) -> tuple[np.ndarray, dict[Pair, float]]:
    """Return the shares of axes and of pairs in the variance of a tree's prediction."""
    low, high = np.full((tree.node_count, len(axes)), -np.inf), np.full((tree.node_count, len(axes)), np.inf)
    for node in range(tree.node_count):  # parents come before their children
        left, right, axis = tree.children_left[node], tree.children_right[node], tree.feature[node]
        if left >= 0:
            for child in (left, right):
                low[child], high[child] = low[node], high[node]
            high[left, axis] = low[right, axis] = tree.threshold[node]
    leaves = tree.children_left < 0
    low, high, predicted = low[leaves], high[leaves], tree.value[leaves, 0, 0]
    # Which points of an axis lie in a box, with their weights, and their sum: the box's share of the axis.
    inside = [
        ((at > low[:, i, None]) & (at <= high[:, i, None])) * np.sqrt(weights) for i, (at, weights) in enumerate(axes)
    ]
    wide = np.stack([(one**2).sum(axis=1) for one in inside], axis=1)
    there = wide.all(axis=1)  # the others hold no point
    inside, wide, predicted = [one[there] for one in inside], wide[there], predicted[there]
    volume = wide.prod(axis=1)
    centred = volume * (predicted - float(predicted @ volume))
    total = float(centred**2 @ (1 / volume))
    if total <= 0:
        return np.zeros(len(axes)), dict.fromkeys(pairs, 0.0)
    alone = [(centred / wide[:, i]) @ one for i, one in enumerate(inside)]
    mains = np.array([float(mean @ mean) for mean in alone]) / total
    together = dict[Pair, float]()
    for a, b in pairs:
        mean = (inside[a].T * (centred / (wide[:, a] * wide[:, b]))) @ inside[b]
        together[a, b] = float((mean**2).sum()) / total - mains[a] - mains[b]
    return mains, {pair: max(0.0, float(share)) for pair, share in together.items()}
