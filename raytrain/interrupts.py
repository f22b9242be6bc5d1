"""SIGINT and SIGTERM during a run: when they end it, and how."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Leave(Exception):
    """A request to stop that came before there was anything to save."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Makes of SIGTERM an exit that unwinds, as SIGINT's does, so that what is temporary is removed."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Interrupts:
    """SIGINT and SIGTERM: the first asks the workers for a checkpoint and an end, the second ends at once."""

    def __init__(self, path: Path):
        self.path, self.signal, self.says = path, 0, True
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        self.install()
        return self

    def install(self) -> None:
        """Takes both signals; again after Ray has started, which takes SIGTERM for itself."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.signal(number, self._handle)
                self._before.setdefault(number, before)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def while_ray_starts(self) -> Iterator[None]:
        """Ray takes SIGTERM for itself while it starts, and ends the process by an exit of its own."""
        try:
            yield
        except SystemExit:
            self.signal = self.signal or signal.SIGTERM
            raise Leave from None
        finally:
            self.install()

    def stop_if_asked(self) -> None:
        """Raises where a request has come already."""
        if self.signal:
            raise Leave

    def _handle(self, number: int, _frame: object) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number
        if self.says:
            os.write(2, b"\nstopping after this step, with a checkpoint; once more stops at once\n")
        self.ask()

    def ask(self) -> None:
        """Lets the workers know of a request, where there is one; again and again, since the directory may be away."""
        if self.signal:
            with contextlib.suppress(OSError):
                (self.path / "stop").touch()
