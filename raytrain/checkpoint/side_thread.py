"""Writing in a side thread, and retries."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

_PAUSE, _PATIENCE = 0.25, 30.0


class Background:
    """Run writes in a side thread, one at a time, while training goes on."""

    def __init__(self) -> None:
        self._pool, self._writing = ThreadPoolExecutor(1, "checkpoint"), None

    def start(self, write: Callable[[], None]) -> None:
        """Wait for the previous write, then start the next one.

        Raises:
            OSError: the previous write failed.
        """
        self.wait()
        self._writing: Future[None] | None = self._pool.submit(write)

    def wait(self) -> None:
        """Wait for the current write.

        Raises:
            OSError: the write failed.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Wait for the current write, ignore its error, and end the thread."""
        self._pool.shutdown()


def retry(work: Callable[[], T]) -> T:
    """Return what a request to storage returns, and retry with exponential back-off for 30 s.

    Raises:
        OSError: the last attempt failed.
    """
    deadline, pause = time.monotonic() + _PATIENCE, _PAUSE
    while True:
        try:
            return work()
        except OSError:
            if time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause *= 2
