"""Order: permutations, random numbers, splits and shards as pure functions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raytrain import order

SEEDS = st.integers(0, 2**63 - 1)
WORLDS = (1, 2, 4)


def epoch(seed: int, number: int, n: int) -> np.ndarray:
    return order.samples(seed, number, n, np.arange(n))


@settings(deadline=None, max_examples=200)
@given(seed=SEEDS, number=st.integers(0, 10_000), n=st.integers(1, 5_000))
def test_an_epoch_is_a_permutation(seed: int, number: int, n: int) -> None:
    assert np.array_equal(np.sort(epoch(seed, number, n)), np.arange(n))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 4_096, 4_097, 60_000])
def test_epoch_is_a_permutation_for_special_sizes(n: int) -> None:
    assert np.array_equal(np.sort(epoch(0, 0, n)), np.arange(n))


def test_no_positions_give_no_samples() -> None:
    assert order.samples(0, 0, 10, np.empty(0, np.int64)).tolist() == []


def test_samples_do_not_depend_on_the_other_positions() -> None:
    whole = epoch(3, 1, 1_000)
    positions = np.random.default_rng(0).integers(0, 1_000, 300)
    assert np.array_equal(order.samples(3, 1, 1_000, positions), whole[positions])
    assert [int(order.samples(3, 1, 1_000, np.array([p]))[0]) for p in (0, 1, 999)] == whole[[0, 1, 999]].tolist()


def test_another_seed_or_epoch_is_another_order() -> None:
    orders = [epoch(seed, number, 1_000) for seed in range(4) for number in range(4)]
    fixed = [np.sum(a == b) for i, a in enumerate(orders) for b in orders[:i]]
    assert max(fixed) < 12  # equal places between two random permutations are Poisson-distributed around 1
    assert 0.6 < np.mean(fixed) < 1.4


def test_seed_and_epoch_are_not_interchangeable() -> None:
    assert not np.array_equal(epoch(1, 2, 100), epoch(2, 1, 100))


def test_samples_stand_at_every_position_equally_often() -> None:
    n, epochs = 64, 1_500
    places = np.stack([np.argsort(epoch(0, number, n)) for number in range(epochs)])
    deviation = np.abs(places.mean(axis=0) - (n - 1) / 2) / np.sqrt((n * n - 1) / 12 / epochs)
    assert deviation.max() < 4.5
    counts = np.stack([np.bincount(places[:, sample], minlength=n) for sample in range(n)])
    chi_squared = np.sum((counts - epochs / n) ** 2 / (epochs / n))
    assert abs(chi_squared - (n - 1) ** 2) < 5 * np.sqrt(2) * (n - 1)


def test_every_order_of_three_and_four_samples_occurs() -> None:
    assert len({tuple(epoch(0, number, 3)) for number in range(200)}) == 6
    assert len({tuple(epoch(0, number, 4)) for number in range(600)}) == 24


def test_order_is_unchanged_for_resumed_runs() -> None:
    assert (order.key(0), order.key(1, 2, 3)) == (0xC180DE3499A78B10, 0xA3892A1E53890D87)
    assert epoch(0, 0, 10).tolist() == [5, 7, 2, 8, 1, 0, 4, 9, 3, 6]
    assert order.samples(7, 3, 60_000, np.array([0, 1, 2, 59_999])).tolist() == [48724, 11906, 29152, 34981]
    assert order.samples(1, 2, 10**12, np.array([0, 10**12 - 1])).tolist() == [694461048107, 160378716706]
    assert order.uniform(0, 0, np.array([0, 1, 59_999]), 2).tolist() == [
        [0.2721786719381345, 0.11717663639314668],
        [0.5433223784174018, 0.29127254904351807],
        [0.2739029950532649, 0.004992077186824706],
    ]
    rest, held_out = order.stratified(np.repeat([0, 1], [5, 7]), 0.25, seed=1)
    assert (rest.tolist(), held_out.tolist()) == ([0, 1, 3, 4, 5, 6, 9, 10, 11], [2, 7, 8])


def test_keys_depend_on_every_part_and_its_place() -> None:
    tuples = [(), (0,), (0, 0), (1,), (0, 1), (1, 0), (-1,), (2**63,)]
    assert len({order.key(*parts) for parts in tuples}) == len(tuples)


def test_uniform_numbers_have_the_right_moments() -> None:
    numbers = order.uniform(5, 2, np.arange(40_000), 5)
    assert numbers.shape == (40_000, 5) and numbers.dtype == np.float64
    assert numbers.min() >= 0 and numbers.max() < 1
    assert np.allclose(numbers.mean(axis=0), 0.5, atol=5 * 0.2887 / 200)
    assert np.allclose(numbers.std(axis=0), 12**-0.5, atol=0.005)
    assert np.abs(np.corrcoef(numbers.T) - np.eye(5)).max() < 5 / 200
    assert np.abs(np.corrcoef(numbers[1:, 0], numbers[:-1, 0])[0, 1]) < 5 / 200


@settings(deadline=None)
@given(seed=SEEDS, number=st.integers(0, 999), ids=st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_uniform_numbers_belong_to_the_sample_whoever_asks(seed: int, number: int, ids: list[int]) -> None:
    together = order.uniform(seed, number, np.array(ids), 3)
    assert np.array_equal(order.uniform(seed, number, np.array(ids[::-1]), 3), together[::-1])
    assert np.array_equal(order.uniform(seed, number, np.array(ids[:1]), 3), together[:1])


def test_uniform_numbers_change_with_seed_and_epoch() -> None:
    ids = np.arange(100)
    first = order.uniform(0, 0, ids, 2)
    assert not np.any(first == order.uniform(1, 0, ids, 2))
    assert not np.any(first == order.uniform(0, 1, ids, 2))


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=8),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 1_000),
)
def test_a_stratified_split_keeps_each_class_share_on_both_sides(sizes: list[int], fraction: float, seed: int) -> None:
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    rest, held_out = order.stratified(labels, fraction, seed)
    assert rest.dtype == held_out.dtype == np.int64
    assert np.array_equal(np.sort(np.concatenate([rest, held_out])), np.arange(len(labels)))
    assert np.all(np.diff(rest) > 0) and np.all(np.diff(held_out) > 0)
    for label, size in enumerate(sizes):
        count = np.sum(labels[held_out] == label)
        assert abs(count - size * fraction) <= 1
        assert (size == 1 and count == 0) or 1 <= count <= size - 1


def test_another_seed_holds_out_others() -> None:
    labels = np.repeat(np.arange(3), 100)
    splits = [order.stratified(labels, 0.2, seed)[1] for seed in range(3)]
    assert not np.array_equal(splits[0], splits[1]) and not np.array_equal(splits[1], splits[2])


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, int, int, int]:
    n, batch, world = draw(st.integers(1, 600)), draw(st.integers(1, 100)), draw(st.integers(1, 9))
    return n, batch, world, draw(st.integers(0, -(-n // batch) + 1))


@settings(deadline=None, max_examples=300)
@given(cut=cuts())
def test_ranks_share_every_global_batch_evenly(cut: tuple[int, int, int, int]) -> None:
    n, batch, world, _ = cut
    shards = [order.Shard(n, batch, rank, world) for rank in range(world)]
    assert {shard.steps for shard in shards} == {-(-n // batch)}
    for step in range(shards[0].steps):
        parts = [shard.slice(step) for shard in shards]
        assert parts[0][0] == step * batch and parts[-1][1] == min((step + 1) * batch, n)
        assert all(before[1] == after[0] for before, after in pairwise(parts))
        lengths = [stop - start for start, stop in parts]
        assert max(lengths) - min(lengths) <= 1 and sum(lengths) == shards[0].size(step)


@settings(deadline=None, max_examples=300)
@given(cut=cuts())
def test_positions_equal_the_slices_from_any_step(cut: tuple[int, int, int, int]) -> None:
    n, batch, world, first = cut
    for rank in range(world):
        shard = order.Shard(n, batch, rank, world)
        slices = [np.arange(*shard.slice(step)) for step in range(first, shard.steps)]
        expected = np.concatenate([np.empty(0, np.int64), *slices])
        assert shard.count(first) == len(expected)
        assert np.array_equal(shard.positions(np.arange(len(expected)), first), expected)


@settings(deadline=None, max_examples=300)
@given(cut=cuts())
def test_parts_of_a_batch_are_the_same_for_any_number_of_ranks(cut: tuple[int, int, int, int]) -> None:
    n, batch, parts, first = cut
    alone = [order.Shard(n, batch, part, parts) for part in range(parts)]
    for world in (world for world in range(1, parts + 1) if parts % world == 0):
        each = parts // world
        for rank in range(world):
            shard, own = order.Shard(n, batch, rank, world, each), alone[rank * each : (rank + 1) * each]
            for step in range(shard.steps):
                assert shard.slice(step) == (own[0].slice(step)[0], own[-1].slice(step)[1])
                assert shard.cuts(step) == tuple(stop - start for start, stop in (one.slice(step) for one in own))
            slices = [np.arange(*shard.slice(step)) for step in range(first, shard.steps)]
            expected = np.concatenate([np.empty(0, np.int64), *slices])
            assert shard.count(first) == len(expected)
            assert np.array_equal(shard.positions(np.arange(len(expected)), first), expected)


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_global_batches_are_the_same_for_any_number_of_ranks(batch: int) -> None:
    def batches(world: int) -> list[list[int]]:
        shards = [order.Shard(1_000, batch, rank, world) for rank in range(world)]
        chosen = order.Order(0, 0, 1_000)
        return [
            [int(sample) for shard in shards for sample in chosen[slice(*shard.slice(step))]]
            for step in range(shards[0].steps)
        ]

    first, *others = (batches(world) for world in WORLDS)
    assert all(other == first for other in others)
    assert sorted(sample for samples in first for sample in samples) == list(range(1_000))


@pytest.mark.parametrize("n", [1, 1_000, 65_536, 150_000])
def test_order_gives_by_chunks_what_samples_gives(n: int) -> None:
    whole, chosen = epoch(9, 4, n), order.Order(9, 4, n)
    for start, stop in [(n - 1, n), (n // 3, n // 2), (0, 1), (n, n), (0, n), (n // 2, n // 2)]:
        assert np.array_equal(chosen[start:stop], whole[start:stop])
    step = 777
    assert np.array_equal(np.concatenate([chosen[k : min(k + step, n)] for k in range(0, n, step)]), whole)


def test_order_computes_a_chunk_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, samples = [], order.samples
    monkeypatch.setattr(order, "samples", lambda *args: calls.append(args) or samples(*args))
    chosen = order.Order(0, 0, 60_000)
    for start in range(0, 60_000, 600):
        assert len(chosen[start : start + 600]) == 600
    assert len(calls) == 1
