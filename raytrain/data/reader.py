"""Where a rank's images come from, step after step: memory that all ranks share, or a Ray Data stream.

Both give the same bytes in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from raytrain import errors, order
from raytrain.data.source import Data, Index


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


class Resident:
    """All images of a split in one uint8 array [n, channels, height, width] that every process of a node maps."""

    def __init__(self, images: np.ndarray):
        self.images = images

    def read(self, epoch: Epoch) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(samples int64 [k], images uint8 [k, ...]) of each step."""
        for samples in epoch.steps():
            yield samples, np.take(self.images, samples, axis=0, mode="clip")


class Streaming:
    """Images read and decoded by Ray Data's tasks while training goes on.

    The index is shuffled, never the data: each rank streams the range of its own positions, and tasks turn positions
    into samples. To resume is to begin at another position.
    """

    def __init__(self, data: Data, index: Index, index_ref: object):
        self.data, self.index, self.index_ref = data, index, index_ref

    def read(self, epoch: Epoch) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(samples int64 [k], images uint8 [k, ...]) of each step."""
        blocks = self._blocks(epoch)
        rows = np.empty((0, *self.index.shape), np.uint8)
        for samples in epoch.steps():
            parts, missing = [rows[:0]], len(samples)
            while missing:
                if not len(rows):
                    rows = next(blocks)
                parts.append(rows[:missing])
                rows, missing = rows[missing:], missing - len(parts[-1])
            yield samples, np.concatenate(parts)

    def _blocks(self, epoch: Epoch) -> Iterator[np.ndarray]:
        total = epoch.shard.count(epoch.first_step)
        if total:
            for images, bad in read_blocks(self.data, self.index_ref, epoch.samples, total, self.index.bytes):
                if bad:
                    raise errors.bad_sample(*bad[0][1:])
                yield images


def pack(data: Data, index: Index) -> tuple[np.ndarray, Index, list[tuple[str, str]]]:
    """Reads a whole split, in parallel over the cluster.

    Returns:
        The images, uint8 [n, channels, height, width]; the index of the samples that could be read; and (path,
        reason) of those that could not and were skipped.

    Raises:
        UserError: a sample cannot be read and `on_bad_sample` is `error`, or none can.
    """
    import ray

    images = np.empty((len(index), *index.shape), np.uint8)
    filled, failed = 0, []
    for block, bad in read_blocks(data, ray.put(index), _identity, len(index), index.bytes):
        if bad and data.on_bad_sample == "error":
            raise errors.bad_sample(*bad[0][1:])
        images[filled : filled + len(block)] = block
        failed += [(filled + row, path, reason) for row, path, reason in bad]
        filled += len(block)
    if failed:
        good = np.setdiff1d(np.arange(len(index)), [row for row, _, _ in failed])
        if not len(good):
            raise errors.all_samples_bad(failed[0][1], failed[0][2])
        images, index = images[good], index.take(good)
    return images, index, [(path, reason) for _, path, reason in failed]


def drop_bad(data: Data, index: Index) -> tuple[Index, list[tuple[str, str]]]:
    """Reads a whole split and keeps nothing but the index of the samples that could be read, for streaming."""
    import ray

    start, failed = 0, []
    for block, bad in read_blocks(data, ray.put(index), _identity, len(index), index.bytes):
        failed += [(start + row, path, reason) for row, path, reason in bad]
        start += len(block)
    good = np.setdiff1d(np.arange(len(index)), [row for row, _, _ in failed])
    if not len(good):
        raise errors.all_samples_bad(failed[0][1], failed[0][2])
    return index.take(good), [(path, reason) for _, path, reason in failed]


def read_blocks(
    data: Data, index_ref: object, samples: Callable[[np.ndarray], np.ndarray], total: int, size: int
) -> Iterator[tuple[np.ndarray, list[tuple[int, str, str]]]]:
    """Streams `total` samples through Ray Data, in order.

    Args:
        index_ref: a reference to the index in the object store.
        samples: maps positions int64 [k] to samples int64 [k]; it runs in the tasks.
        size: bytes of all images of the split, which chooses how many blocks there are.

    Yields:
        Images uint8 [k, ...] and (row, path, reason) of those that could not be read, whose images are black.
    """
    import ray

    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    if context.enable_progress_bars:
        context.enable_progress_bars = False
    blocks = max(1, min(total, max(2 * _cpus(), -(-size // (16 << 20)))))
    read: Any = _read
    dataset = ray.data.range(total, override_num_blocks=blocks).map_batches(
        read, fn_args=(data, index_ref, samples), batch_size=None, zero_copy_batch=True
    )
    batches: Any = dataset.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=2)
    for batch in batches:
        marked = [(row, str(text).split("\0", 1)) for row, text in enumerate(batch["bad"]) if text]
        bad = [(row, path, reason) for row, (path, reason) in marked]
        yield batch["image"], bad


def _cpus() -> int:
    import ray

    return int(ray.cluster_resources().get("CPU", 1))


def _identity(positions: np.ndarray) -> np.ndarray:
    return positions


def _read(
    batch: dict[str, np.ndarray], data: Data, index_ref: object, samples: Callable[[np.ndarray], np.ndarray]
) -> dict[str, np.ndarray]:
    """The task: positions to images. A batch with a bad sample is read again, one by one, to name it."""
    index = _fetch(index_ref)
    chosen = samples(batch["id"].astype(np.int64))
    bad = np.full(len(chosen), "", object)
    try:
        images = data.read(index, chosen)
    except errors.BadSample:
        images = np.zeros((len(chosen), *index.shape), np.uint8)
        for row in range(len(chosen)):
            try:
                images[row] = data.read(index, chosen[row : row + 1])[0]
            except errors.BadSample as error:
                bad[row] = f"{error.path}\0{error.reason}"
    return {"image": images, "bad": bad}


def _fetch(index_ref: object) -> Index:
    import ray

    return ray.get(index_ref)  # type: ignore[call-overload]
