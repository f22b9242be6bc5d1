"""Order over a whole run: workers that change in number, at any step, train on the same batches, each sample once."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytrain import order
from raytrain.data.reader import Epoch

SEEDS, WORKERS = st.integers(0, 2**63 - 1), st.integers(1, 12)
SIZES = (
    st.integers(1, 5_000) | st.integers(1, 40) | st.sampled_from([2**n + by for n in range(1, 13) for by in (-1, 0, 1)])
)
MOST_STEPS = 120
"""Of an epoch, for the sake of the test's time."""


class History(NamedTuple):
    """A run: `takeovers` are (step, workers) in order, the first at step 0; the last one goes on to the run's end."""

    seed: int
    n: int
    batch: int
    epochs: int
    takeovers: list[tuple[int, int]]

    @property
    def steps(self) -> int:
        return -(-self.n // self.batch)


@st.composite
def histories(draw: st.DrawFn) -> History:
    n, epochs = draw(SIZES), draw(st.integers(1, 3))
    batch = draw(st.integers(-(-n // MOST_STEPS), n // draw(st.sampled_from((1, 1, 8))) + 2))
    steps = -(-n // batch)
    takeovers = [(0, draw(WORKERS))]
    for _ in range(draw(st.integers(0, 4))):
        step = draw(st.integers(0, (epochs + 1) * steps))
        # Some stand for an epoch's end.
        takeovers.append((step if step <= epochs * steps else step % (epochs + 1) * steps, draw(WORKERS)))
    return History(draw(SEEDS), n, batch, epochs, sorted(takeovers, key=lambda takeover: takeover[0]))


def trained(history: History, counts: Counter) -> list[list[list[np.ndarray]]]:
    """What the ranks of a run train on: epochs of steps of ranks of samples. As in `loop.Worker`, whoever takes over
    knows the step that comes next and nothing else."""
    steps, seen = history.steps, [[] for _ in range(history.epochs)]
    ends = [step for step, _ in history.takeovers[1:]] + [history.epochs * steps]
    for (step, world), end in zip(history.takeovers, ends, strict=True):
        shards = [order.Shard(history.n, history.batch, rank, world) for rank in range(world)]
        while step < end:
            epoch, first = divmod(step, steps)
            ways = [Epoch(shard, history.seed, epoch, first) for shard in shards]
            taken = list(islice(zip(*(way.steps() for way in ways), strict=True), end - step))
            assert len(taken) == min(end - step, steps - first), "no rank has fewer steps, or more"
            streamed = ways[step % world]
            ahead = streamed.samples(np.arange(streamed.shard.count(first)))  # as Ray Data's tasks are asked
            own = np.concatenate([parts[step % world] for parts in taken])
            assert np.array_equal(own, ahead[: len(own)]) and (step + len(taken) < end or len(own) <= len(ahead))
            seen[epoch] += map(list, taken)
            counts["ranks without samples"] += not all(len(part) for part in taken[-1])
            counts["passes begun within an epoch"] += first > 0
            step += len(taken)
    return seen


@pytest.fixture
def permuted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Computes each epoch's permutation once, for all ranks and for what is expected of them. What stands at a position
    does not depend on which others are asked for (`test_order.py`), and to compute it takes most of the time."""
    samples = order.samples
    whole = lru_cache(maxsize=8)(lambda seed, epoch, n: samples(seed, epoch, n, np.arange(n)))

    def at(seed: int, epoch: int, n: int, positions: np.ndarray) -> np.ndarray:
        assert positions.size == 0 or 0 <= positions.min() <= positions.max() < n
        return whole(seed, epoch, n)[positions]

    monkeypatch.setattr(order, "samples", at)
    monkeypatch.setattr(order, "_CHUNK", 100)  # or these epochs would all be of one chunk


@pytest.mark.usefixtures("permuted_once")
@pytest.mark.parametrize("cases", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_any_history_of_workers_keeps_the_global_batches(cases: int) -> None:
    counts: Counter = Counter()

    @settings(deadline=None, max_examples=cases)
    @given(history=histories())
    def holds(history: History) -> None:
        counts["cases"] += 1
        seen = trained(history, counts)
        for epoch, steps in enumerate(seen):
            expected = order.samples(history.seed, epoch, history.n, np.arange(history.n))
            bounds = [*range(0, history.n, history.batch), history.n]
            assert len(steps) == len(bounds) - 1
            assert [sum(map(len, parts)) for parts in steps] == np.diff(bounds).tolist()
            together = np.concatenate([part for parts in steps for part in parts])
            assert np.array_equal(together, expected), "rank after rank, the positions of the global batch in order"
            assert np.array_equal(np.sort(together), np.arange(history.n)), "each sample once"
            assert all(np.ptp([len(part) for part in parts]) <= 1 for parts in steps[-2:]), "shared evenly"
        points = history.takeovers
        counts["resizes"] += any(a[1] != b[1] for a, b in pairwise(points))
        counts["resumed at an epoch's end"] += any(step % history.steps == 0 for step, _ in points[1:])
        counts["taken over twice at a step"] += any(a[0] == b[0] for a, b in pairwise(points[1:]))
        counts["a short last batch"] += history.n % history.batch > 0
        counts["an epoch of one step"] += history.steps == 1

    holds()
    assert counts["cases"] >= cases
    rare = {what: count for what, count in counts.items() if count < cases // 50}
    assert len(counts) == 8 and not rare, counts


def test_evaluation_sees_each_sample_once_on_any_workers() -> None:
    @settings(deadline=None, max_examples=300)
    @given(n=st.integers(1, 600), batch=st.integers(1, 700), world=st.integers(1, 16))
    def holds(n: int, batch: int, world: int) -> None:
        ways = [Epoch(order.Shard(n, batch, rank, world), 0, None) for rank in range(world)]
        parts = [part for parts in zip(*(way.steps() for way in ways), strict=True) for part in parts]
        assert np.array_equal(np.concatenate(parts), np.arange(n))

    holds()
