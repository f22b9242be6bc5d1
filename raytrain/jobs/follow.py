"""Following a job's log to the job's end, through broken connections."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from raytrain import errors
from raytrain.jobs.dashboard import Dashboard
from raytrain.jobs.job import Job, job, log

_QUIET_SECONDS = 60.0
"""A stream that is silent for this long is opened again: the connection may be dead."""
_LOST_SECONDS = 120.0
"""A cluster that does not answer for this long is lost."""
_PAUSE_SECONDS = 1.0
_SOONEST_SECONDS, _SHARE = 0.2, 0.02
"""Pauses between the questions whether a silent job has ended: a share of the time since following began, and at least
`_SOONEST_SECONDS`. Questions are frequent at first because a job that is refused ends within seconds."""

T = TypeVar("T")


class Lost(Exception):
    """The cluster went away while a job was followed; the job's end is unknown."""


def wait(dashboard: Dashboard, name: str) -> Job:
    """Wait for a job's end.

    Raises:
        Lost: the cluster went away.
    """
    while not (found := _patiently(lambda: job(dashboard, name))).over:
        time.sleep(_PAUSE_SECONDS)
    return found


class Follower:
    """Show what a job prints as it arrives, each character once however often the connection breaks.

    Args:
        show: called with pieces of text, which may end within a line.
    """

    def __init__(self, dashboard: Dashboard, name: str, show: Callable[[str], None]):
        self.dashboard, self.name, self.show = dashboard, name, show
        self._shown = 0

    def to_end(self) -> Job:
        """Follow the job to its end. After an interruption, a second call continues where the first one stopped.

        Raises:
            Lost: the cluster went away.
        """
        found = self._job()
        while not found.over:
            position = 0
            for text in _stream(self.dashboard, self.name):  # each stream starts at the log's start
                self._show(text, position)
                position += len(text)
            found = self._job()
            if not found.over:
                time.sleep(_PAUSE_SECONDS)
        self._show(_patiently(lambda: log(self.dashboard, self.name)), 0)
        return found

    def _job(self) -> Job:
        return _patiently(lambda: job(self.dashboard, self.name))

    def _show(self, text: str, position: int) -> None:
        """Show the new part of a text that begins at a position of the log."""
        new = text[max(0, self._shown - position) :]
        self._shown += len(new)
        self.show(new)


def _stream(dashboard: Dashboard, name: str) -> Iterator[str]:
    """Yield what a job prints, from its start, until the connection ends or is silent for long, or the job is over.

    Ray's stream ends only seconds after the job, so the job's state is asked for as well.
    """
    pieces: queue.Queue[str | BaseException | None] = queue.Queue()
    client = dashboard.client()  # here: where the command ends while a thread imports Ray, it finds half of Ray

    async def read() -> None:
        async for text in client.tail_job_logs(name):
            pieces.put(text)

    def run() -> None:
        try:
            asyncio.run(read())
            pieces.put(None)
        except (OSError, RuntimeError):  # the connection is cut; `to_end` asks for the job's state
            pieces.put(None)
        except BaseException as error:
            pieces.put(error)

    threading.Thread(target=run, daemon=True, name="log").start()
    began = heard = time.monotonic()
    while True:
        pause = min(max(_SHARE * (time.monotonic() - began), _SOONEST_SECONDS), _PAUSE_SECONDS)
        try:
            text = pieces.get(timeout=pause)
        except queue.Empty:
            with contextlib.suppress(errors.UserError):  # `to_end` asks again
                if time.monotonic() > heard + _QUIET_SECONDS or job(dashboard, name).over:
                    return
            continue
        if text is None:
            return
        if isinstance(text, BaseException):
            raise text
        heard = time.monotonic()
        yield text


def _patiently(ask: Callable[[], T]) -> T:
    """Ask until an answer arrives.

    Raises:
        Lost: none arrived for `_LOST_SECONDS`, or the cluster no longer knows the job.
    """
    deadline = time.monotonic() + _LOST_SECONDS
    while True:
        try:
            return ask()
        except errors.NoAnswer as error:
            if time.monotonic() > deadline:
                raise Lost(f"{error.what}, for {_LOST_SECONDS:.0f} s") from None
            time.sleep(_PAUSE_SECONDS)
        except errors.UserError as error:
            raise Lost(error.what) from None
