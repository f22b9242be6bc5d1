"""The handling of SIGINT, SIGTERM and SIGHUP.

The `raytrain` command ends at once while it still imports (`guard`), unwinds while it plans or prints, and writes a
checkpoint first while a run trains. A second signal ends it at once, but for a copy of the first within
`guard.COPY_SECONDS`, and for SIGHUP: a closing terminal sends it twice, from the kernel and from the shell. SIGHUP
is left alone where it is ignored from the start, as under nohup.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from raytrain.checkpoint import remote
from raytrain.driver.guard import COPY_SECONDS, numbers, say

_came: list[int] = []
"""The signals that asked the command to end, in the order in which they came."""
_counted: dict[int, float] = {}
"""When a signal of each kind last counted, in seconds of `time.monotonic`."""
drawn = [1]
"""Lines of the terminal that the live display takes; the cursor is in the last one."""
_asked: list[int] = []
"""The signals that unwind the command."""
_left: list[Path] = []
"""The run or sweep that a second signal leaves as it is."""


class Stopped(KeyboardInterrupt):
    """A signal that ends the command.

    Attributes:
        signal: its number.
    """

    def __init__(self, number: int):
        super().__init__(f"signal {number}")
        self.signal = number


class Leave(BaseException):
    """A request to stop before there was anything to save. It is no Exception, so that no code catches it as an
    error."""


@contextlib.contextmanager
def unwinding() -> Iterator[None]:
    """Turn signals into `Stopped`, which unwinds the command, so that temporary files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _unwind) for number in numbers()}
    del _asked[:], _came[:], _left[:]
    _counted.clear()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def asked(error: BaseException) -> int:
    """Return the signal that caused an error, or 0. A library may have replaced the signal's exception by another."""
    if isinstance(error, KeyboardInterrupt):
        return getattr(error, "signal", signal.SIGINT)
    return _asked[0] if _asked else 0


def left() -> Path | None:
    """Return the directory of the run or sweep that a second signal has left as it is, if there is one."""
    return _left[0] if _left else None


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Defer signals during code that must not be interrupted, such as Ray's shutdown: after an incomplete one the
    process ends with status 1. Handle the first of them afterwards."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if not _is_copy(number):
            came.append(number)

    before = {number: signal.signal(number, note) for number in numbers()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        handler = before[signal.Signals(came[0])]
        handler(came[0], None) if callable(handler) else signal.raise_signal(came[0])


def ends_at_once() -> bool:
    """Return whether a signal ends the command without delay. Ray is then abandoned: a thread may still use it, or its
    shutdown may be the code that the signal broke off, and a second shutdown ends the process with status 1."""
    return bool(_asked)


def status_after(status: int) -> int:
    """Return a command's exit status: once a signal has asked the command to end, the status of the first signal
    replaces that of a failure. A command that has done all its work has succeeded nevertheless."""
    return 128 + _came[0] if status and _came else status


def end_with(status: int) -> None:
    """Let further signals end this process at once, with its final status."""
    if threading.current_thread() is threading.main_thread():
        for number in numbers():
            signal.signal(number, lambda *_: os._exit(status))


class Interrupts:
    """SIGINT, SIGTERM and SIGHUP during a run: the first asks the workers for a checkpoint and an end, the second ends
    at once. Before `saves`, there is nothing to save, and the first raises `Leave`.

    Attributes:
        signal: the first that came, or 0.
        says: whether to tell on standard error what is going on.
        saves: whether workers may have something to save.
    """

    def __init__(self, path: Path):
        self.path, self.signal, self.says, self.saves = path, 0, True, False
        self._starting, self._came = False, 0.0
        self._before: dict[int, Any] = {}
        self._error: BaseException | None = None
        del _left[:]
        _counted.clear()

    def __enter__(self) -> Interrupts:
        self.install()
        return self

    def install(self) -> None:
        """Take the signals; again after Ray has started, which takes SIGTERM for itself."""
        if threading.current_thread() is threading.main_thread():
            for number in numbers():
                before = signal.signal(number, self._handle)
                self._before.setdefault(number, before)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextlib.contextmanager
    def while_ray_starts(self) -> Iterator[None]:
        """Defer signals while Ray starts, which hangs if it is interrupted. Block SIGHUP, also in Ray's processes: a
        closing terminal sends it to all of them.

        Raises:
            Leave: one came.
        """
        self._starting = True
        main = threading.current_thread() is threading.main_thread()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP}) if main else set()
        try:
            yield
        except SystemExit:  # of Ray's own handler, where it could not be kept from SIGTERM
            self.signal = self.signal or signal.SIGTERM
        finally:
            self._starting = False
            self.install()
            if main:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self.stop_if_asked()

    def unwind(self, error: BaseException) -> None:
        """Raise an error in the main thread from another thread, even if the main thread waits for a lock. Do nothing
        if the run is not in the main thread."""
        if self._before:
            self._error = error
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def stop_if_asked(self) -> None:
        """Raise `Leave` if a signal has come already."""
        if self.signal:
            raise Leave

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if not _counts(number):
            return
        again, self.signal = bool(self.signal), self.signal or number
        self._came = self._came or time.monotonic()
        if number == signal.SIGHUP:
            _detach()
            if again:
                return
        if again and self.saves:
            _left.append(self.path)
        if again and self._before.get(number) is _unwind:
            _end(number)
        if again:
            raise Stopped(number)
        if self._starting:
            if self.says:
                line = "\r\x1b[2K" if os.isatty(2) else ""  # takes the echo away
                say(f"{line}stopping once Ray has started; a second signal stops at once\n")
            return
        if not self.saves:
            raise Leave
        if self.says:
            above = drawn[0] - 1 if os.isatty(2) else 0  # lines of the bar, whose next drawing begins as far above
            line = "\r\x1b[2K" + "\x1b[1A\x1b[2K" * above if os.isatty(2) else "\n"  # takes the bar and the echo away
            below = "\n" * above
            say(f"{line}stopping after this step, with a checkpoint; a second signal stops at once\n{below}")
        self.ask()

    def ask(self) -> None:
        """Tell the workers of a request to stop, if there is one. Called repeatedly, since the directory may be
        unreachable."""
        if self.signal:
            with contextlib.suppress(OSError):
                (self.path / "stop").touch()
            remote.hasten(self.path)

    @property
    def seconds(self) -> float:
        """Seconds since the first signal; 0 without one."""
        return time.monotonic() - self._came if self.signal else 0.0


def _is_copy(number: int) -> bool:
    """Return whether a signal of this kind has just counted."""
    return number in _counted and time.monotonic() - _counted[number] < COPY_SECONDS


def _counts(number: int) -> bool:
    """Return whether a signal is no copy, and note that it came."""
    if _is_copy(number):
        return False
    _counted[number] = time.monotonic()
    _came.append(number)
    return True


def _unwind(number: int, _: FrameType | None) -> None:
    if _counts(number):
        _end(number)


def _end(number: int) -> None:
    _asked.append(number)
    if number == signal.SIGHUP:
        _detach()
    raise Stopped(number)


def _detach() -> None:
    """Discard further output if the terminal has gone: every line would raise an error."""
    for descriptor in (1, 2):
        try:
            os.ttyname(descriptor)
        except OSError as error:
            if error.errno == errno.EIO:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, descriptor)
                os.close(null)
