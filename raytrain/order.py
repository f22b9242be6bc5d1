"""The order of samples, and the random numbers of each sample.

Everything here is a pure function of (seed, epoch, N, position), for any number of workers and at any point of a run.
There is no state to save, and positions can be computed in any order. NumPy only.

The permutation is a Feistel network over the smallest even-bit domain that holds N, with cycle walking for the
positions that fall outside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). Random numbers
are hashes by SplitMix64's finaliser (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators",
OOPSLA 2014).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

Draw = Callable[[int, int, np.ndarray], np.ndarray]
"""From (seed, epoch, positions int64 [k]) to the samples there, int64 [k]: a pure function."""
SHARDS = 4
"""Shards of a global batch under `deterministic`, on any number of workers that divides it."""
_ROUNDS = 8
_CHUNK = 1 << 16
_MASK = (1 << 64) - 1


def key(*parts: int) -> int:
    """Hash integers into 64 bits; different tuples give unrelated keys."""
    state = len(parts)
    for part in parts:
        state = _mix_int((state + 0x9E3779B97F4A7C15) & _MASK ^ _mix_int(part & _MASK))
    return state


def keys(seed: int, epoch: int, ids: np.ndarray, purpose: int) -> np.ndarray:
    """Return `key(seed, epoch, id, purpose)` of each id, int64 [n], as uint64 [n]."""
    state = np.full(len(ids), 4, np.uint64)
    for part in (seed, epoch, ids, purpose):
        bits = part.astype(np.uint64) if isinstance(part, np.ndarray) else np.array([part & _MASK], np.uint64)
        state = _mix(state + np.uint64(0x9E3779B97F4A7C15) ^ _mix(bits))
    return state


def samples(seed: int, epoch: int, n: int, positions: np.ndarray) -> np.ndarray:
    """Return the sample at each position of an epoch: a keyed permutation of [0, n).

    Args:
        positions: int64 [k], each in [0, n).

    Returns:
        int64 [k], each in [0, n); distinct positions give distinct samples.
    """
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    keys = [np.uint64(key(seed, epoch, n, round_)) for round_ in range(_ROUNDS)]
    result = _feistel(positions.astype(np.uint64), half, keys)
    outside = np.flatnonzero(result >= n)
    while outside.size:
        walked = _feistel(result[outside], half, keys)
        result[outside] = walked
        outside = outside[walked >= n]
    return result.astype(np.int64)


def passes(seed: int, n: int, places: np.ndarray) -> np.ndarray:
    """Return the samples at places of an endless row of passes over [0, n), each a permutation of its own: pass 0 is
    `samples(seed, 0, n, ...)`, pass 1 follows it.

    Args:
        places: int64 [k], each of at least 0.

    Returns:
        int64 [k], each in [0, n).
    """
    found = np.zeros(len(places), np.int64)
    if n == 1 or not len(places):
        return found
    numbers = places // n
    ranked = np.argsort(numbers, kind="stable")
    distinct, starts = np.unique(numbers[ranked], return_index=True)
    for number, rows in zip(distinct.tolist(), np.split(ranked, starts[1:]), strict=True):
        found[rows] = samples(seed, number, n, places[rows] % n)
    return found


def uniform(seed: int, epoch: int, ids: np.ndarray, draws: int) -> np.ndarray:
    """Random numbers of samples, equal on all ranks.

    Args:
        ids: int64 [k], sample numbers.
        draws: how many numbers for each sample.

    Returns:
        float64 [k, draws] in [0, 1).
    """
    counters = ids.astype(np.uint64)[:, None] * np.uint64(draws) + np.arange(draws, dtype=np.uint64)
    bits = _mix(_mix(counters) ^ np.uint64(key(seed, epoch, draws)))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def spread(count: int, most: int) -> np.ndarray:
    """Return numbers below `count`, evenly spread, int64 [min(count, most)]: which samples of many to look at."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def stratified(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split samples into two parts with the same share of every class, at least one of each class in both.

    Args:
        labels: int64 [n].
        fraction: the share of the second part, in (0, 1).

    Returns:
        Two sorted int64 arrays of sample numbers: the rest, and the part held out.
    """
    held_out = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(max(1, round(len(members) * fraction)), max(len(members) - 1, 0))
        order = samples(seed, int(label), len(members), np.arange(len(members)))
        held_out.append(members[order[:count]])
    second = np.sort(np.concatenate(held_out)) if held_out else np.empty(0, np.int64)
    return np.setdiff1d(np.arange(len(labels)), second), second


@dataclass(frozen=True)
class Shard:
    """The positions of an epoch that one rank takes: a contiguous slice of every global batch.

    Step k's global batch is positions [k * batch, min((k + 1) * batch, n)); its size is split as evenly as can be,
    the first ranks taking one more. A rank may have none of a last short batch, but it has every step.

    Attributes:
        parts: into how many slices the rank's own is cut. It is the batch that is split into all of them, so that they
            do not depend on the number of ranks.
    """

    n: int
    batch: int
    rank: int
    world: int
    parts: int = 1

    @property
    def steps(self) -> int:
        """Steps of an epoch, the same on all ranks."""
        return -(-self.n // self.batch)

    def size(self, step: int) -> int:
        """Return the true size of a step's global batch."""
        return min(self.batch, self.n - step * self.batch)

    def slice(self, step: int) -> tuple[int, int]:
        """First and one past the last of this rank's positions in a step."""
        low, high = self._part(self.size(step))
        return step * self.batch + low, step * self.batch + high

    def cuts(self, step: int) -> tuple[int, ...]:
        """Return how many positions each part of this rank's slice has."""
        size = self.size(step)
        bounds = [self._bound(size, self.rank * self.parts + part) for part in range(self.parts + 1)]
        return tuple(high - low for low, high in pairwise(bounds))

    def count(self, first_step: int = 0) -> int:
        """Return how many positions this rank has from `first_step` to the end of the epoch."""
        if first_step >= self.steps:
            return 0
        last, (low, high) = self.steps - 1, self._part(self.batch)
        start, stop = self.slice(last)
        return (last - first_step) * (high - low) + stop - start

    def positions(self, local: np.ndarray, first_step: int = 0) -> np.ndarray:
        """Return the positions behind this rank's own count, from `first_step` on: int64 [k] to int64 [k]."""
        low, high = self._part(self.batch)
        last = self.steps - 1
        full = (last - first_step) * (high - low)
        step, offset = np.divmod(local, high - low)
        regular = (first_step + step) * self.batch + low + offset
        return np.where(local < full, regular, self.slice(last)[0] + local - full)

    def _part(self, size: int) -> tuple[int, int]:
        return self._bound(size, self.rank * self.parts), self._bound(size, (self.rank + 1) * self.parts)

    def _bound(self, size: int, part: int) -> int:
        """Return where a part of a batch of that size begins, counted over all ranks."""
        even, more = divmod(size, self.world * self.parts)
        return part * even + min(part, more)


class Order:
    """The samples of one epoch of n positions; computes them a chunk at a time and keeps the last one.

    Args:
        draw: gives the samples; None takes each of n samples once.
    """

    def __init__(self, seed: int, epoch: int, n: int, draw: Draw | None = None):
        self.seed, self.epoch, self.n, self.draw = seed, epoch, n, draw
        self._start, self._chunk = 0, np.empty(0, np.int64)

    def __getitem__(self, positions: slice) -> np.ndarray:
        """int64 samples at [start, stop)."""
        start, stop = positions.start, positions.stop
        if start < self._start or stop > self._start + len(self._chunk):
            self._start = start
            end = min(max(stop, start + _CHUNK), self.n)
            self._chunk = self.at(np.arange(start, end))
        return self._chunk[start - self._start : stop - self._start]

    def at(self, positions: np.ndarray) -> np.ndarray:
        """Return the samples at any positions, int64 [k] to int64 [k]."""
        if self.draw is None:
            return samples(self.seed, self.epoch, self.n, positions)
        return self.draw(self.seed, self.epoch, positions)


def _feistel(x: np.ndarray, half: int, keys: list[np.uint64]) -> np.ndarray:
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = x >> shift, x & mask
    for round_key in keys:
        left, right = right, left ^ (_mix(right ^ round_key) & mask)
    return (left << shift) | right


def _mix(x: np.ndarray) -> np.ndarray:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _mix_int(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)
