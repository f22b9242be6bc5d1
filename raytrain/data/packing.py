"""All samples of a split as arrays in memory: mapped from the disk cache, or else read and then cached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from raytrain import errors
from raytrain.data import cache
from raytrain.data.blocks import Arrays, Bad, arrays_and_bad, check_bad, count, lost_sample, read_part, rows_of
from raytrain.data.source import Data, Index
from raytrain.data.streaming import ignore, read_rest

_HERE_SECONDS, _HERE_ROWS = 3.0, 64
"""A split that this process alone reads in less time is not worth Ray Data's tasks, which take as long to start. The
time is checked after every so many samples."""


def pack(
    data: Data,
    index: Index,
    keep: bool = True,
    before: list[Bad] | None = None,
    waits: Callable[[float], None] = ignore,
) -> tuple[Arrays | None, Index, list[Bad]]:
    """Return all arrays of a split: mapped from the disk cache, or else read in parallel on the cluster, and cached.

    Args:
        keep: whether the arrays are wanted. For streaming, only which samples can be read is.
        before: the samples that a resumed run has skipped. It goes on to skip them, or its order would change. The
            index must be the one that the run began with.
        waits: as for `Streaming`.

    Returns:
        The arrays, each [n, ...]; the index of the samples that could be read; and those that could not and were
        skipped.

    Raises:
        UserError: a sample cannot be read and `on_bad_sample` is `error`, or it could be read when the run began; or
            all samples are bad.
    """
    entry = data.cache_entry(index)
    if entry is None:
        # A resumed stream reads nothing ahead: the run ends where training gets to a sample that cannot be read now.
        found = None if keep or before is None else (None, [])
    elif keep:
        found = cache.load(entry, index)
    else:
        known = cache.load_bad(entry, index)
        found = None if known is None else (None, known)
    if found is not None:
        arrays, failed = found[0], [Bad(*bad, lasting=True) for bad in found[1]]
        check_bad(data, failed)
    else:
        arrays = index.empty(len(index)) if keep else None
        failed = _read_all(data, index, arrays, waits)
        if entry is not None and len(failed) < len(index) and all(bad.lasting for bad in failed):
            cache.store(entry, index, arrays, [bad[:3] for bad in failed], data.cache_size)
    index, good, skipped = _without(index, failed, before)
    return arrays if arrays is None or good is None else rows_of(arrays, good), index, skipped


def _read_all(data: Data, index: Index, arrays: Arrays | None, waits: Callable[[float], None]) -> list[Bad]:
    """Read a whole split into `arrays`, if given; return the samples that cannot be read."""
    start, failed = 0, []
    for block, bad in _all_blocks(data, index, waits):
        check_bad(data, bad)
        stop = start + count(block)
        for name, array in (arrays or {}).items():
            array[start:stop] = block[name]
        failed += [one._replace(row=start + one.row) for one in bad]
        start = stop
    return failed


def _all_blocks(data: Data, index: Index, waits: Callable[[float], None]) -> Iterator[tuple[Arrays, list[Bad]]]:
    """Yield a whole split, as `read_blocks` does: read by this process, or, if that would take longer than
    `_HERE_SECONDS`, by Ray Data from the next block on."""
    done, seconds = 0, 0.0
    while done < len(index) and seconds * len(index) <= _HERE_SECONDS * done:
        started, part = time.perf_counter(), np.arange(done, min(done + _HERE_ROWS, len(index)))
        block = arrays_and_bad(read_part(data, index, part))
        done, seconds = done + len(part), seconds + time.perf_counter() - started
        yield block
    if done < len(index):
        yield from read_rest(data, index, done, waits)


def _without(index: Index, bad: list[Bad], before: list[Bad] | None) -> tuple[Index, np.ndarray | None, list[Bad]]:
    """Return the index without bad samples, the rows that stay (None: all), and the bad samples."""
    if before is not None:
        known = {one.row for one in before}
        for one in bad:
            if one.row not in known:
                raise lost_sample(one.path, one.reason)
        bad = before
    if not bad:
        return index, None, []
    good = np.setdiff1d(np.arange(len(index)), [one.row for one in bad])
    if not len(good):
        raise errors.all_samples_bad(bad[0].path, bad[0].reason)
    return index.take(good), good, bad
