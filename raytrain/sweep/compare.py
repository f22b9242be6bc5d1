"""Statistics of repeated measurements: means with their confidence intervals, and which of them differ.

Student's t distribution by the regularised incomplete beta function (NIST Digital Library of Mathematical Functions,
8.17.22, evaluated by Lentz's method). Standard library only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

_TINY = 1e-300
_PAIRS = 5
"""Repeats from which on the paired test is used: with fewer, the degrees of freedom that it gives up weigh more than
the noise that two configurations share."""
_TERMS = 10_000


@dataclass(frozen=True)
class Mean:
    """The mean of some values.

    Attributes:
        n: how many values.
        mean: their mean.
        low: lower end of the confidence interval of the mean, which is symmetric; None for a single value.
        high: its upper end.
    """

    n: int
    mean: float
    low: float | None
    high: float | None


def mean_of(values: Sequence[float], confidence: float) -> Mean:
    """Return the mean and its confidence interval by Student's t distribution.

    Args:
        values: at least one, finite.
        confidence: of the interval, in (0, 1).
    """
    n, mean = len(values), statistics.fmean(values)
    if n < 2:
        return Mean(n, mean, None, None)
    half = t_quantile(confidence, n - 1) * math.sqrt(_variance((*values,)) / n)
    return Mean(n, mean, mean - half, mean + half)


def differing(values: Sequence[Mapping[int, float]], confidence: float) -> dict[tuple[int, int], bool]:
    """Return which configurations differ, at a family-wise error rate of 1 - `confidence`: in that share of sweeps all
    that is said is true, also of which mean of a pair is the larger one.

    Two configurations with the same five repeats or more are compared by the paired test, since a repeat has the same
    seed and the same time of the sweep in both; others by Welch's test, which noise that both share makes cautious.
    Holm's correction counts all pairs: which configuration is the best is not known beforehand either.

    Args:
        values: of each configuration, by repeat.

    Returns:
        For each pair of places, the lower one first, that have two values or more each: True where they differ, False
        where they cannot be told apart.
    """
    usable = [place for place, one in enumerate(values) if len(one) > 1]
    pairs = [(a, b) for a in usable for b in usable if a < b]
    found = holm([difference(values[a], values[b]) for a, b in pairs], 1 - confidence)
    return dict(zip(pairs, found, strict=True))


def groups(ordered: Sequence[int], differ: Mapping[tuple[int, int], bool]) -> list[list[int]]:
    """Return the order that can be relied on: the smallest groups, in the order of the means, such that each place of a
    group differs from each place of all others.

    Args:
        ordered: places in the order of their means.
        differ: of each pair of them, as `differing` returns it.
    """
    found, members, least = list[list[int]](), list[int](), len(ordered)
    for at in range(len(ordered) - 1, -1, -1):
        here = ordered[at]
        alike = (i for i, one in enumerate(ordered[:at]) if not differ[min(one, here), max(one, here)])
        least, members = min(least, next(alike, at)), [here, *members]
        if least == at:  # none from here on is like one before
            found, members = [members, *found], []
    return found


def difference(a: Mapping[int, float], b: Mapping[int, float]) -> float:
    """Return the p-value of the hypothesis that two configurations have equal means, by the paired test or by Welch's.

    Args:
        a: values by repeat, at least two.
        b: likewise.
    """
    # Coarse figures may have equal differences by chance, which the paired test takes for no noise at all.
    if len(a) >= _PAIRS and a.keys() == b.keys() and len({a[repeat] - b[repeat] for repeat in a}) > 1:
        return paired([a[repeat] for repeat in a], [b[repeat] for repeat in a])
    return welch([*a.values()], [*b.values()])


def paired(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the two-sided p-value of Student's t test of the differences a[i] - b[i].

    Args:
        a: at least two values.
        b: as many.
    """
    differences = [x - y for x, y in zip(a, b, strict=True)]
    return _p(statistics.fmean(differences), _variance((*differences,)) / len(differences), len(differences) - 1)


def welch(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the two-sided p-value of Welch's t test of independent values, whose variances may differ (Welch, 1947).

    Args:
        a: at least two values.
        b: at least two values.
    """
    of_a, of_b = _variance((*a,)) / len(a), _variance((*b,)) / len(b)
    below = of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1)
    freedom = (of_a + of_b) ** 2 / below if below else 1.0
    return _p(statistics.fmean(a) - statistics.fmean(b), of_a + of_b, freedom)


def holm(p_values: Sequence[float], error: float) -> list[bool]:
    """Return which hypotheses are rejected, with a chance of `error` at most to reject one that is true (Holm,
    1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    rejected = [False] * len(p_values)
    for rank, place in enumerate(order):
        if p_values[place] > error / (len(order) - rank):
            break
        rejected[place] = True
    return rejected


def t_outside(t: float, freedom: float) -> float:
    """Return the probability that a value of Student's t distribution is further from 0 than `t`.

    Args:
        freedom: degrees of freedom, above 0; not necessarily whole.
    """
    if math.isinf(t):
        return 0.0
    return _beta(freedom / 2, 0.5, freedom / (freedom + t * t), t * t / (freedom + t * t))


@lru_cache
def t_quantile(inside: float, freedom: float) -> float:
    """Return the t between whose negative and itself Student's t distribution has the probability `inside`, in
    (0, 1)."""
    low, high = 0.0, 1.0
    while t_outside(high, freedom) > 1 - inside:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if t_outside(middle, freedom) > 1 - inside else (low, middle)
    return (low + high) / 2


@lru_cache
def f_quantile(below: float, above: float, under: float) -> float:
    """Return the value below which the F distribution has the probability `below`, in (0, 1).

    Args:
        above: degrees of freedom of the numerator.
        under: degrees of freedom of the denominator.
    """

    def outside(f: float) -> float:
        whole = under + above * f
        return _beta(under / 2, above / 2, under / whole, above * f / whole)

    low, high = 0.0, 1.0
    while outside(high) > 1 - below:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if outside(middle) > 1 - below else (low, middle)
    return (low + high) / 2


@lru_cache(1024)  # each configuration is in many pairs
def _variance(values: tuple[float, ...]) -> float:
    """Return the sample variance, exactly 0 for equal values."""
    return statistics.variance(values) if len({*values}) > 1 else 0.0


def _p(difference: float, variance: float, freedom: float) -> float:
    if variance <= 0:
        return 1.0 if difference == 0 else 0.0
    return t_outside(difference / math.sqrt(variance), freedom)


def _beta(a: float, b: float, x: float, rest: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b).

    Args:
        rest: 1 - x, without its rounding.
    """
    if x <= 0 or rest <= 0:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # the other side converges faster
        return 1 - _beta(b, a, rest, x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest))
    upper, lower = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    found = lower
    for m in range(1, _TERMS):
        step = 1.0
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            lower = 1 / _away(1 + term * lower)
            upper = _away(1 + term / upper)
            step = upper * lower
            found *= step
        if abs(step - 1) < 1e-15:
            break
    return front * found / a


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
