"""Packing for people: a bar with the time that is left, or on a file a line each minute."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from rich.progress import TextColumn

from raytrain.report.console import clock
from raytrain.report.progress import progress

_EVERY = 60.0


class Bar:
    """The samples that are packed, those in a second, and the time that is left."""

    def __init__(self) -> None:
        self._progress = progress("packing", TextColumn("{task.fields[rate]}"))
        self._task, self._lock = self._progress.add_task("", total=None, rate=""), threading.Lock()
        self._began = self._told = time.monotonic()
        self._total = self._done = self._before = 0

    def started(self, total: int, done: int) -> None:
        """Begin, with what an earlier command has done."""
        self._total, self._done, self._before, self._began = total, done, done, time.monotonic()
        if done:
            self._progress.console.print(f"{done:,} of {total:,} samples are packed already")
        self._progress.update(self._task, total=total, completed=done)

    def advance(self, count: int) -> None:
        """Move on by some samples; any thread may call it."""
        with self._lock:
            self._done += count
            now = time.monotonic()
            rate = (self._done - self._before) / max(1e-3, now - self._began)
            self._progress.update(self._task, completed=self._done, rate=f"{rate:,.0f}/s")
            if self._progress.disable and now - self._told >= _EVERY:
                self._told = now
                left = clock((self._total - self._done) / max(1e-3, rate))
                self._progress.console.print(f"packed {self._done:,} of {self._total:,}, {rate:,.0f}/s, {left} left")

    @contextlib.contextmanager
    def shown(self) -> Iterator[Bar]:
        """Show it in a `with` statement."""
        with self._progress:
            yield self
