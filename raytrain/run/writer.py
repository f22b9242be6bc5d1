"""Writing a run's checkpoints in a side thread, the files that name the best and the last, and retention."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from raytrain import errors
from raytrain.checkpoint import checkpoints, layout, retention, side_thread
from raytrain.checkpoint.pulse import HURRY_SECONDS, POLL_SECONDS
from raytrain.checkpoint.storage import Storage
from raytrain.experiment import Checkpoint
from raytrain.files import append, known_json, write_atomically
from raytrain.run.metrics_log import NOTES, MetricsLog
from raytrain.watchdog import SETTLING, doing

_CHECKED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_REFUSALS = "logs/checkpoints.log"
_WAIT = 0.005
"""Share of its time that training may wait for checkpoints. Unused wait budget accumulates."""
_LONGEST = 10.0
"""Seconds that training waits for one checkpoint at most: storage may hang."""
_AGAIN_SECONDS = 30.0
"""Seconds until a failed upload is retried, unless a newer checkpoint is uploaded before."""


@dataclass
class _Due:
    """A checkpoint that is to be written, and whether it is committed."""

    step: int
    model: dict[str, Any]
    optimizer: dict[str, Any]
    state: dict[str, Any]
    committed: bool = False


class CheckpointWriter:
    """Write a run's checkpoints in a side thread, one at a time, on rank 0.

    A failed write does not end the run: the error goes to `logs/checkpoints.log`, earlier checkpoints stay, and the
    next one is written when it is due. Only the last checkpoint of a run must be written.

    Another side thread uploads the checkpoints of a run at a URL. Training waits for the upload before it copies the
    next state, but not while storage is silent.

    Args:
        run: the run's directory.
        log: the metrics log, committed before each checkpoint.
        settings: the retention.
        epoch: steps of an epoch.
        storage: uploads the run to its URL; None where the run is in a directory.

    Attributes:
        began: start of the time of which training may wait a share for checkpoints; `time.monotonic()`, seconds.
        finite: names of weights of which a checkpoint holds no infinity or NaN: no run could go on from it.
    """

    def __init__(self, run: Path, log: MetricsLog, settings: Checkpoint, epoch: int, storage: Storage | None = None):
        self.run, self.log, self.settings = run, log, settings
        self.every = None if settings.keep_every is None else settings.keep_every * epoch
        self.background = side_thread.Background()
        self._due: _Due | None = None
        self._written, self.began, self._waited = threading.Event(), time.monotonic(), 0.0
        self._written.set()
        self.finite: Collection[str] = ()
        self._best: dict[str, Any] = {}
        self._bests: dict[str, str] = {}
        self._unsaid: list[str] = []
        self._saying, self._pushing, self._changed = threading.Lock(), threading.Lock(), threading.Condition()
        self._saved = self._tried = self._uploaded = 0  # the newest checkpoint's step that is here, was sent, is there
        self.storage, self._closed = storage, threading.Event()
        if storage:
            threading.Thread(target=self._follow, args=[storage], daemon=True, name="storage").start()
            threading.Thread(target=self._keep_uploading, args=[storage], daemon=True, name="uploads").start()

    def start(
        self,
        step: int,
        model: dict[str, Any],
        optimizer: dict[str, Any],
        state: dict[str, Any],
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Start to write copies of a training state. Call `wait` before making them, so that memory holds one set.

        Args:
            ready: waits until the copies have their values.
        """
        self._due, self._ready = _Due(step, model, optimizer, state), ready
        self._written.clear()
        self.background.start(self._write_due)

    def wait(self) -> None:
        """Wait until the previous checkpoint is written or has failed, release its tensors, and wait for its upload."""
        self.background.wait()
        self._due = None
        self._wait_for_upload()

    def settle(self) -> None:
        """Wait, just before the weights change, for the checkpoint that is being written: this bounds the lost work to
        one checkpoint interval. Training waits at most 0.5 % of its time."""
        if not self._written.is_set():
            doing.at(SETTLING)
            now = time.monotonic()
            left = _WAIT * (now - self.began) - self._waited
            self._written.wait(min(max(left, 0.0), _LONGEST))
            self._waited += time.monotonic() - now
            self._written.set()  # otherwise the following steps would wait as well

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the last checkpoint if it is not committed yet, all metrics, and the summary.

        Raises:
            UserError: the disk or the storage at the URL refused them through all retries. A run that was asked to
                stop does not retry uploads: files that are not uploaded stay in the mirror.
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
            what = f"the last checkpoint cannot be written: {_reason(error)}"
            raise errors.UserError(what, self.run, self._way_on()) from error
        if self.storage:
            self._finish_upload(self.storage, summary.get("status") == "interrupted")

    def _way_on(self) -> str:
        """Return how a run whose last checkpoint was refused goes on, as `raytrain resume` will take it."""
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = layout.committed(self.run / "checkpoints")
        if names and (self.storage or os.path.isfile(self.run / "metrics.jsonl")):
            return f"correct that; a resume goes on from {names[-1]}, the newest that is there"
        if not os.path.isdir(self.run):
            return "bring the folder back, with its disk or from a copy, and resume; without it, train again"
        if names or (not self.storage and known_json(self.run / "last.json").get("checkpoint")):
            return "put metrics.jsonl and checkpoints back from a copy, and resume; without one, train again"
        return "correct that; a resume begins anew, since no checkpoint is there"

    def _finish_upload(self, there: Storage, stops: bool) -> None:
        def upload() -> None:
            self._push(there)
            there.push_metrics(self.run)
            there.write("summary.json", self.run / "summary.json")

        try:
            if stops:
                there.pulse.limit = HURRY_SECONDS
                upload()
            else:
                side_thread.retry(upload)
        except OSError as error:
            if not stops:
                raise errors.UserError(
                    f"the end of the run cannot be uploaded: {_reason(error)}",
                    there.url,
                    f"it is in {self.run} on {socket.gethostname()}: "
                    f"{errors.command('resume', there.url)} there uploads it",
                ) from error

    def resume(self, name: str | None, step: int, best: dict[str, Any]) -> None:
        """Continue from a checkpoint, or from the start: update `best.json` and `last.json`, which may name a later
        checkpoint, or lack this one after a kill, and apply the retention.

        Args:
            name: the checkpoint's.
            best: the best epoch's row as of that checkpoint; empty where no epoch has ended.

        Raises:
            OSError: storage refused it.
        """
        for found in layout.committed(self.run / "checkpoints"):
            with contextlib.suppress(errors.UserError, KeyError, TypeError):
                state = layout.load_state(self.run / "checkpoints" / found)
                self._bests[found] = state["progress"]["best"]["checkpoint"]
        if not best:
            (self.run / "best.json").unlink(missing_ok=True)
        if name is None:
            (self.run / "last.json").unlink(missing_ok=True)
        else:
            self._point(name, step, best)
        if self.storage:
            self.storage.drop_after(step if name else -1)
            self.storage.push(self.run, self._expired)
        retention.prune(self.run / "checkpoints", self._expired)

    def forget_best(self) -> None:
        """Let `best.json` wait for a validation from here on."""
        self._best = {}
        (self.run / "best.json").unlink(missing_ok=True)

    def _expired(self, sizes: Mapping[str, int]) -> list[str]:
        budget = None if self.settings.max_gib is None else int(self.settings.max_gib * 2**30)
        return retention.expired(sizes, self.settings.keep, self._bests, self.every, budget)

    def upload(self, there: Storage) -> None:
        """Upload the checkpoints that are not at the URL. Log an error once for each checkpoint."""
        step = self._saved
        try:
            self._push(there)
        except Exception as error:  # some errors of pyarrow are not an OSError
            if step > self._tried:
                self._note(error, step)
        finally:
            with self._changed:
                self._tried = step
                self._changed.notify_all()

    def _push(self, there: Storage) -> None:
        with self._pushing:  # held for a bounded time: each request has a timeout
            step = self._saved
            if step > self._uploaded:
                there.push(self.run, self._expired)
            self._uploaded = step

    def _keep_uploading(self, there: Storage) -> None:
        """Upload checkpoints as they are written, and retry failed uploads, in a side thread."""
        while True:
            with self._changed:
                again = _AGAIN_SECONDS if self._uploaded < self._saved else None
                self._changed.wait_for(lambda: self._closed.is_set() or self._tried < self._saved, again)
            if self._closed.is_set():
                return
            self.upload(there)

    def _wait_for_upload(self) -> None:
        """Wait until an upload of the newest checkpoint was attempted, unless storage does not answer."""
        with self._changed:
            while self.storage and self._tried < self._saved and self.storage.pulse.silence < HURRY_SECONDS:
                doing.tick()  # each request has a timeout
                self._changed.wait(0.1)

    def _follow(self, storage: Storage) -> None:
        """Upload rows between two checkpoints and download a request to stop, in a side thread."""
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
        """Write `last.json`, and `best.json` where the best checkpoint has changed."""
        if best != self._best:
            write_atomically(self.run / "best.json", json.dumps(best, indent=2))
            self._best = best
        last = {"checkpoint": name, "step": step}
        write_atomically(self.run / "last.json", json.dumps(last, indent=2))

    def close(self) -> None:
        """Wait until the current checkpoint and its upload are done or have failed, and end the side threads."""
        self.background.close()
        self._wait_for_upload()
        with self._changed:
            self._closed.set()
            self._changed.notify_all()

    def _write_due(self) -> None:
        """Write the checkpoint that is due, in the side thread."""
        try:
            self._ready()
            self._check_finite()
            self._commit()
            self._say()
        except OSError as error:
            self._note(error, self._due.step if self._due else None)
        finally:
            self._written.set()

    def _check_finite(self) -> None:
        """Check the weights of the checkpoint that is due.

        Raises:
            FloatingPointError: some are not finite; the checkpoint is not written. `wait` and `finish` raise it again.
        """
        due = self._due
        if due is None:
            return
        for name, weights in ((name, due.model.get(name)) for name in self.finite):
            if isinstance(weights, torch.Tensor) and weights.dtype in _CHECKED and not weights.isfinite().all():
                self._due = None
                what = f"{name} became infinite or not a number by step {due.step}, though the losses were finite"
                raise errors.diverged(what, layout.committed(self.run / "checkpoints"))

    def _commit(self) -> None:
        """Write the checkpoint that is due and its pointers, and prune. A retry does not repeat a finished commit."""
        due = self._due
        if due is None:
            return
        if not due.committed:
            self.log.commit()  # a checkpoint requires the rows before it
            checkpoints.save(self.run / "checkpoints", due.step, due.model, due.optimizer, due.state)
            due.committed = True
            self._written.set()
        folder, name, best = self.run / "checkpoints", layout.name_of(due.step), due.state["progress"]["best"]
        if not os.path.isfile(folder / str(best.get("checkpoint")) / layout.MANIFEST):
            best = self._best  # that one was not written: keep the previous best
        self._point(name, due.step, best)
        self._bests[name] = best.get("checkpoint", name)
        try:
            retention.prune(folder, self._expired_locally)
        finally:
            with self._changed:  # after pruning, so that the next upload is not pruned
                self._due, self._saved = None, due.step
                self._changed.notify_all()

    def _expired_locally(self, sizes: Mapping[str, int]) -> list[str]:
        """Return the expired checkpoints without the one that is being uploaded."""
        return [name for name in self._expired(sizes) if not self.storage or name != self.storage.sending]

    def _note(self, error: Exception, step: int | None) -> None:
        where = "" if step is None else f"step {step}: "
        self._unsaid.append(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {where}{_reason(error)}")
        self._say()

    def _say(self) -> None:
        """Write the pending errors to the log, if the disk accepts them; else keep them."""
        with self._saying, contextlib.suppress(OSError):
            if self._unsaid:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.run / "logs")
                append(self.run / _REFUSALS, "".join(f"{line}\n" for line in self._unsaid))
                self._unsaid = []


def _reason(error: Exception) -> str:
    where = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
    return f"{getattr(error, 'strerror', None) or error}{where}"
