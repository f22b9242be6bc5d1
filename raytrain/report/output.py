"""Standard output that may refuse what is written: a pipe whose reader has gone, a full disk, a closed terminal."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO


class Refused(OSError):
    """Standard output refuses what a command prints.

    Not a BrokenPipeError, which rich turns into an exit of its own.
    """


class Output:
    """A text stream with a defined outcome if writing fails.

    Args:
        stream: what to write to; None, for a stream that was closed before the process began, drops everything.
        lasting: drop what is refused, and all that follows, after one line on standard error. Otherwise raise
            `Refused` once: for commands whose output is their purpose.
    """

    def __init__(self, stream: TextIO | None, lasting: bool):
        self._stream = open(os.devnull, "w") if stream is None else stream
        self._lasting, self._refused = lasting, False

    def write(self, text: str) -> int:
        """Write text, or drop it after a refusal."""
        if not self._refused:
            try:
                self._stream.write(text)
            except OSError as error:
                self._refuse(error)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, unless it has refused."""
        if not self._refused:
            try:
                self._stream.flush()
            except OSError as error:
                self._refuse(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _refuse(self, error: OSError) -> None:
        self._refused = True
        if not self._lasting:
            raise Refused(error.errno, error.strerror or str(error)) from None
        if self is not sys.stderr:
            with contextlib.suppress(OSError):
                print(f"note: standard output is gone ({error.strerror}); the command goes on", file=sys.stderr)


def guard_standard_streams() -> None:
    """Give the standard streams of a command's process their defined outcomes.

    Open the null device in place of those that were closed before the process began: otherwise the next file that is
    opened, such as a run's metrics, gets the number of standard output, and whatever prints writes into it. Escape text
    that a stream cannot encode: file names need not be text, and a terminal need not know more than ASCII.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number: this one
    for name, lasting in (("stdout", False), ("stderr", True)):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, Output(stream, lasting))


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Send to standard error what this process and those that it starts print to standard output."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        finally:
            os.dup2(kept, 1)
            os.close(kept)


def aside_where(json: bool) -> contextlib.AbstractContextManager[None]:
    """Return `aside()` for a command that prints JSON, whose user's code may print too; else what changes nothing."""
    return aside() if json else contextlib.nullcontext()
