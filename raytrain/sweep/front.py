"""The Pareto front: the results that no other result dominates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def pareto_front(points: Sequence[Sequence[float | None]], modes: Sequence[str]) -> list[int]:
    """Return the indices, ascending, of the points that no other point dominates: is at least as good in everything and
    better in something. Equal points do not dominate each other, so that both are on the front or neither is.

    Args:
        points: each with one figure a mode; a point with a None or NaN among them is never on the front.
        modes: `max` or `min` of each figure.

    Raises:
        ValueError: a point has more or fewer figures than there are modes, or a mode is neither.
    """
    if not set(modes) <= {"max", "min"}:
        raise ValueError(f"the modes are {list(modes)}: each must be max or min")
    if any(len(point) != len(modes) for point in points):
        raise ValueError(f"each point must have as many values as there are modes, {list(modes)}")
    signs = np.array([1.0 if mode == "max" else -1.0 for mode in modes])
    values = np.array([[np.nan if x is None else x for x in point] for point in points], dtype=np.float64)
    values = values.reshape(len(points), len(modes)) * signs
    left = np.flatnonzero(~np.isnan(values).any(axis=1))
    # From the best on in lexicographic order, no point dominates an earlier one: the first that is left is on the
    # front.
    left = left[np.lexsort(-values[left].T[::-1])] if len(modes) else left
    found: list[int] = []
    while len(left):
        equal = (values[left] == values[left[0]]).all(axis=1)
        found += left[equal].tolist()
        left = left[~equal & (values[left] > values[left[0]]).any(axis=1)]
    return sorted(found)
