"""Watching a run from the driver: the metrics file is the only channel, so it works over any distance."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from raytrain.driver.plan import Plan
from raytrain.run.metrics_log import NOTES, read_metrics
from raytrain.run.run import Run


class Observer:
    """Sees a run from the driver; the base class looks away."""

    def planned(self, plan: Plan) -> None:
        """The plan, before anything starts."""

    def status(self, text: str) -> None:
        """What goes on while no step is done."""

    def started(self, run: Run, plan: Plan, rows: list[dict[str, Any]]) -> None:
        """Workers are about to train; the plan has the samples that could be read, `rows` the metrics of a resumed run
        so far."""

    def rows(self, rows: list[dict[str, Any]]) -> None:
        """New rows of metrics.jsonl; an empty list now and then, to keep the clock going."""

    def workers(self, event: str, why: str, checkpoint: str) -> None:
        """Workers were `lost`, their number is to be `resized`, or the run is `waiting` for room; it goes on from the
        checkpoint of that name, or from its start."""

    def note(self, text: str) -> None:
        """What the user should know, and what does not end the run."""

    def finished(self, run: Run) -> None:
        """The run has ended and its summary is there."""

    def close(self) -> None:
        """Whatever happened, nothing more will."""


class SweepObserver:
    """Sees a sweep from the driver; the base class looks away."""

    def planned(self, lines: list[tuple[str, str]]) -> None:
        """The plan, before anything starts."""

    def status(self, text: str) -> None:
        """What goes on while no trial is under way."""

    def trials(
        self,
        records: list[dict[str, Any]],
        objectives: list[dict[str, Any]],
        elapsed: float,
        count: int | None = None,
    ) -> None:
        """How the trials stand; a few times a second.

        Args:
            records: `trials` of sweep.json: those that were proposed.
            objectives: `objectives` of sweep.json.
            elapsed: seconds of the sweep so far.
            count: how many trials there will be.
        """

    def finished(self, path: Path, answer: dict[str, Any]) -> None:
        """The sweep has ended, and its answer is written."""

    def close(self) -> None:
        """Whatever happened, nothing more will."""


Watching = TypeVar("Watching", Observer, SweepObserver)


@contextlib.contextmanager
def watched(observer: Watching) -> Iterator[Watching]:
    """Closes the observer at the end, however that comes about."""
    try:
        yield observer
    finally:
        observer.close()


_REFUSED = "a checkpoint was not stored, and training goes on: "


class Tail:
    """Follows the metrics file for the observer, what storage refused, and the ranks' notes."""

    def __init__(self, path: Path, offset: int, observer: Observer):
        self.path, self.offset, self.observer = path, offset, observer
        self.seen = False
        logs = {path.parent / "logs" / "checkpoints.log": _REFUSED, path.parent / NOTES: ""}
        self._logs = {log: (_size(log), prefix) for log, prefix in logs.items()}

    def poll(self) -> None:
        """Shows what has come since the last call."""
        if os.path.isfile(self.path):
            size = _size(self.path)
            self.offset = min(self.offset, size)  # a resumed run first cuts the file back to its checkpoint
            try:
                rows, self.offset = read_metrics(self.path, self.offset)
            except ValueError:  # it was cut back and grew again since the last look: go on behind what is there
                rows, self.offset = [], size
        else:
            rows = []  # it is still to come, or its disk is away
        self.seen = self.seen or any(row["kind"] == "step" for row in rows)
        self.observer.rows(rows)
        for log, (said, prefix) in self._logs.items():
            if _size(log) > said:
                with contextlib.suppress(OSError), open(log, errors="replace") as file:
                    file.seek(said)
                    for line in file.read().splitlines():
                        self.observer.note(f"{prefix}{line}")
                    self._logs[log] = (file.tell(), prefix)

    @contextlib.contextmanager
    def in_background(self) -> Iterator[None]:
        """Polls in a side thread."""
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


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
