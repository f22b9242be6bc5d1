"""Following a run from the driver. Its files are the only channel, so that it works over any distance."""

# ruff: noqa: D102 (the base class documents the methods)

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from raytrain.driver.feed import Feed
from raytrain.files import file_size
from raytrain.loggers import Held, Logger, RunInfo, check_loggers
from raytrain.run.lock import LOCK
from raytrain.run.metrics_log import NOTES, read_metrics

_PATIENCE, _HURRY = 30.0, 5.0
"""Seconds without progress after which the end of a run no longer waits for a logger: of a completed run, and of
others."""


@contextlib.contextmanager
def watched(first: Logger, loggers: Sequence[Logger] = ()) -> Iterator[Logger]:
    """The context in which loggers follow a run or a sweep. At its end they are closed.

    Args:
        first: called directly, such as the terminal.
        loggers: those of the user, each of which gets a thread.

    Raises:
        UserError: a logger lacks a package, or two would write to one place.
    """
    observer = Loggers(first, loggers) if loggers else first
    try:
        yield observer
    finally:
        observer.close()


class Loggers(Logger):
    """Several loggers as one: the first is called directly, the others in threads of their own."""

    def __init__(self, first: Logger, others: Sequence[Logger]):
        self.first, seen, self._feeds, self._patience = first, list[str](), list[Feed](), _HURRY
        self._late: list[Feed] = []
        check_loggers(others)
        for logger in others:
            seen.append(repr(logger))
            self._feeds.append(Feed(logger, seen.count(repr(logger)), first.note))

    def planned(self, lines: Sequence[tuple[str, str]]) -> None:
        self.first.planned(lines)
        self._tell("planned", lines)

    def status(self, text: str) -> None:
        self.first.status(text)
        self._tell("status", text)

    def note(self, text: str) -> None:
        self.first.note(text)
        self._tell("note", text)

    def start(self, run: RunInfo, held: Held) -> None:
        self.first.start(run, held)
        for feed in self._feeds:
            feed.follow(run)

    def rows(self, rows: Sequence[Any]) -> None:
        self.first.rows(rows)
        self._tell("rows", rows)

    def workers(self, event: str, why: str, checkpoint: str) -> None:
        self.first.workers(event, why, checkpoint)
        self._tell("workers", event, why, checkpoint)

    def trials(self, records: Any, objectives: Any, elapsed: float, count: int | None = None) -> None:
        self.first.trials(records, objectives, elapsed, count)
        self._tell("trials", records, objectives, elapsed, count)

    def finish(self, run: RunInfo, summary: Any) -> None:
        self.first.finish(run, summary)
        self._patience = _PATIENCE if summary.get("status") == "completed" else _HURRY
        self.end(run, summary)

    def end(self, run: RunInfo, summary: Any) -> None:
        """Let the others take the last rows and the summary; `close` waits for that."""
        for feed in self._feeds:
            feed.finish(run, summary)

    def catch_up(self, run: RunInfo, summary: Any) -> None:
        """Pass on the last rows of a completed run, if a kill came before that."""
        self._patience = _PATIENCE
        self._late = [feed for feed in self._feeds if feed.behind(run.path)]
        for feed in self._late:
            feed.follow(run)
            feed.finish(run, summary)

    def caught_up(self, run: RunInfo) -> list[str]:
        """Close the others, and return the names of those that `catch_up` has passed the last rows on to; none where
        one still lacks some."""
        self.leave()
        for feed in self._feeds:
            feed.wait(self._patience)
        self._feeds.clear()
        return [] if any(feed.behind(run.path) for feed in self._late) else [feed.name for feed in self._late]

    def leave(self) -> None:
        """Begin to close the others, without waiting for them."""
        for feed in self._feeds:
            feed.end()

    def close(self) -> None:
        self.leave()
        for feed in self._feeds:
            feed.wait(self._patience)
        self.first.close()

    def _tell(self, method: str, *arguments: Any) -> None:
        for feed in self._feeds:
            feed.tell(method, *arguments)


_REFUSED = "a checkpoint was not stored, and training goes on: "
_FULL = "no space is left on the disk of {}, and training goes on: metrics and checkpoints wait for some"
_AWAY = "{} is gone, and training goes on: metrics and checkpoints wait for it to come back"
_READ_ONLY = "{} cannot be written ({}), and training goes on: metrics and checkpoints wait until it can"
_TRY_SECONDS = 5.0
"""Between two attempts to write to the disk of a run."""


class Tail:
    """Follows a run's files for a logger: the metrics, the checkpoints that storage refused, and the ranks' notes."""

    def __init__(self, path: Path, offset: int, observer: Logger):
        self.path, self.offset, self.observer = path, offset, observer
        self.seen = self.full = self.away = False
        self.refusal, self._tried = "", -_TRY_SECONDS
        logs = {path.parent / "logs" / "checkpoints.log": _REFUSED, path.parent / NOTES: ""}
        self._logs = {log: (file_size(log), prefix) for log, prefix in logs.items()}

    def poll(self) -> None:
        """Hand on what has come since the last call."""
        if os.path.isfile(self.path):
            size = file_size(self.path)
            self.offset = min(self.offset, size)  # a resumed run first cuts the file back to its checkpoint
            try:
                rows, self.offset = read_metrics(self.path, self.offset)
            except ValueError:  # it was cut back and grew again since the last check: continue after its end
                rows, self.offset = [], size
        else:
            rows = []  # it does not exist yet, or its disk is unreachable
        self.seen = self.seen or any(row["kind"] == "step" for row in rows)
        self.observer.rows(rows)
        for log, (said, prefix) in self._logs.items():
            if file_size(log) > said:
                with contextlib.suppress(OSError), open(log, errors="replace") as file:
                    file.seek(said)
                    for line in file.read().splitlines():
                        self.observer.note(f"{prefix}{line}")
                    self._logs[log] = (file.tell(), prefix)
        # The ranks' own notes about these would have to lie on that disk.
        full, away = _is_full(self.path.parent), not os.path.isdir(self.path.parent)
        if full and not self.full:
            self.observer.note(_FULL.format(self.path.parent))
        if away and not self.away:
            self.observer.note(_AWAY.format(self.path.parent))
        self.full, self.away = full, away
        if time.monotonic() - self._tried >= _TRY_SECONDS:
            before, self.refusal, self._tried = self.refusal, _refusal(self.path.parent), time.monotonic()
            if self.refusal and not before:
                self.observer.note(_READ_ONLY.format(self.path.parent, self.refusal))

    @contextlib.contextmanager
    def in_background(self) -> Iterator[None]:
        """Poll in a side thread."""
        done = threading.Event()

        def follow() -> None:
            while not done.wait(0.1):
                self.poll()

        thread = threading.Thread(target=follow, daemon=True, name="metrics")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self.poll()


def _is_full(folder: Path) -> bool:
    """Return whether the disk of a folder has no space for this user; of a disk that is not there, it has."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_blocks > 0 and not (disk.f_bavail if os.geteuid() else disk.f_bfree)


def _refusal(folder: Path) -> str:
    """Return why the disk of a run takes no write, else "".

    Only a write tells: a file system that the kernel made read-only after an error may look as before.
    """
    try:
        os.utime(folder / LOCK)
    except OSError as error:
        return os.strerror(error.errno) if error.errno in (errno.EROFS, errno.EIO) else ""
    return ""
