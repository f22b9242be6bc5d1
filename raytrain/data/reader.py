"""Where a rank's samples come from, step after step: memory that all ranks share, or threads of this process. Ray Data
streams them in `streaming.py`. All return the same bytes in the same order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from raytrain import errors, order
from raytrain.data.blocks import Arrays, joined, rows_of
from raytrain.data.checks import checked_read
from raytrain.data.crops import Crops, cropped, crops_of
from raytrain.data.source import Data, Index


@dataclass(frozen=True)
class Epoch:
    """The part of an epoch that one rank reads: which samples, in which order, from which step on."""

    shard: order.Shard
    seed: int
    number: int | None
    """The epoch, from 0; None for evaluation, which reads the samples in the order of the index."""
    first_step: int = 0
    draw: order.Draw | None = None
    """The sampler's samples by position; None takes every sample once."""

    def samples(self, local: np.ndarray) -> np.ndarray:
        """Return the samples at some of this rank's positions (int64 [k]), counted from the first step."""
        positions = self.shard.positions(local, self.first_step)
        return positions if self.number is None else self._order(self.number).at(positions)

    def steps(self) -> Iterator[np.ndarray]:
        """Yield the samples of each step, int64 [size of this rank's slice]."""
        chosen = None if self.number is None else self._order(self.number)
        for step in range(self.first_step, self.shard.steps):
            start, stop = self.shard.slice(step)
            yield np.arange(start, stop) if chosen is None else chosen[start:stop]

    def keys(self, step: int, samples: np.ndarray) -> np.ndarray:
        """Return what the randomness of the samples of a step is keyed by besides seed and epoch, int64 [k]: the
        sample, or under a sampler, which may draw a sample twice, its position in the epoch."""
        return samples if self.draw is None else self.shard.slice(step)[0] + np.arange(len(samples))

    def _order(self, number: int) -> order.Order:
        return order.Order(self.seed, number, self.shard.n, self.draw)


@dataclass(frozen=True)
class Part:
    """Samples among arrays that others use too, such as a fold's: in the object store in place of the arrays.

    Attributes:
        arrays: a reference to the arrays.
        rows: int64 [n], the place of each sample in them.
    """

    arrays: Any
    rows: np.ndarray


class Resident:
    """All arrays of a split, each [n, ...], which every process of a node maps.

    Args:
        rows: int64 [n], the place of each sample in the arrays; None where sample i is row i.
    """

    def __init__(self, arrays: Arrays, rows: np.ndarray | None = None):
        self.arrays, self.rows = arrays, rows

    @property
    def bytes(self) -> int:
        """Size of the samples' arrays."""
        if self.rows is None:
            return sum(array.nbytes for array in self.arrays.values())
        return sum(array[:1].nbytes * len(self.rows) for array in self.arrays.values())

    def whole(self) -> Arrays:
        """Return the samples' arrays."""
        return self.arrays if self.rows is None else rows_of(self.arrays, self.rows)

    def read(self, epoch: Epoch) -> Iterator[tuple[np.ndarray, Arrays]]:
        """Yield (samples int64 [k], their arrays) of each step."""
        for samples in epoch.steps():
            rows = samples if self.rows is None else self.rows[samples]
            yield samples, {name: np.take(array, rows, axis=0, mode="clip") for name, array in self.arrays.items()}


class Direct:
    """Samples read by threads of this process, a few steps ahead of the caller, without Ray.

    With `on_bad_sample="skip"`, `skipped` collects the paths of samples that cannot be read.
    """

    def __init__(self, data: Data, index: Index):
        self.data, self.index = data, index
        self.skipped: list[str] = []

    def read(self, epoch: Epoch) -> Iterator[tuple[np.ndarray, Arrays]]:
        """Yield (samples int64 [k], their arrays) of each step."""
        threads = min(8, os.cpu_count() or 1)
        steps = self._steps(epoch)
        pool = ThreadPoolExecutor(threads)
        try:
            ahead = [(step[0], pool.submit(self._read, *step)) for step in islice(steps, 2 * threads)]
            while ahead:
                ids, found = ahead.pop(0)
                following = next(steps, None)
                if following is not None:
                    ahead.append((following[0], pool.submit(self._read, *following)))
                good, arrays, bad = found.result()
                self.skipped += bad
                yield ids[good], arrays
        finally:
            pool.shutdown(cancel_futures=True)

    def _steps(self, epoch: Epoch) -> Iterator[tuple[np.ndarray, Index, Crops | None]]:
        """Yield what `_read` takes, for each step."""
        index = self.index
        if epoch.number is not None and self.data.whole:
            index = cropped(self.data, index)
        for step, samples in enumerate(epoch.steps(), epoch.first_step):
            yield samples, index, crops_of(self.data, epoch.seed, epoch.number, epoch.keys(step, samples))

    def _read(self, samples: np.ndarray, index: Index, crops: Crops | None) -> tuple[np.ndarray, Arrays, list[str]]:
        """Return which of the samples could be read (bool [k]), their arrays, and the paths of the others."""
        if not len(samples):  # of a last short batch
            return np.ones(0, bool), index.empty(0), []
        try:
            return np.ones(len(samples), bool), checked_read(self.data, index, samples, crops), []
        except errors.BadSample as error:
            if self.data.on_bad_sample == "error":
                raise errors.UserError(
                    f"cannot read image: {error.reason}", error.path, "repair it, or leave it out"
                ) from None
            if len(samples) == 1:
                return np.zeros(1, bool), index.empty(0), [error.path]
        parts = [slice(row, row + 1) for row in range(len(samples))]
        found = [self._read(samples[part], index, crops and crops.rows(part)) for part in parts]
        good, arrays, bad = zip(*found, strict=True)
        return np.concatenate(good), joined(list(arrays)), [path for paths in bad for path in paths]
