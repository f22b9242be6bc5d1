"""Writing a run's checkpoints: aside while training goes on, what points to them, and which of them stay."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytrain import errors
from raytrain.checkpoint import checkpoints, retention, side_thread
from raytrain.checkpoint.pulse import HURRY_SECONDS, POLL_SECONDS
from raytrain.checkpoint.storage import Storage
from raytrain.experiment import Checkpoint
from raytrain.files import append, write_atomically
from raytrain.run.metrics_log import NOTES, MetricsLog
from raytrain.watchdog import doing

_REFUSALS = "logs/checkpoints.log"
_WAIT = 0.005
"""Of its time, how much training may wait for checkpoints; what it has not waited it may wait later."""
_LONGEST = 10.0
"""Seconds that it may wait for one: storage may hang."""
_AGAIN_SECONDS = 30.0
"""How long after a failed upload the next attempt is, if there is no other checkpoint before."""


@dataclass
class _Due:
    """A checkpoint that is to be written, and how far that has come."""

    step: int
    model: dict[str, Any]
    optimizer: dict[str, Any]
    state: dict[str, Any]
    committed: bool = False


class CheckpointWriter:
    """Write a run's checkpoints in a side thread, one at a time; rank 0 has it.

    Storage that refuses a checkpoint does not end the run: what it said goes to `logs/checkpoints.log`, those written
    before stay, and the next one is written when it is due. At the end of the run the last one must be written.

    Another side thread uploads the checkpoints of a run at a URL. Training waits for the upload before it copies the
    next state, but not while storage is silent.

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
        self.background = side_thread.Background()
        self._due: _Due | None = None
        self._written, self.began, self._waited = threading.Event(), time.monotonic(), 0.0
        self._written.set()
        self._best: dict[str, Any] = {}
        self._bests: dict[str, str] = {}
        self._unsaid: list[str] = []
        self._saying, self._pushing, self._changed = threading.Lock(), threading.Lock(), threading.Condition()
        self._saved = self._tried = self._uploaded = 0  # the newest checkpoint's step that is here, was sent, is there
        self.storage, self._closed = storage, threading.Event()
        if storage:
            threading.Thread(target=self._follow, args=[storage], daemon=True, name="storage").start()
            threading.Thread(target=self._keep_uploading, args=[storage], daemon=True, name="uploads").start()

    def start(self, step: int, model: dict[str, Any], optimizer: dict[str, Any], state: dict[str, Any]) -> None:
        """Hands over copies of a training state; `wait` comes before they are made, so that they are the only ones."""
        self._due = _Due(step, model, optimizer, state)
        self._written.clear()
        self.background.start(self._try)

    def wait(self) -> None:
        """Wait for the checkpoint before, and let go of it, whatever has become of it."""
        self.background.wait()
        self._due = None
        self._await_upload()

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
        """Write the last checkpoint, where that has not been done, all metrics, and the summary.

        Raises:
            UserError: the disk or the storage at the URL did not take them for half a minute. A run that was asked to
                stop does not wait for storage: what that does not take stays in the mirror.
        """
        self.background.wait()

        def write() -> None:
            self._commit()
            self.log.commit()
            write_atomically(self.run / "summary.json", json.dumps(summary, indent=2))

        try:
            side_thread.retry(write)
        except OSError as error:
            self._note(error, self._due.step if self._due else None)
            names: list[str] = []
            with contextlib.suppress(OSError):
                names = checkpoints.committed(self.run / "checkpoints")
            raise errors.UserError(
                f"the last checkpoint cannot be written: {_reason(error)}",
                self.run,
                f"mend that and go on from {names[-1]}, the newest that is there"
                if names
                else "mend that and train again",
            ) from error
        if self.storage:
            self._finish_upload(self.storage, summary.get("status") == "interrupted")

    def _finish_upload(self, there: Storage, stops: bool) -> None:
        def bring() -> None:
            self._push(there)
            there.push_metrics(self.run)
            there.write("summary.json", self.run / "summary.json")

        try:
            if stops:
                there.pulse.limit = HURRY_SECONDS
                bring()
            else:
                side_thread.retry(bring)
        except OSError as error:
            if not stops:
                raise errors.UserError(
                    f"the end of the run cannot be uploaded: {_reason(error)}",
                    there.url,
                    f"it is in {self.run} on {socket.gethostname()}: `raytrain resume {there.url}` there uploads it",
                ) from error

    def resume(self, name: str | None, step: int, best: dict[str, Any]) -> None:
        """Goes on from a checkpoint, or from the start: what points to a later one, or to none since a kill came
        before, points to it.

        Args:
            name: the checkpoint's.
            best: the best epoch's row as of that checkpoint; empty where no epoch has ended.

        Raises:
            OSError: storage refused it.
        """
        for found in checkpoints.committed(self.run / "checkpoints"):
            with contextlib.suppress(errors.UserError, KeyError, TypeError):
                state = checkpoints.load_state(self.run / "checkpoints" / found)
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
        retention.prune(self.run / "checkpoints", self._superfluous)

    def _superfluous(self, sizes: Mapping[str, int]) -> list[str]:
        budget = None if self.settings.max_gib is None else int(self.settings.max_gib * 2**30)
        return retention.expired(sizes, self.settings.keep, self._bests, self.every, budget)

    def upload(self, there: Storage) -> None:
        """Upload the checkpoints that are not at the URL; what storage refuses is noted, once for each."""
        step = self._saved
        try:
            self._push(there)
        except Exception as error:  # pyarrow has some that are no OSError
            if step > self._tried:
                self._note(error, step)
        finally:
            with self._changed:
                self._tried = step
                self._changed.notify_all()

    def _push(self, there: Storage) -> None:
        with self._pushing:  # each request of which has an end
            step = self._saved
            if step > self._uploaded:
                there.push(self.run, self._superfluous)
            self._uploaded = step

    def _keep_uploading(self, there: Storage) -> None:
        """Upload checkpoints as they are written, and again what failed; in a side thread of its own."""
        while True:
            with self._changed:
                again = _AGAIN_SECONDS if self._uploaded < self._saved else None
                self._changed.wait_for(lambda: self._closed.is_set() or self._tried < self._saved, again)
            if self._closed.is_set():
                return
            self.upload(there)

    def _await_upload(self) -> None:
        """Wait until an upload of the newest checkpoint was tried, unless storage is silent."""
        with self._changed:
            while self.storage and self._tried < self._saved and self.storage.pulse.silence < HURRY_SECONDS:
                doing.tick()  # each request has an end
                self._changed.wait(0.1)

    def _follow(self, storage: Storage) -> None:
        """Bring rows up between two checkpoints, and a request to stop down; in a side thread of its own."""
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
        """Wait for the checkpoint under way, whatever has become of it."""
        self.background.close()
        self._await_upload()
        with self._changed:
            self._closed.set()
            self._changed.notify_all()

    def _try(self) -> None:
        """Writes the checkpoint that is due; in the side thread."""
        try:
            self._commit()
            self._say()
        except OSError as error:
            self._note(error, self._due.step if self._due else None)
        finally:
            self._written.set()

    def _commit(self) -> None:
        """Writes the checkpoint that is due and what points to it, from where an attempt before it came to."""
        due = self._due
        if due is None:
            return
        if not due.committed:
            self.log.commit()  # a checkpoint vouches for the rows before it
            checkpoints.save(self.run / "checkpoints", due.step, due.model, due.optimizer, due.state)
            due.committed = True
            self._written.set()
        folder, name, best = self.run / "checkpoints", checkpoints.name_of(due.step), due.state["progress"]["best"]
        if not os.path.isfile(folder / str(best.get("checkpoint")) / checkpoints.MANIFEST):
            best = self._best  # storage refused that one: the best of those that are there
        self._point(name, due.step, best)
        self._bests[name] = best.get("checkpoint", name)
        try:
            retention.prune(folder, self._superfluous_here)
        finally:
            with self._changed:  # now, so that what is uploaded next is not pruned meanwhile
                self._due, self._saved = None, due.step
                self._changed.notify_all()

    def _superfluous_here(self, sizes: Mapping[str, int]) -> list[str]:
        """As `_superfluous`, but for the one that is being uploaded."""
        return [name for name in self._superfluous(sizes) if not self.storage or name != self.storage.sending]

    def _note(self, error: Exception, step: int | None) -> None:
        where = "" if step is None else f"step {step}: "
        self._unsaid.append(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {where}{_reason(error)}")
        self._say()

    def _say(self) -> None:
        """Write down what storage refused, once it takes that."""
        with self._saying, contextlib.suppress(OSError):
            if self._unsaid:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.run / "logs")
                append(self.run / _REFUSALS, "".join(f"{line}\n" for line in self._unsaid))
                self._unsaid = []


def _reason(error: Exception) -> str:
    where = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
    return f"{getattr(error, 'strerror', None) or error}{where}"
