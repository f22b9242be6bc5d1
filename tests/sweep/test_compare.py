"""Statistics of repeats: equal to scipy's, and honest in simulated sweeps whose truth is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from raytrain.sweep.compare import difference, differing, groups, holm, mean_of, paired, t_outside, t_quantile, welch
from raytrain.sweep.objective import Objective
from raytrain.sweep.repeats import configurations, described


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("freedom", [1, 2, 3.7, 10, 99, 1e5])
def test_the_t_distribution_is_that_of_scipy(freedom: float) -> None:
    for t in (0.0, 0.001, 0.1, 1.0, 2.5, 12.0, 400.0, -3.0):
        assert t_outside(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), rel=1e-10, abs=1e-300)
    assert t_outside(math.inf, freedom) == 0
    for inside in (0.01, 0.5, 0.95, 0.999):
        assert t_quantile(inside, freedom) == pytest.approx(stats.t.ppf((1 + inside) / 2, freedom), rel=1e-9)


@pytest.mark.parametrize("n", [2, 3, 5, 40])
def test_intervals_and_tests_are_those_of_scipy(n: int, random: np.random.Generator) -> None:
    a, b = random.normal(0.9, 0.01, n), random.normal(0.91, 0.03, n)
    found, whole = mean_of([*a], 0.9), stats.ttest_1samp(a, 0).confidence_interval(0.9)
    assert (found.n, found.mean) == (n, pytest.approx(a.mean()))
    assert (found.low, found.high) == (pytest.approx(whole.low), pytest.approx(whole.high))
    assert paired([*a], [*b]) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    of_welch: Any = stats.ttest_ind(a, [*b, 0.8], equal_var=False)
    assert welch([*a], [*b, 0.8]) == pytest.approx(of_welch.pvalue)
    assert mean_of([0.5], 0.95).low is None and mean_of([0.5], 0.95).mean == 0.5


def test_holm_is_the_adjustment_by_hand() -> None:
    """Holm (1979): 0.01 <= 0.05/4, 0.015 <= 0.05/3, 0.03 > 0.05/2 ends it, though 0.04 <= 0.05."""
    assert holm([0.03, 0.01, 0.04, 0.015], 0.05) == [False, True, False, True]
    assert holm([], 0.05) == [] and holm([0.05], 0.05) == [True] and holm([0.03, 0.03], 0.05) == [False, False]


def test_values_without_noise_differ_by_any_difference() -> None:
    assert difference({0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0}) == 1
    assert difference({0: 1.0, 1: 1.0}, {0: 1.1, 1: 1.1}) == 0
    coarse = [0.25, 0.5, 0.25, 0.5, 0.75]
    by_chance = difference(dict(enumerate(coarse)), {place: value + 0.25 for place, value in enumerate(coarse)})
    assert by_chance == welch(coarse, [value + 0.25 for value in coarse]) > 0.05, "equal differences prove nothing"


def test_five_equal_repeats_are_paired_and_others_are_not() -> None:
    a, b = [1.0, 2.0, 3.1, 4.2, 5.0], [1.5, 2.4, 3.6, 4.4, 5.6]
    of_a, of_b = dict(enumerate(a)), dict(enumerate(b))
    assert difference(of_a, dict(reversed(of_b.items()))) == paired(a, b) < 0.01
    assert difference({**of_a, 5: 6.0}, of_b) == welch([*a, 6.0], b) > 0.5
    few = [{place: values[place] for place in range(3)} for values in (a, b)]
    assert difference(*few) == welch(a[:3], b[:3])
    assert differing([few[0], of_b, {0: 9.0}], 0.95) == {(0, 1): False}
    assert differing([{0: 9.0}, of_a], 0.95) == {} == differing([], 0.95)


def test_groups_are_the_smallest_that_all_differ_from_each_other(random: np.random.Generator) -> None:
    assert groups([], {}) == [] and groups([4], {}) == [[4]]
    for _ in range(200):
        size = int(random.integers(1, 8))
        order, density = [int(one) for one in random.permutation(size)], random.random()
        differ = {(a, b): bool(random.random() < density) for a in range(size) for b in range(a + 1, size)}

        def apart(cut: int, order: list[int] = order, differ: dict[tuple[int, int], bool] = differ) -> bool:
            return all(differ[min(a, b), max(a, b)] for a in order[:cut] for b in order[cut:])

        ends = [cut for cut in range(1, size) if apart(cut)]
        assert groups(order, differ) == [order[a:b] for a, b in zip([0, *ends], [*ends, size], strict=True)]


def simulated(random: np.random.Generator, truth: np.ndarray, seeds: float, repeats: int) -> list[dict[str, Any]]:
    """What sweep.json says of a sweep over configurations of known means, with noise of 1 and seeds that shift all
    configurations alike."""
    values = truth[:, None] + seeds * random.normal(size=repeats) + random.normal(size=(len(truth), repeats))
    records = [
        {"number": c * repeats + r, "values": {}, "status": "completed", "objective": [float(value)]}
        for c, row in enumerate(values)
        for r, value in enumerate(row)
    ]
    goals = (Objective("val_accuracy", "val_accuracy", "max"),)
    return described(configurations(records, goals, repeats), goals, 0.95, True)


def claims(rows: list[dict[str, Any]]) -> set[tuple[int, int]]:
    """The pairs of configurations, the better one first, of which the answer says that they differ."""
    means = {row["number"]: row["objectives"][0]["mean"] for row in rows}
    alike = {row["number"]: {row["number"], *row["objectives"][0]["alike"]} for row in rows}
    found = {(a, b) for a in means for b in means if b not in alike[a] and means[a] > means[b]}
    assert all((a in alike[b]) == (b in alike[a]) for a in alike for b in alike)
    group = {row["number"]: row["objectives"][0]["group"] for row in rows}
    assert {(a, b) for a in group for b in group if group[a] < group[b]} <= found, "groups say no more than pairs"
    assert {(rows[0]["number"], row["number"]) for row in rows if row["objectives"][0]["told_apart"]} <= found
    return found


@pytest.mark.parametrize(("seeds", "repeats"), [(0.0, 3), (1.0, 3), (1.0, 6)])
def test_all_that_is_said_of_the_order_is_true_in_95_of_100_sweeps(
    seeds: float, repeats: int, random: np.random.Generator
) -> None:
    truth, right, said = np.array([0.0, 0.5, 4.0, 8.0, 20.0]), 0, 0
    for _ in range(100):
        found = claims(simulated(random, truth, seeds, repeats))
        right += all(truth[a] > truth[b] for a, b in found)
        said += len(found)
    assert right >= 95
    assert said > 400, "it can tell apart what is far apart"


@pytest.mark.parametrize(("gap", "repeats"), [(15.0, 3), (5.0, 6)])
def test_the_true_order_is_recovered_where_the_noise_allows(
    gap: float, repeats: int, random: np.random.Generator
) -> None:
    """All of the order, of five configurations whose means lie so many standard deviations apart."""
    whole = 0
    for _ in range(100):
        truth = gap * random.permutation(5)
        rows = simulated(random, truth, 0.5, repeats)
        assert [row["number"] for row in rows] == sorted(range(5), key=lambda n: -truth[n])
        whole += [row["objectives"][0]["group"] for row in rows] == [1, 2, 3, 4, 5]
    assert whole >= 95


def test_equal_configurations_are_told_apart_in_five_of_a_hundred_sweeps_at_most(random: np.random.Generator) -> None:
    """Of 8 equal ones some differ much by chance, which the number of tests must allow for."""
    wrong = sum(bool(claims(simulated(random, np.zeros(8), 1.0, 4))) for _ in range(200))
    assert wrong <= 10


def test_intervals_hold_the_true_mean_as_often_as_they_say(random: np.random.Generator) -> None:
    held = 0
    for row in random.normal(3.0, 2.0, size=(1000, 3)):
        found = mean_of([*row], 0.9)
        held += found.low is not None and found.high is not None and found.low <= 3.0 <= found.high
    assert 870 <= held <= 930
