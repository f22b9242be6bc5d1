"""A shard on this machine's disk, read in random order."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


class ShardFile:
    """A shard that is open for reading, until nothing refers to it.

    Raises:
        OSError: it cannot be opened.
    """

    descriptor = -1

    def __init__(self, path: Path):
        self.descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def ask(self, offset: int, length: int) -> None:
        """Let the disk read bytes into the page cache, without waiting for them."""
        os.posix_fadvise(self.descriptor, offset, length, os.POSIX_FADV_WILLNEED)

    def read(self, buffers: list[Any], offset: int, ask: Callable[[], None]) -> int:
        """Fill buffers; return the number of bytes that came, which are fewer at the file's end.

        Args:
            ask: called first if the bytes are not all in the page cache: it asks for these and for others that are read
                next, so that the disk works on all of them at once.

        Raises:
            OSError: they cannot be read.
        """
        with contextlib.suppress(OSError):  # none is there, or the file system cannot tell
            got = os.preadv(self.descriptor, buffers, offset, os.RWF_NOWAIT)
            if got == sum(memoryview(one).nbytes for one in buffers):
                return got
        ask()
        return os.preadv(self.descriptor, buffers, offset)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.descriptor >= 0:
            close(self.descriptor)
