"""Writing in a side thread, and retries."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

_PAUSE, _PATIENCE = 0.25, 30.0


class Background:
    """Writes in a side thread while training goes on, one thing at a time."""

    def __init__(self) -> None:
        self._pool, self._writing = ThreadPoolExecutor(1, "checkpoint"), None

    def start(self, write: Callable[[], None]) -> None:
        """Hands over what is to be written, once that before it is there.

        Raises:
            OSError: that before it could not be written.
        """
        self.wait()
        self._writing: Future[None] | None = self._pool.submit(write)

    def wait(self) -> None:
        """Waits until all is written.

        Raises:
            OSError: it could not be.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def close(self) -> None:
        """Waits, whatever has become of it."""
        self._pool.shutdown()


def retry(write: Callable[[], None]) -> None:
    """Writes what must not be lost: where storage refuses it, again and again for half a minute, in growing pauses.

    Raises:
        OSError: it refused to the last.
    """
    deadline, pause = time.monotonic() + _PATIENCE, _PAUSE
    while True:
        try:
            return write()
        except OSError:
            if time.monotonic() + pause > deadline:
                raise
        time.sleep(pause)
        pause *= 2
