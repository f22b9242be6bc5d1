"""Writing a run's checkpoints: aside while training goes on, what points to them, and which of them stay."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytrain import checkpoint, errors
from raytrain.experiment import Checkpoint
from raytrain.files import append, write_atomically
from raytrain.run import NOTES, MetricsLog
from raytrain.storage import POLL_SECONDS, Storage

_REFUSALS = "logs/checkpoints.log"
_WAIT = 0.005
"""Of its time, how much training may wait for checkpoints; what it has not waited it may wait later."""
_LONGEST = 10.0
"""Seconds that it may wait for one: storage may hang."""


@dataclass
class _Due:
    """A checkpoint that is to be written, and how far that has come."""

    step: int
    model: dict[str, Any]
    optimizer: dict[str, Any]
    state: dict[str, Any]
    committed: bool = False


class CheckpointWriter:
    """Writes a run's checkpoints in a side thread, one at a time; rank 0 has it.

    Storage that refuses a checkpoint does not end the run: what it said goes to `logs/checkpoints.log`, those written
    before stay, and the next one is written when it is due. At the end of the run the last one must be written.

    Args:
        run: the run's directory.
        log: the metrics that a checkpoint vouches for.
        settings: which checkpoints stay.
        epoch: steps of an epoch.
        storage: the URL that all of it is brought up to; None where the run is in a directory.

    Attributes:
        began: when the time began that training waits for checkpoints a share of; `time.monotonic()`, seconds.
    """

    def __init__(self, run: Path, log: MetricsLog, settings: Checkpoint, epoch: int, storage: Storage | None = None):
        self.run, self.log, self.settings = run, log, settings
        self.every = None if settings.keep_every is None else settings.keep_every * epoch
        self.background = checkpoint.Background()
        self._due: _Due | None = None
        self._written, self.began, self._waited = threading.Event(), time.monotonic(), 0.0
        self._written.set()
        self._best: dict[str, Any] = {}
        self._bests: dict[str, str] = {}
        self._unsaid: list[str] = []
        self.storage, self._closed = storage, threading.Event()
        if storage:
            threading.Thread(target=self._follow, args=[storage], daemon=True, name="storage").start()

    def start(self, step: int, model: dict[str, Any], optimizer: dict[str, Any], state: dict[str, Any]) -> None:
        """Hands over copies of a training state; `wait` comes before they are made, so that they are the only ones."""
        self._due = _Due(step, model, optimizer, state)
        self._written.clear()
        self.background.start(self._try)

    def wait(self) -> None:
        """Waits for the checkpoint before, and lets go of it, whatever has become of it."""
        self.background.wait()
        self._due = None

    def settle(self) -> None:
        """Waits, when the next step is all but done, for the checkpoint under way: with that committed, a crash costs
        no more steps than lie between two. Storage that is always slow does not hold training up for longer than a
        two-hundredth of its time; storage that is slow now and then is waited for."""
        if not self._written.is_set():
            now = time.monotonic()
            left = _WAIT * (now - self.began) - self._waited
            self._written.wait(min(max(left, 0.0), _LONGEST))
            self._waited += time.monotonic() - now
            self._written.set()  # or the steps after it would wait as well

    def finish(self, summary: dict[str, Any]) -> None:
        """Writes the last checkpoint, where that has not been done, all metrics, and the summary.

        Raises:
            UserError: storage did not take them for half a minute.
        """
        self.background.wait()

        def write() -> None:
            self._commit()
            self.log.commit()
            write_atomically(self.run / "summary.json", json.dumps(summary, indent=2))
            if self.storage:
                self.storage.push_metrics(self.run)
                self.storage.write("summary.json", self.run / "summary.json")

        try:
            checkpoint.insist(write)
        except OSError as error:
            self._note(error)
            where, names = self.storage.url if self.storage else self.run, []
            with contextlib.suppress(OSError):
                names = [*self.storage.committed()] if self.storage else checkpoint.committed(self.run / "checkpoints")
            raise errors.storage_refuses(where, _reason(error), names[-1] if names else None) from error

    def resume(self, name: str | None, step: int, best: dict[str, Any]) -> None:
        """Goes on from a checkpoint, or from the start: what points to a later one, or to none since a kill came
        before, points to it.

        Args:
            name: the checkpoint's.
            best: the best epoch's row as of that checkpoint; empty where no epoch has ended.

        Raises:
            OSError: storage refused it.
        """
        for found in checkpoint.committed(self.run / "checkpoints"):
            with contextlib.suppress(errors.UserError, KeyError, TypeError):
                state = checkpoint.load_state(self.run / "checkpoints" / found)
                self._bests[found] = state["progress"]["best"]["checkpoint"]
        if not best:
            (self.run / "best.json").unlink(missing_ok=True)
        if name is None:
            (self.run / "last.json").unlink(missing_ok=True)
        else:
            self._point(name, step, best)
        if self.storage:
            self.storage.drop_after(step if name else -1)
            self.storage.push(self.run, self._superfluous)
        checkpoint.prune(self.run / "checkpoints", self._superfluous)

    def _superfluous(self, sizes: Mapping[str, int]) -> list[str]:
        budget = None if self.settings.max_gib is None else int(self.settings.max_gib * 2**30)
        return checkpoint.superfluous(sizes, self.settings.keep, self._bests, self.every, budget)

    def _follow(self, storage: Storage) -> None:
        """Brings rows up between two checkpoints, and a request to stop down; in a side thread of its own."""
        sent: dict[str, int] = {}
        while not self._closed.wait(POLL_SECONDS):
            with contextlib.suppress(OSError):
                if "stop" in storage.names("", recursive=False):
                    (self.run / "stop").touch()
                for name in ("metrics.jsonl", _REFUSALS, NOTES):
                    size = os.path.getsize(self.run / name) if os.path.exists(self.run / name) else 0
                    if size > sent.get(name, 0):
                        storage.push_metrics(self.run) if name == "metrics.jsonl" else storage.write(
                            name, self.run / name
                        )
                        sent[name] = size

    def _point(self, name: str, step: int, best: dict[str, Any]) -> None:
        """Writes what points to the last checkpoint, and to the best one where that has changed."""
        if best != self._best:
            write_atomically(self.run / "best.json", json.dumps(best, indent=2))
            self._best = best
        last = {"checkpoint": name, "step": step}
        write_atomically(self.run / "last.json", json.dumps(last, indent=2))

    def close(self) -> None:
        """Waits, whatever has become of it."""
        self._closed.set()
        self.background.close()

    def _try(self) -> None:
        """Writes the checkpoint that is due; in the side thread."""
        try:
            self._commit()
            self._say()
        except OSError as error:
            self._note(error)
        finally:
            self._written.set()

    def _commit(self) -> None:
        """Writes the checkpoint that is due and what points to it, from where an attempt before it came to."""
        due = self._due
        if due is None:
            return
        if not due.committed:
            self.log.commit()  # a checkpoint vouches for the rows before it
            checkpoint.save(self.run / "checkpoints", due.step, due.model, due.optimizer, due.state)
            due.committed = True
            self._written.set()
        folder, name, best = self.run / "checkpoints", checkpoint.name_of(due.step), due.state["progress"]["best"]
        if not os.path.isfile(folder / str(best.get("checkpoint")) / checkpoint.MANIFEST):
            best = self._best  # storage refused that one: the best of those that are there
        self._point(name, due.step, best)
        self._bests[name] = best.get("checkpoint", name)
        try:
            checkpoint.prune(folder, self._superfluous)  # also while nothing can be brought up
        finally:
            if self.storage:
                self.storage.push(self.run, self._superfluous)
            self._due = None

    def _note(self, error: OSError) -> None:
        step = f"step {self._due.step}: " if self._due else ""
        self._unsaid.append(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {step}{_reason(error)}")
        self._say()

    def _say(self) -> None:
        """Writes down what storage refused, once it takes that."""
        if self._unsaid:
            with contextlib.suppress(OSError):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.run / "logs")
                append(self.run / _REFUSALS, "".join(f"{line}\n" for line in self._unsaid))
                self._unsaid = []


def _reason(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{where}"
