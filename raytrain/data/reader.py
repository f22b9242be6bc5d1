"""Where a rank's samples come from, step after step: memory that all ranks share, or threads of this process; or Ray
Data's tasks, in `streaming.py`. All return the same bytes in the same order.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from raytrain import errors, order
from raytrain.data.blocks import Arrays, Bad, arrays_and_bad, check_bad, lost_sample, read_part, rows_of
from raytrain.data.buffers import Buffers
from raytrain.data.crops import Crops, cropped, crops_of
from raytrain.data.late import with_torch
from raytrain.data.source import Data, Index
from raytrain.machine import host_cpus
from raytrain.watchdog import doing

if TYPE_CHECKING:
    from raytrain.data.decode_gpu import Decoder

_AHEAD = 256 << 20
"""Bytes of batches that `Direct` reads ahead, or two batches where they are larger."""
_MOST = 16
"""Batches that it reads ahead at most."""
_RAW_AHEAD = 40 << 20
"""The same of raw samples, which nothing decodes: so few that a CPU's cache still has them when they are normalised."""
_PART, _PART_ROWS = 1 << 20, 16
"""Bytes and samples from which on a thread's part of a batch is large enough; at a URL its samples are fetched at the
same time."""
RAW_THREADS = 8
"""Threads at least that read raw samples: they wait for the disk, which serves several at the same time."""
_THREADS = 32
"""Threads at most: more would wait for each other, as only one runs Python at a time."""


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
    epochs: int = 0
    """Epochs of the run: what reads ahead goes on with the next one of them."""

    @property
    def following(self) -> Epoch | None:
        """The epoch that comes next; None after the last one, and in evaluation."""
        if self.number is None or self.number + 1 >= self.epochs:
            return None
        return replace(self, number=self.number + 1, first_step=0)

    def samples(self, local: np.ndarray) -> np.ndarray:
        """Return the samples at some of this rank's positions (int64 [k]), counted from the first step."""
        positions, chosen = self.shard.positions(local, self.first_step), self._order
        return positions if chosen is None else chosen.at(positions)

    def steps(self) -> Iterator[np.ndarray]:
        """Yield the samples of each step, int64 [size of this rank's slice]."""
        chosen = self._order
        for step in range(self.first_step, self.shard.steps):
            start, stop = self.shard.slice(step)
            yield np.arange(start, stop) if chosen is None else chosen[start:stop]

    def keys(self, step: int, samples: np.ndarray) -> np.ndarray:
        """Return what the randomness of the samples of a step is keyed by besides seed and epoch, int64 [k]: the
        sample, or under a sampler, which may draw a sample twice, its position in the epoch."""
        return samples if self.draw is None else self.shard.slice(step)[0] + np.arange(len(samples))

    @property
    def _order(self) -> order.Order | None:
        """The samples by position; None for the order of the index."""
        return None if self.number is None else order.Order(self.seed, self.number, self.shard.n, self.draw)


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
    """Samples read by threads of this process, some batches ahead of the caller, without Ray.

    A batch is cut into parts, so that all threads read the next one. Of raw samples, one thread copies what is in
    memory, a batch at once, and leaves the rest to the others: several would take longer, as each copy has to wait for
    Python's lock. What is ahead when a pass ends stays: the next pass goes on with it, if it begins there.

    Args:
        threads: how many, one for each CPU that this process has for it; by default all its CPUs. Of raw samples there
            are at least eight.
        complete: whether this is a run, whose index is without the samples that could not be read when it began:
            another one is an error.
        remedy: what to do about a sample that cannot be read, where it is an error and this is no run.
        decoder: decodes on the GPU, for a source that is `on_gpu`; without one the CPU decodes.

    Attributes:
        copies: whether one thread copies what is in memory.
        skipped: the paths of samples that could not be read and were left out (`on_bad_sample="skip"`).
    """

    def __init__(
        self,
        data: Data,
        index: Index,
        threads: int | None = None,
        complete: bool = False,
        remedy: str = "repair it, or leave it out",
        decoder: Decoder | None = None,
    ):
        self.data, self.index, self.complete, self.remedy, self.decoder = data, index, complete, remedy, decoder
        self.cropped = cropped(data, index) if data.whole else index
        self.threads = min(_THREADS, max(RAW_THREADS if data.raw else 1, threads or host_cpus()))
        self.copies = data.raw and data.direct
        self.skipped: list[str] = []
        self.buffers = Buffers(index.fields)
        self.rows = max(_PART_ROWS, _PART // max(1, index.sample_bytes))
        self._begun: deque[_Batch] = deque()

    def read(self, epoch: Epoch) -> Iterator[tuple[np.ndarray, Arrays]]:
        """Yield (samples int64 [k], their arrays) of each step."""
        start, stop = epoch.shard.slice(0)
        index = self.index if epoch.number is None else self.cropped
        if self.buffers.fields != index.fields:
            self.buffers = Buffers(index.fields)
        ahead = _RAW_AHEAD if self.data.raw else _AHEAD
        depth = max(2, min(_MOST, ahead // max(1, (stop - start) * index.sample_bytes)))
        coming, begun = _onwards(epoch), deque[_Batch]()
        try:
            for _ in range(epoch.first_step, epoch.shard.steps):
                self._begin(index, coming, begun, depth)
                ids, arrays = self._ended(begun.popleft())
                self._begin(index, coming, begun, depth)
                yield ids, arrays
                del arrays  # its memory may serve again
        except Exception:
            self._cancel(begun)
            raise
        finally:
            self._cancel(self._begun)
            self._begun = begun
            if not begun:
                self.buffers.drop()

    def close(self) -> None:
        """End the threads, without what they have not begun to read."""
        self._cancel(self._begun)
        for pool in (self._copier, self._pool):
            pool.shutdown(wait=False, cancel_futures=True)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        pool: ThreadPoolExecutor = with_torch().decode_torch.pool(self.threads)
        weakref.finalize(self, pool.shutdown, wait=False, cancel_futures=True)
        return pool

    @cached_property
    def _copier(self) -> ThreadPoolExecutor:
        """The thread that copies raw samples that are in memory."""
        found = ThreadPoolExecutor(1, "data")
        weakref.finalize(self, found.shutdown, wait=False, cancel_futures=True)
        return found

    def _begin(self, index: Index, coming: Iterator[_Place], begun: deque[_Batch], depth: int) -> None:
        """Let the threads read the batches that come next, up to `depth` of them."""
        while len(begun) < depth and (place := next(coming, None)) is not None:
            if self._begun and self._begun[0].place.same(place):
                begun.append(self._begun.popleft())
                continue
            self._cancel(self._begun)
            batch = _Batch(place, self.buffers.arrays(len(place.samples)))
            if self.copies:
                batch.copied = self._copier.submit(self._copy, self._pool, index, batch)
            else:
                self._submit(self._pool, index, batch)
            begun.append(batch)

    def _copy(self, pool: ThreadPoolExecutor, index: Index, batch: _Batch) -> None:
        """Copy the samples of a batch that are in memory, and let the threads read the others."""
        self._submit(pool, index, batch, self.data.at_hand(index, batch.place.samples, batch.arrays))

    def _submit(self, pool: ThreadPoolExecutor, index: Index, batch: _Batch, first: int = 0) -> None:
        """Let the threads read a batch, from row `first` on, in parts."""
        place = batch.place
        crops = crops_of(self.data, place.epoch.seed, place.epoch.number, place.epoch.keys(place.step, place.samples))
        for start in range(first, len(place.samples), self.rows):
            part = slice(start, start + self.rows)
            samples, own, rows = place.samples[part], crops and crops.rows(part), rows_of(batch.arrays, part)
            read = pool.submit(_fill, self.data, index, samples, rows, own, self.decoder)
            batch.parts.append((start, read))

    def _ended(self, batch: _Batch) -> tuple[np.ndarray, Arrays]:
        """Wait for a batch; return its samples and their arrays.

        Raises:
            UserError: a sample cannot be read, and may not be left out.
        """
        bad: list[Bad] = []
        if batch.copied is not None:
            batch.copied.result()
            doing.tick()
        for start, part in batch.parts:
            bad += [one._replace(row=start + one.row) for one in part.result()]
            doing.tick()
        ids = batch.place.samples
        if not bad:
            return ids, batch.arrays
        if self.complete:
            check_bad(self.data, bad)
            raise lost_sample(bad[0].path, bad[0].reason)
        if self.data.on_bad_sample == "error":
            raise errors.bad_sample(bad[0].path, bad[0].reason, self.remedy)
        self.skipped += [one.path for one in bad]
        good = np.delete(np.arange(len(ids)), [one.row for one in bad])
        return ids[good], rows_of(batch.arrays, good)

    def _cancel(self, batches: deque[_Batch]) -> None:
        while batches:
            batch = batches.popleft()
            if batch.copied is None or not batch.copied.cancel():
                for _, part in batch.parts:
                    part.cancel()


@dataclass(frozen=True, eq=False)
class _Place:
    """A step of an epoch, and a rank's samples in it."""

    epoch: Epoch
    step: int
    samples: np.ndarray

    def same(self, other: _Place) -> bool:
        """Whether both have the same samples in the same place."""
        a, b = self.epoch, other.epoch
        return (self.step, a.number) == (other.step, b.number) and np.array_equal(self.samples, other.samples)


@dataclass(eq=False)
class _Batch:
    """A batch that threads are reading."""

    place: _Place
    arrays: Arrays
    copied: Future[None] | None = None
    """Ends when what is in memory is copied, and the rest is among the parts."""
    parts: list[tuple[int, Future[list[Bad]]]] = field(default_factory=list)
    """The first row of each part, and which of its samples cannot be read."""


def _onwards(epoch: Epoch) -> Iterator[_Place]:
    """Yield the steps of an epoch, and of those that follow."""
    following: Epoch | None = epoch
    while following is not None:
        for step, samples in enumerate(following.steps(), following.first_step):
            yield _Place(following, step, samples)
        following = following.following


def _fill(
    data: Data, index: Index, samples: np.ndarray, arrays: Arrays, crops: Crops | None, decoder: Decoder | None
) -> list[Bad]:
    """Read some samples into arrays; return those that cannot be read."""
    try:
        found, bad = arrays_and_bad(read_part(data, index, samples, arrays, crops, decoder))
    except errors.UserError:
        if decoder is not None and decoder.failed is not None:
            raise decoder.failed from None  # an error of the GPU is none of the user's `read`
        raise
    for name, array in arrays.items():
        if found[name] is not array:
            array[:] = found[name]
    return bad
