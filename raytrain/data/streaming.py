"""Samples that Ray Data's tasks read while training goes on: for sources whose `read` is Python code of the user, and
where the CPUs are on other nodes than the workers. `reader.Direct` reads the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import ray

from raytrain import errors
from raytrain.data.blocks import Arrays, Bad, arrays_and_bad, check_bad, count, joined, lost_sample, read_part, rows_of
from raytrain.data.reader import Epoch
from raytrain.data.source import Data, Index
from raytrain.user_code.shipping import Shipped
from raytrain.watchdog import doing

_TASK, _TASK_ROWS = 64 << 20, 4096
"""Bytes and samples that a task reads at most: few enough that all CPUs end at the same time and that a process that
starts late still finds work; and many, because a CPU waits up to 0.1 s for its next task."""
_BLOCK = 16 << 20
"""Bytes that a task returns at a time."""
_WAIT_SECONDS = 30
"""Seconds without a block from Ray Data after which that is reported."""


def ignore(_: float) -> None:
    """Report no waiting."""


class Streaming:
    """Samples that Ray Data's tasks read and decode while training goes on.

    The index is shuffled, never the data: each rank streams the range of its own positions, and tasks turn positions
    into samples; under a sampler each rank does that for its part of an epoch. A resumed run begins at another
    position.

    Args:
        cpus: the CPUs that a task of Ray Data requests: one, the part of one that the workers leave on a node, or none.
        waits: called with the seconds waited, each time that Ray Data has returned nothing for 30 s.
        at_once: tasks that run at once; None leaves that to their CPUs.
    """

    def __init__(
        self,
        data: Data,
        index: Index,
        index_ref: object,
        cpus: float = 1.0,
        waits: Callable[[float], None] = ignore,
        at_once: int | None = None,
    ):
        self.data, self.index, self.index_ref = data, index, index_ref
        self.cpus, self.waits, self.at_once = cpus, waits, at_once

    def read(self, epoch: Epoch) -> Iterator[tuple[np.ndarray, Arrays]]:
        """Yield (samples int64 [k], their arrays) of each step."""
        assert epoch.number is None or not self.data.whole, "Direct alone reads crops of whole images"
        blocks = self._blocks(epoch)
        rows = self.index.empty(0)
        for samples in epoch.steps():
            parts, missing = [rows_of(rows, slice(0, 0))], len(samples)
            while missing:
                if not count(rows):
                    rows = next(blocks)
                parts.append(rows_of(rows, slice(missing)))
                rows, missing = rows_of(rows, slice(missing, None)), missing - count(parts[-1])
            yield samples, joined(parts)

    def _blocks(self, epoch: Epoch) -> Iterator[Arrays]:
        total = epoch.shard.count(epoch.first_step)
        if total:
            size = total * self.index.sample_bytes
            samples = epoch.samples
            if epoch.draw is not None:  # a sampler's tables are computed here, once, and not again in each task
                samples = partial(np.take, samples(np.arange(total)))
            for arrays, bad in read_blocks(
                self.data, self.index_ref, samples, total, size, self.cpus, self.waits, self.at_once
            ):
                check_bad(self.data, bad)
                if bad:  # the index was made without the samples that were bad then
                    raise lost_sample(bad[0].path, bad[0].reason)
                yield arrays


def read_blocks(
    data: Data,
    index_ref: object,
    samples: Callable[[np.ndarray], np.ndarray],
    total: int,
    size: int,
    cpus: float = 1.0,
    waits: Callable[[float], None] = ignore,
    at_once: int | None = None,
) -> Iterator[tuple[Arrays, list[Bad]]]:
    """Stream `total` samples through Ray Data, in order.

    Args:
        index_ref: a reference to the index in the object store.
        samples: maps positions int64 [k] to samples int64 [k]; it runs in the tasks.
        size: bytes of these samples, from which the number of tasks follows.
        cpus, waits, at_once: as for `Streaming`.

    Yields:
        Arrays of k samples, and the samples that could not be read, whose arrays are zeros.
    """
    tasks = max(1, min(total, max(2 * _cpus(), -(-size // _TASK), -(-total // _TASK_ROWS))))
    rows = max(1, _BLOCK * total // max(1, size))
    read: Any = _read
    bounds = [total * number // tasks for number in range(tasks + 1)]
    # Not `ray.data.range`, whose tasks always request one whole CPU.
    dataset = ray.data.from_items(
        [{"start": start, "stop": stop} for start, stop in pairwise(bounds)], override_num_blocks=tasks
    ).map_batches(
        read,
        fn_args=(Shipped(data), index_ref, samples, rows),
        batch_size=None,
        zero_copy_batch=True,
        num_cpus=cpus,
        concurrency=None if at_once is None else min(at_once, tasks),
    )
    context = dataset.context  # a copy: other data sets of this process keep their settings
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    context.target_max_block_size = _BLOCK * 3 // 4  # from this size on, each batch that a task yields is a block
    batches: Any = dataset.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=2)
    for batch in _watched(batches, waits):
        yield arrays_and_bad(batch)


def read_rest(
    data: Data, index: Index, start: int, waits: Callable[[float], None]
) -> Iterator[tuple[Arrays, list[Bad]]]:
    """Stream a split from sample `start` on; see `read_blocks`."""
    rest = len(index) - start
    size = index.bytes * rest // len(index)
    yield from read_blocks(data, ray.put(index), partial(np.add, start), rest, size, waits=waits)


def _watched(batches: Iterable[Any], waits: Callable[[float], None]) -> Iterator[Any]:
    """Yield the batches, and call `waits` from a thread each time that none has come for another 30 s."""
    waiting, done = threading.Event(), threading.Event()
    seconds = 0

    def watch() -> None:
        nonlocal seconds
        while not done.wait(1):  # counts seconds of a running machine, not those of its sleep
            seconds = seconds + 1 if waiting.is_set() else 0
            if seconds and seconds % _WAIT_SECONDS == 0:
                waits(seconds)

    threading.Thread(target=watch, daemon=True, name="data").start()
    try:
        waiting.set()
        for batch in batches:
            waiting.clear()
            seconds = 0
            doing.tick()
            yield batch
            waiting.set()
    finally:
        done.set()


def _cpus() -> int:
    return int(ray.cluster_resources().get("CPU", 1))


def _read(
    batch: dict[str, np.ndarray],
    data: Shipped[Data],
    index_ref: object,
    samples: Callable[[np.ndarray], np.ndarray],
    rows: int,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the arrays of a range of positions, `rows` at a time. This is the task of Ray Data."""
    index = _fetch(index_ref)
    chosen = samples(np.arange(batch["start"][0], batch["stop"][-1], dtype=np.int64))
    for start in range(0, len(chosen), rows):
        try:
            yield read_part(data.value, index, chosen[start : start + rows])
        except errors.UserError as error:  # Ray would wrap it in a traceback
            text = "\0".join(("", error.what, error.where, error.how))
            yield {**index.empty(1), "bad": np.array([text], object)}
            return


def _fetch(index_ref: object) -> Index:
    return ray.get(index_ref)  # type: ignore[call-overload]
