"""The signals of the `raytrain` command, from its first import on: they end it, whatever its threads wait for.

The package imports this module before all others, since those take half a second; so it imports next to nothing.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time

_AT_ONCE_SECONDS = 0.7
"""How long a command may take to unwind after a second signal."""
COPY_SECONDS = 1.0
"""A signal that comes again within this time counts once: `timeout` sends SIGTERM to the command and then to its group,
and a wrapper passes on the SIGINT that the terminal has sent to both."""
_SHOW_CURSOR = "\x1b[?25h"
"""A progress bar hides it."""


def numbers() -> list[signal.Signals]:
    """Return the signals that ask for an end; without SIGHUP where that is ignored from the start, as under nohup."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


def say(text: str) -> None:
    """Write to standard error, past Python's own files, which another thread may hold."""
    try:
        os.write(2, text.encode())
    except OSError:
        pass


def end_now(text: str, status: int) -> None:
    """End the process from any thread, whatever the others wait for, with a line on standard error."""
    say(f"{_SHOW_CURSOR if os.isatty(2) else ''}{text}\n")
    os._exit(status)


def _end_now(number: int, _: object = None) -> None:
    end_now("interrupted", 128 + number)


def _watch(pipe: int) -> None:
    """End the process after the second signal, though the main thread hears of none: it may hang in a library. A copy
    of the first does not count, nor does a second SIGHUP: a terminal that closes sends two."""
    first = os.read(pipe, 1)[0]
    counts_from = time.monotonic() + COPY_SECONDS
    while (second := os.read(pipe, 1)[0]) == signal.SIGHUP or (second == first and time.monotonic() < counts_from):
        pass
    time.sleep(_AT_ONCE_SECONDS)
    _end_now(first)


def _begins() -> bool:
    """Return whether this process begins as the command, by its script or by `python -m`."""
    program = os.path.basename((getattr(sys, "argv", None) or [""])[0])
    module = program == "-m" and {"raytrain", "raytrain.cli"} & set(getattr(sys, "orig_argv", ()))
    return program == "raytrain" or bool(module)


if _begins():
    for _number in numbers():
        signal.signal(_number, _end_now)  # nothing has begun: until `interrupts.unwinding`, there is nothing to undo
    _pipe = os.pipe()
    os.set_blocking(_pipe[1], False)
    signal.set_wakeup_fd(_pipe[1], warn_on_full_buffer=False)
    _thread.start_new_thread(_watch, (_pipe[0],))
