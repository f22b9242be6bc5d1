"""The logs of a run. A long log keeps its beginning and its end, with a line at the cut."""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

from raytrain.files import write_atomically

RANKS_BYTES, RANK_BYTES = 64 << 20, 8 << 20
"""Bytes that the ranks' logs of a run may take: all together, and each."""
_CUT = b"[raytrain cut lines out here, to keep this log below %d bytes]\n"
_LOOK_SECONDS = 2.0


def rank_limit(ranks: int) -> int:
    """Return the limit in bytes of each rank's log, for a number of ranks."""
    return min(RANK_BYTES, RANKS_BYTES // max(1, ranks))


def excerpt(file: Path, most: int) -> bytes:
    """Return a log, or its first and last lines, in at most `most` bytes and the line that says so.

    Raises:
        OSError: it cannot be read.
    """
    with open(file, "rb") as log:
        size = os.fstat(log.fileno()).st_size
        if size <= most:
            return log.read(most)
        head, tail = _parts(log.fileno(), size, most)
    return head + _CUT % most + tail


def shorten(file: Path, most: int) -> None:
    """Cut lines out of a log that is longer than `most` bytes, down to half of `most`.

    Processes that append to the log go on with it; what they write within the microseconds of the cut may be lost.

    Raises:
        OSError: it is not there, or cannot be written.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        if size > most:
            head, tail = _parts(descriptor, size, most // 2)
            os.ftruncate(descriptor, len(head))
            os.write(descriptor, _CUT % most + tail)
    finally:
        os.close(descriptor)


def keep_traceback(run: Path) -> None:
    """Write the traceback of the error that is being handled to the driver's log, if storage takes it.

    Args:
        run: the directory of a run or a sweep.
    """
    with contextlib.suppress(OSError):
        (run / "logs").mkdir(exist_ok=True)
        write_atomically(run / "logs" / "driver.log", traceback.format_exc())


@contextlib.contextmanager
def bounded(file: Path, most: int) -> Iterator[None]:
    """Keep a log that other processes append to below about `most` bytes, by a check every two seconds."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(_LOOK_SECONDS):
            with contextlib.suppress(OSError):  # storage is unreachable or full: the next check retries
                shorten(file, most)

    threading.Thread(target=look, daemon=True, name="log").start()
    try:
        yield
    finally:
        done.set()


def _parts(descriptor: int, size: int, most: int) -> tuple[bytes, bytes]:
    """Return whole lines from the beginning of a log (a quarter of `most`) and from its end, where lines are short."""
    head = os.pread(descriptor, most // 4, 0)
    end = most - len(head)
    tail = os.pread(descriptor, end, size - end)
    head = head[: head.rfind(b"\n") + 1] or head[:-1] + b"\n"
    return head, tail[tail.find(b"\n") + 1 :] or tail
