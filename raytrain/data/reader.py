"""Where a rank's samples come from, step after step: memory that all ranks share, a Ray Data stream, or this process's
own threads.

All give the same bytes in the same order.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np

from raytrain import errors, order
from raytrain.data import cache
from raytrain.data.checks import checked_read
from raytrain.data.source import Data, Index
from raytrain.user_code.shipping import Shipped
from raytrain.watchdog import doing

_TASK, _TASK_ROWS = 64 << 20, 4096
"""Bytes and samples that a task reads at the most: small enough that all CPUs end at the same time, and that tasks that
begin late, in a process that is yet to start, find work; and large, since a CPU waits up to 0.1 s for its next task."""
_BLOCK = 16 << 20
"""Bytes that a task hands over at a time."""
_HERE_SECONDS, _HERE_ROWS = 3.0, 64
"""A split that this process alone reads in less time is not worth Ray Data's tasks, which take as long to start; it
looks at the time after so many samples each."""
_WAIT_SECONDS = 30
"""How long Ray Data may give nothing before that is reported."""


def _ignore(_: float) -> None:
    pass


@dataclass(frozen=True)
class Epoch:
    """One rank's way through one epoch: which samples, in which order, from which step on."""

    shard: order.Shard
    seed: int
    number: int | None
    """The epoch, from 0; None for evaluation, which goes through the samples as they stand."""
    first_step: int = 0

    def samples(self, local: np.ndarray) -> np.ndarray:
        """The samples at this rank's own positions (int64 [k]), counted from the first step."""
        positions = self.shard.positions(local, self.first_step)
        return positions if self.number is None else order.samples(self.seed, self.number, self.shard.n, positions)

    def steps(self) -> Iterator[np.ndarray]:
        """The samples of each step in turn, int64 [size of this rank's slice]."""
        chosen = None if self.number is None else order.Order(self.seed, self.number, self.shard.n)
        for step in range(self.first_step, self.shard.steps):
            start, stop = self.shard.slice(step)
            yield np.arange(start, stop) if chosen is None else chosen[start:stop]


Arrays = dict[str, np.ndarray]
"""The arrays of some samples, by the names of their fields."""


class Resident:
    """All arrays of a split, each [n, ...], which every process of a node maps."""

    def __init__(self, arrays: Arrays):
        self.arrays = arrays

    @property
    def bytes(self) -> int:
        """Size of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def read(self, epoch: Epoch) -> Iterator[tuple[np.ndarray, Arrays]]:
        """Yield (samples int64 [k], their arrays) of each step."""
        for samples in epoch.steps():
            yield (
                samples,
                {name: np.take(array, samples, axis=0, mode="clip") for name, array in self.arrays.items()},
            )


class Streaming:
    """Images read and decoded by Ray Data's tasks while training goes on.

    The index is shuffled, never the data: each rank streams the range of its own positions, and tasks turn positions
    into samples. To resume is to begin at another position.

    Args:
        cpus: what a task of Ray Data asks for: one CPU, or the part that the workers leave on a node.
        waits: called with the seconds waited, each time that Ray Data has given nothing for half a minute.
    """

    def __init__(
        self, data: Data, index: Index, index_ref: object, cpus: float = 1.0, waits: Callable[[float], None] = _ignore
    ):
        self.data, self.index, self.index_ref, self.cpus, self.waits = data, index, index_ref, cpus, waits

    def read(self, epoch: Epoch) -> Iterator[tuple[np.ndarray, Arrays]]:
        """Yield (samples int64 [k], their arrays) of each step."""
        blocks = self._blocks(epoch)
        rows = self.index.empty(0)
        for samples in epoch.steps():
            parts, missing = [_rows(rows, slice(0, 0))], len(samples)
            while missing:
                if not _count(rows):
                    rows = next(blocks)
                parts.append(_rows(rows, slice(missing)))
                rows, missing = _rows(rows, slice(missing, None)), missing - _count(parts[-1])
            yield samples, _joined(parts)

    def _blocks(self, epoch: Epoch) -> Iterator[Arrays]:
        total = epoch.shard.count(epoch.first_step)
        if total:
            size = total * self.index.sample_bytes
            blocks = read_blocks(self.data, self.index_ref, epoch.samples, total, size, self.cpus, self.waits)
            for arrays, bad in blocks:
                _check(self.data, bad)
                if bad:  # it could be read when the index was made
                    raise _lost_sample(bad[0].path, bad[0].reason)
                yield arrays


class Direct:
    """Images read by threads of this process, a few steps ahead: no more of a split than is asked for, and without Ray.

    `skipped` grows by the paths of samples that cannot be read, where `on_bad_sample` is `skip`.
    """

    def __init__(self, data: Data, index: Index):
        self.data, self.index = data, index
        self.skipped: list[str] = []

    def read(self, epoch: Epoch) -> Iterator[tuple[np.ndarray, Arrays]]:
        """Yield (samples int64 [k], their arrays) of each step."""
        threads = min(8, os.cpu_count() or 1)
        steps = epoch.steps()
        pool = ThreadPoolExecutor(threads)
        try:
            ahead = [(ids, pool.submit(self._read, ids)) for ids in islice(steps, 2 * threads)]
            while ahead:
                ids, found = ahead.pop(0)
                following = next(steps, None)
                if following is not None:
                    ahead.append((following, pool.submit(self._read, following)))
                good, arrays, bad = found.result()
                self.skipped += bad
                yield ids[good], arrays
        finally:
            pool.shutdown(cancel_futures=True)

    def _read(self, samples: np.ndarray) -> tuple[np.ndarray, Arrays, list[str]]:
        """Which of the samples could be read (bool [k]), their arrays, and the paths of the others."""
        try:
            return np.ones(len(samples), bool), checked_read(self.data, self.index, samples), []
        except errors.BadSample as error:
            if self.data.on_bad_sample == "error":
                raise errors.UserError(
                    f"cannot read image: {error.reason}", error.path, "repair it, or leave it out"
                ) from None
            if len(samples) == 1:
                return np.zeros(1, bool), self.index.empty(0), [error.path]
        good, arrays, bad = zip(*(self._read(samples[row : row + 1]) for row in range(len(samples))), strict=True)
        return np.concatenate(good), _joined(list(arrays)), [path for paths in bad for path in paths]


class Bad(NamedTuple):
    """A sample that cannot be read.

    Attributes:
        row: its row in the index, or in the block that was to hold it.
        path: what to call it.
        reason: why it cannot be read.
        lasting: whether the file itself is at fault, and not the way to it.
    """

    row: int
    path: str
    reason: str
    lasting: bool


def pack(
    data: Data,
    index: Index,
    keep: bool = True,
    before: list[Bad] | None = None,
    waits: Callable[[float], None] = _ignore,
) -> tuple[Arrays | None, Index, list[Bad]]:
    """All arrays of a split: mapped from the disk cache, or else read in parallel over the cluster, and cached.

    Args:
        keep: whether the arrays are wanted; of those that will be streamed, only which can be read.
        before: the samples that the run has been without, where it goes on: it stays so, or its order would change.
        waits: as for `Streaming`.

    Returns:
        The arrays, each [n, ...]; the index of the samples that could be read; and those that could not and were
        skipped.

    Raises:
        UserError: a sample cannot be read and `on_bad_sample` is `error`, or it could be when the run began, or all are
            bad.
    """
    entry = data.cache_entry(index)
    if entry is None:
        found = None
    elif keep:
        found = cache.load(entry, index)
    else:
        known = cache.load_bad(entry, index)
        found = None if known is None else (None, known)
    if found is not None:
        arrays, failed = found[0], [Bad(*bad, lasting=True) for bad in found[1]]
        _check(data, failed)
    else:
        arrays = index.empty(len(index)) if keep else None
        failed = _read_all(data, index, arrays, waits)
        if entry is not None and len(failed) < len(index) and all(bad.lasting for bad in failed):
            cache.store(entry, index, arrays, [bad[:3] for bad in failed])
    index, good, skipped = _without(index, failed, before)
    return arrays if arrays is None or good is None else _rows(arrays, good), index, skipped


def _read_all(data: Data, index: Index, arrays: Arrays | None, waits: Callable[[float], None]) -> list[Bad]:
    """Reads a whole split into `arrays`, if they are given; returns the samples that cannot be read."""
    start, failed = 0, []
    for block, bad in _all_blocks(data, index, waits):
        _check(data, bad)
        stop = start + _count(block)
        for name, array in (arrays or {}).items():
            array[start:stop] = block[name]
        failed += [one._replace(row=start + one.row) for one in bad]
        start = stop
    return failed


def _all_blocks(data: Data, index: Index, waits: Callable[[float], None]) -> Iterator[tuple[Arrays, list[Bad]]]:
    """A whole split, as `read_blocks` gives it: by this process where that is soon done, by Ray Data from the moment
    on when it turns out not to be."""
    done, seconds = 0, 0.0
    while done < len(index) and seconds * len(index) <= _HERE_SECONDS * done:
        started, part = time.perf_counter(), np.arange(done, min(done + _HERE_ROWS, len(index)))
        block = _arrays_and_bad(_read_part(data, index, part))
        done, seconds = done + len(part), seconds + time.perf_counter() - started
        yield block
    if done < len(index):
        import ray

        rest = len(index) - done
        size = index.bytes * rest // len(index)
        yield from read_blocks(data, ray.put(index), partial(np.add, done), rest, size, waits=waits)


def _check(data: Data, bad: list[Bad]) -> None:
    if bad and data.on_bad_sample == "error":
        raise errors.bad_sample(bad[0].path, bad[0].reason)


def _without(index: Index, bad: list[Bad], before: list[Bad] | None) -> tuple[Index, np.ndarray | None, list[Bad]]:
    """The index without bad samples, the rows that stay (None: all), and the others."""
    if before is not None:
        known = {one.row for one in before}
        for one in bad:
            if one.row not in known:
                raise _lost_sample(one.path, one.reason)
        bad = before
    if not bad:
        return index, None, []
    good = np.setdiff1d(np.arange(len(index)), [one.row for one in bad])
    if not len(good):
        raise errors.all_samples_bad(bad[0].path, bad[0].reason)
    return index.take(good), good, bad


def read_blocks(
    data: Data,
    index_ref: object,
    samples: Callable[[np.ndarray], np.ndarray],
    total: int,
    size: int,
    cpus: float = 1.0,
    waits: Callable[[float], None] = _ignore,
) -> Iterator[tuple[Arrays, list[Bad]]]:
    """Streams `total` samples through Ray Data, in order.

    Args:
        index_ref: a reference to the index in the object store.
        samples: maps positions int64 [k] to samples int64 [k]; it runs in the tasks.
        size: bytes of these samples, which chooses how many blocks there are.
        cpus, waits: as for `Streaming`.

    Yields:
        Arrays of k samples, and the samples that could not be read, whose arrays are zeros.
    """
    import ray

    tasks = max(1, min(total, max(2 * _cpus(), -(-size // _TASK), -(-total // _TASK_ROWS))))
    rows = max(1, _BLOCK * total // max(1, size))
    read: Any = _read
    bounds = [total * number // tasks for number in range(tasks + 1)]
    # Items and not `ray.data.range`, whose tasks always ask for one whole CPU.
    dataset = ray.data.from_items(
        [{"start": start, "stop": stop} for start, stop in pairwise(bounds)], override_num_blocks=tasks
    ).map_batches(
        read, fn_args=(Shipped(data), index_ref, samples, rows), batch_size=None, zero_copy_batch=True, num_cpus=cpus
    )
    context = dataset.context  # its own copy: other data sets of this process keep their settings
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.target_max_block_size = _BLOCK * 3 // 4  # what a task yields is a block by itself from this size on
    batches: Any = dataset.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=2)
    for batch in _watched(batches, waits):
        yield _arrays_and_bad(batch)


def _watched(batches: Iterable[Any], waits: Callable[[float], None]) -> Iterator[Any]:
    """Yields what there is, and calls `waits` from a side thread each time that nothing has come for half a minute."""
    waiting, done = threading.Event(), threading.Event()
    seconds = [0]

    def watch() -> None:
        while not done.wait(1):  # counts the seconds that it lives through: a machine that was asleep did not wait
            seconds[0] = seconds[0] + 1 if waiting.is_set() else 0
            if seconds[0] and seconds[0] % _WAIT_SECONDS == 0:
                waits(seconds[0])

    threading.Thread(target=watch, daemon=True, name="data").start()
    try:
        waiting.set()
        for batch in batches:
            waiting.clear()
            seconds[0] = 0
            doing.tick()
            yield batch
            waiting.set()
    finally:
        done.set()


def _arrays_and_bad(batch: Arrays) -> tuple[Arrays, list[Bad]]:
    for text in batch["bad"]:
        if str(text).startswith("\0"):
            raise errors.UserError(*str(text).split("\0")[1:])
    bad = [(row, *str(text).split("\0")) for row, text in enumerate(batch["bad"]) if text]
    arrays = {name: array for name, array in batch.items() if name != "bad"}
    return arrays, [Bad(row, path, reason, lasting == "lasting") for row, path, reason, lasting in bad]


def _cpus() -> int:
    import ray

    return int(ray.cluster_resources().get("CPU", 1))


def _read(
    batch: dict[str, np.ndarray],
    data: Shipped[Data],
    index_ref: object,
    samples: Callable[[np.ndarray], np.ndarray],
    rows: int,
) -> Iterator[dict[str, np.ndarray]]:
    """The task: positions to arrays, `rows` at a time."""
    index = _fetch(index_ref)
    chosen = samples(np.arange(batch["start"][0], batch["stop"][-1], dtype=np.int64))
    for start in range(0, len(chosen), rows):
        try:
            yield _read_part(data.value, index, chosen[start : start + rows])
        except errors.UserError as error:  # Ray would bury it in a traceback of its own
            text = "\0".join(("", error.what, error.where, error.how))
            yield {**index.empty(1), "bad": np.array([text], object)}
            return


def _read_part(data: Data, index: Index, chosen: np.ndarray) -> Arrays:
    """Samples to arrays, and `bad`. Where one is bad they are read again, one by one, to name it."""
    bad = np.full(len(chosen), "", object)
    try:
        arrays = checked_read(data, index, chosen)
    except errors.BadSample:
        arrays = index.empty(len(chosen))
        for row in range(len(chosen)):
            try:
                for name, array in checked_read(data, index, chosen[row : row + 1]).items():
                    arrays[name][row] = array[0]
            except errors.BadSample as error:
                lasting = "" if isinstance(error.__cause__, OSError) else "lasting"
                bad[row] = f"{error.path}\0{error.reason}\0{lasting}"
    return {**arrays, "bad": bad}


def _count(arrays: Arrays) -> int:
    return len(next(iter(arrays.values())))


def _rows(arrays: Arrays, rows: slice | np.ndarray) -> Arrays:
    return {name: array[rows] for name, array in arrays.items()}


def _joined(parts: list[Arrays]) -> Arrays:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _fetch(index_ref: object) -> Index:
    import ray

    return ray.get(index_ref)  # type: ignore[call-overload]


def _lost_sample(path: str, reason: str) -> errors.UserError:
    return errors.UserError(
        f"cannot read a sample that could be read when the run began: {reason}",
        path,
        "restore it and resume the run, or train a new one",
    )
