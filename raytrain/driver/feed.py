"""The thread that feeds one logger, so that a slow or failing one does not hold the training up."""

from __future__ import annotations

import contextlib
import hashlib
import json
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from raytrain import errors
from raytrain.checkpoint import location, storage
from raytrain.checkpoint.rows import parse_row, read_rows
from raytrain.files import known_json, write_atomically
from raytrain.loggers import Held, Logger, RunInfo
from raytrain.user_code import places
from raytrain.user_code.shipping import fresh

_LOOK_SECONDS = 0.5
_COUNTED = ("step", "epoch", "validation")
"""Kinds of rows of which a position says which ones the logger holds; others stand before the first step."""
_BATCH = 1000
"""Rows of one call of `log`, after which it is noted how far the logger came."""
_WAITING = 1000
"""Calls that may wait for a slow logger; further ones are dropped, except calls of `log`."""
_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a logger that failed is started again, and the most after further failures."""


class Feed:
    """Calls one logger in a thread of its own.

    How far the logger came is in the run's directory, in `logs/logger-*.json`. A row is handed on once `last.json`
    names a checkpoint at or after its step. Steps and epochs are counted, not bytes: a resume from an older checkpoint
    writes rows again that the logger holds, and it does not get them a second time.

    Args:
        logger: the user's value, of which copies are called.
        number: 1, or another one for each further logger of the same value.
        note: shows a text to the user.
    """

    def __init__(self, logger: Logger, number: int, note: Callable[[str], None]):
        self._value, self._note, self.logger = logger, note, _copy(logger)
        self.name = type(logger).__name__
        key = hashlib.sha256(f"{logger!r} {number}".encode()).hexdigest()[:12]
        self._file = f"logs/logger-{key}.json"
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True, name=f"logger-{self.name}")
        self._ending = threading.Event()
        self._run: RunInfo | None = None
        self._last: tuple[RunInfo, Mapping[str, Any]] | None = None
        self._held, self._offset, self._progress = Held(), 0, time.monotonic()
        self._pause, self._again, self._said, self._opened = _PAUSE, 0.0, False, False

    # Called by the driver's threads; none of it waits

    def tell(self, method: str, *arguments: Any) -> None:
        """Call a method of the logger, unless it does nothing or too many calls wait."""
        if getattr(type(self.logger), method) is not getattr(Logger, method) and self._calls.qsize() < _WAITING:
            self._put(lambda: getattr(self.logger, method)(*arguments))

    def follow(self, run: RunInfo) -> None:
        """Begin to hand rows on."""
        self._run = run
        self._put(_nothing)

    def finish(self, run: RunInfo, summary: Mapping[str, Any]) -> None:
        """Have `end` hand the summary on."""
        self._last = run, summary

    def end(self) -> None:
        """Pass on the last rows and the summary, and close the logger."""
        self._ending.set()
        self._calls.put(_nothing)

    def wait(self, patience: float) -> None:
        """Wait until the logger is closed.

        Args:
            patience: seconds without progress after which the logger is left behind.
        """
        self._progress = time.monotonic()
        while self._thread.is_alive() and time.monotonic() < self._progress + patience:
            self._thread.join(0.05)
        if self._run and self.behind(self._run.path):
            step = self._kept(self._run.path).step
            self._note(f"the logger {self.name} lacks the rows after step {step:,}; `raytrain resume` delivers them")

    def behind(self, run: Path) -> bool:
        """Return whether a run that is not under way has permanent rows that the logger does not hold."""
        step = known_json(run / "last.json").get("step")
        logs = type(self.logger).log is not Logger.log
        return logs and isinstance(step, int) and self._kept(run).step < step

    def _put(self, call: Callable[[], None]) -> None:
        self._calls.put(call)
        if not self._thread.is_alive() and not self._ending.is_set():
            with contextlib.suppress(RuntimeError):  # it has ended
                self._thread.start()

    # Called by the logger's thread

    def _serve(self) -> None:
        while not (self._ending.is_set() and self._calls.empty()):
            call = _nothing
            with contextlib.suppress(queue.Empty):
                call = self._calls.get(timeout=_LOOK_SECONDS)
            self._try(call)
        self._again = 0.0  # the last chance
        self._try(self._conclude)
        with contextlib.suppress(Exception):
            self.logger.close()

    def _try(self, call: Callable[[], None]) -> None:
        """Make a call and hand new rows on; say the first error."""
        if time.monotonic() < self._again:
            return
        try:
            if self._run and not self._opened:
                self._open(self._run)
            call()
            self._deliver()
            self._pause = _PAUSE
        except (Exception, SystemExit) as error:
            if not self._said:
                at = places.line_of(error)
                why = errors.one_line(f"{type(error).__name__}: {error}" + (f" ({at})" if at else ""))
                self._note(f"the logger {self.name} failed, and training goes on: {why}")
            self._said, self._opened = True, False
            self._again, self._pause = time.monotonic() + self._pause, min(2 * self._pause, _LONGEST_PAUSE)
            with contextlib.suppress(Exception):
                self.logger.close()
            self.logger = _copy(self._value)
        self._progress = time.monotonic()

    def _open(self, run: RunInfo) -> None:
        """Start the logger after the rows that it holds."""
        self._held = self._kept(run.path)
        self._offset = 0
        self.logger.start(run, self._held)
        self._opened = True

    def _kept(self, run: Path) -> Held:
        """Return the logger's position, as `_keep` wrote it."""
        kept = known_json(run / self._file)
        step, epoch, validation = kept.get("step"), kept.get("epoch"), kept.get("validation", 0)
        if isinstance(step, int) and isinstance(epoch, int) and isinstance(validation, int):
            return Held(step, epoch, validation)
        return Held()

    def _conclude(self) -> None:
        self._deliver(last=True)
        if self._last:
            self.logger.finish(*self._last)

    def _deliver(self, last: bool = False) -> None:
        """Hand new permanent rows on.

        Args:
            last: look also where no new checkpoint is known.
        """
        if self._run is None or not self._opened or type(self.logger).log is Logger.log:
            return
        permanent = self._permanent()
        if permanent <= self._held.step and not last:
            return
        while rows := self._next(permanent):
            self.logger.log(rows)
            self._keep()

    def _permanent(self) -> int:
        """Return the step of the newest checkpoint that is known."""
        assert self._run
        found = known_json(self._run.path / "last.json")
        if (url := location.url_of(self._run.path)) and not self._ending.is_set():
            with contextlib.suppress(OSError, ValueError, errors.UserError):
                found = json.loads(storage.Storage(url).read("last.json"))
        step = found.get("step") if isinstance(found, dict) else None
        return step if isinstance(step, int) else 0

    def _next(self, permanent: int) -> list[dict[str, Any]]:
        """Return the next rows up to a step, and count them as held."""
        assert self._run
        file = self._run.path / "metrics.jsonl"
        try:
            if file.stat().st_size < self._offset:
                self._offset = 0  # it was cut back, further than to the newest checkpoint
            raw = read_rows(file, self._offset)
        except (OSError, ValueError):
            return []  # it does not exist yet, or its disk is unreachable
        rows: list[dict[str, Any]] = []
        for line in raw.splitlines(keepends=True):
            row = parse_row(line) if line.endswith(b"\n") else None
            if len(rows) == _BATCH or (row and row.get("step", 0) > permanent):
                break
            held = self._after(row)
            if held is None:  # the rows behind the offset are not those that were there, or this one is not whole
                self._offset = 0
                break
            if held != self._held or (row and row["kind"] not in _COUNTED and not self._held.step):
                rows.append(row or {})
            self._held, self._offset = held, self._offset + len(line)
        return rows

    def _after(self, row: dict[str, Any] | None) -> Held | None:
        """Return what the logger holds with a row; None where rows before it are missing."""
        held = self._held
        if row is None:
            return None
        if row["kind"] == "step":
            new = replace(held, step=max(held.step, row["step"]))
            return new if new.step <= held.step + 1 else None
        if row["kind"] == "epoch":
            new = replace(held, epoch=max(held.epoch, row["epoch"]))
            return new if new.epoch <= held.epoch + 1 else None
        if row["kind"] == "validation":
            new = replace(held, validation=max(held.validation, row["step"]))
            return new if row["step"] <= held.step else None
        return held

    def _keep(self) -> None:
        """Write the logger's position."""
        assert self._run
        file = self._run.path / self._file
        with contextlib.suppress(OSError, errors.UserError):  # then `start` says less than the logger holds
            write_atomically(file, json.dumps({"logger": self.name, **vars(self._held)}))
            if url := location.url_of(self._run.path):
                storage.Storage(url).write(self._file, file)
        self._progress = time.monotonic()


def _copy(logger: Logger) -> Logger:
    """Return a logger with a `state` of its own. An object with an `__init__` of its own stays the same."""
    return fresh(logger) if "__dataclass_fields__" in vars(type(logger)) else logger


def _nothing() -> None:
    """Wake the thread."""
