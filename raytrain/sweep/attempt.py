"""One attempt at a trial: a run of the training loop that stops at each validation.

With one worker the loop runs in a thread of this process, which has kept torch loaded and the images mapped since
the last trial; after a validation it waits for `next`. With more, it runs in Ray Train's workers, whose metrics are
read, and which wait likewise (`driver.gate`).
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import queue
import socket
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from raytrain import errors
from raytrain.checkpoint import layout
from raytrain.data import Index
from raytrain.driver import blame, endings, gate, gpu_errors, initial_weights
from raytrain.driver.interrupts import Leave
from raytrain.driver.job import Job
from raytrain.driver.worker import put_weights, work
from raytrain.experiment import Experiment
from raytrain.files import file_size, known_json
from raytrain.hooks import Hook
from raytrain.run.metrics_log import MetricsLog
from raytrain.sweep import record
from raytrain.training import memory
from raytrain.training.trainer import Trainer
from raytrain.user_code import places

_ALIVE_SECONDS = 0.5


@dataclass(frozen=True)
class Limits:
    """The limits of a trial.

    Attributes:
        memory: bytes beyond what the process has before the trial, or None.
        seconds: until a step must be finished.
        share: of the GPU's memory, where trials share one.
    """

    memory: int | None
    seconds: float
    share: float = 1.0


@dataclass(frozen=True)
class Data:
    """One way to read the data, packed once for all trials of a node: references into the object store.

    Attributes:
        threads, tasks: as in `Job`.
        baseline: what a constant answer scores on it, by the sweep's own plan.
    """

    indices: Any
    images: dict[str, Any]
    threads: int = 0
    tasks: int = 0
    baseline: dict[str, float] | None = None

    def steps_per_epoch(self, value: Experiment) -> int:
        """Return the optimizer steps of an epoch of a trial that reads this."""
        indices: dict[str, Index] = ray.get(self.indices)
        return -(-value.sampler.size(indices["train"]) // value.batch_size)


class Attempt:
    """A trial under way in this process.

    Args:
        run: its run directory, with `experiment.json`.
        value: its experiment.
        data: its images.
        limits: what it may take.
        named: whether its record names the host.
    """

    def __init__(self, run: Path, value: Experiment, data: Data, limits: Limits, named: bool = False):
        self.run, self.value, self.data, self.limits, self.named = run, value, data, limits, named
        self.skip, self._validated = 0, 0
        self._said: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._go, self._stop = threading.Semaphore(0), threading.Event()
        self._thread: threading.Thread | None = None
        self._before: list[dict[str, Any]] | None = None
        self._waiting = False
        self._trainer: Trainer | None = None
        self.spoiled = False
        """Whether this process cannot use its GPU any more."""

    @property
    def begun(self) -> bool:
        """Whether `next` was called."""
        return self._before is not None

    def next(self) -> tuple[dict[str, Any] | None, str | None]:
        """Train up to the next validation: at the end of an epoch, or inside one. Validations up to the checkpoint that
        it goes on from are reported again first, and nothing is trained meanwhile: Tune may end the trial at one.

        Returns:
            The validation's row, if there was another, and the trial's outcome, if the trial ended.

        Raises:
            RunFailed: its workers were lost; a new attempt may succeed.
        """
        if self.value.scaling.ranks > 1:
            gate.let(self.run, self._validated)
        if self._before is None:
            self._before = self._replay()
        self._start()
        kind, what = self._take()
        if kind == "lost":
            raise what
        if kind == "end":
            return None, what
        self._validated = what["step"]
        steps = self.value.all_steps(self.data.steps_per_epoch(self.value))
        # Of several workers and of an earlier attempt the step alone tells: Tune must see that the trial has ended, or
        # it might stop it.
        if what.pop("last", False) or what["step"] >= steps:
            self._before = []
            self._start()
            kind, end = self._take()
            if kind == "lost":
                raise end
            return what, end
        self._waiting = what.pop("live", False)
        return what, None

    def _start(self) -> None:
        """Start the loop, or let it train on where it waits; not before its past is reported."""
        if self._before:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._train, daemon=True, name="trial")
            self._thread.start()
        elif self._said.empty() and self._waiting:
            self._waiting = False
            self._go.release()

    def stop(self) -> None:
        """End the trial with a checkpoint, and free its memory."""
        if self._thread is not None:
            self._stop.set()
            if self._thread.is_alive() and not self._waiting:  # else it stops without being told
                (self.run / "stop").touch()
            self._go.release()
            self._thread.join()
            (self.run / gate.GO).unlink(missing_ok=True)
            if record.read(self.run).get("status") == "running":
                record.update(self.run, status="paused")
            (self.run / "stop").unlink(missing_ok=True)
        self._trainer = None
        memory.give_back()

    def settle(self) -> Path | None:
        """Return the last validation's checkpoint once it is fully written; the loop must wait after it."""
        if self._trainer is not None and self._trainer.writer is not None:
            self._trainer.writer.background.wait()
        elif self._thread is not None and self.value.scaling.ranks > 1:
            wanted = layout.name_of(self._validated)
            while self._thread.is_alive() and self._validated and not self._has(wanted):
                time.sleep(0.05)
        return layout.newest(self.run / "checkpoints")

    def _has(self, name: str) -> bool:
        """Return whether there is a checkpoint of that name, or a newer one."""
        return any(path.parent.name >= name for path in self.run.glob("checkpoints/step_*/manifest.json"))

    def _take(self) -> tuple[str, Any]:
        """Return the next message of the loop; with workers in other processes, the next row of their metrics. Before
        the loop has started, return the next row of its past."""
        if self._before:
            self._handed += 1
            return "row", self._before.pop(0)
        if self.value.scaling.ranks <= 1:
            return self._said.get()
        deadline, size = time.monotonic() + self.limits.seconds, -1
        while True:
            ended = not self._said.empty()  # checked before the rows are read: then the file is complete
            rows = self._log.rows()[self._handed :]
            if rows:
                self._handed += 1
                return "row", rows[0]
            if ended:
                return self._said.get()
            time.sleep(0.1)
            written = file_size(self.run / "metrics.jsonl")
            if written != size:
                deadline, size = time.monotonic() + self.limits.seconds, written
            if time.monotonic() > deadline:
                (self.run / "logs" / record.STUCK).write_text("no step was finished in time")
                os._exit(1)  # its workers end with this process

    def _replay(self) -> list[dict[str, Any]]:
        """Truncate the metrics to the newest checkpoint, and return the validations before it."""
        found = layout.newest(self.run / "checkpoints")
        MetricsLog(self.run / "metrics.jsonl", layout.load_state(found)["metrics_bytes"] if found else 0).close()
        self._handed, self._log = self.skip, record.Validations(self.run)
        return self._log.rows()[self.skip :]

    def _train(self) -> None:
        """Run the attempt. Its outcome is reported in the queue, never raised."""
        try:
            self._said.put(self._outcome())
        except Exception as raised:  # its record cannot be written, as on a full disk
            self._said.put(("lost", raised))

    def _outcome(self) -> tuple[str, Any]:
        found = record.read(self.run)
        record.update(
            self.run,
            status="running",
            attempts=found.get("attempts", 0) + (found.get("status") != "paused"),
            pid=os.getpid(),
            started=found.get("started") or time.time(),
            **({"host": socket.gethostname()} if self.named or "host" in found else {}),
        )
        (self.run / "stop").unlink(missing_ok=True)
        (self.run / "summary.json").unlink(missing_ok=True)
        for leftover in (self.run / "logs").glob("rank_*.json"):
            leftover.unlink()
        try:
            job = self._job()
            if self.value.scaling.ranks <= 1:
                with self._watched(), _limited(self.limits, bool(self.value.scaling.gpus_per_worker)):
                    work(job, [_Gate(self)])
            else:
                from raytrain.driver import supervise  # Ray Train, which a trial of one worker does not need

                failure = supervise.distribute(job, self._stop)
                if failure is not None:
                    raise failure
            status, error = json.loads((self.run / "summary.json").read_text())["status"], None
        except Leave:
            status, error = "interrupted", None
        except BaseException as raised:
            traceback.print_exc()
            caught = blame.of_gpu(raised)
            if isinstance(caught, endings.RunFailed) and caught.lost:
                record.update(self.run, status="interrupted")  # not paused: the next attempt counts
                return "lost", caught
            if gpu_errors.lost(caught):
                os._exit(1)  # Tune starts the trial again, in a new process, as this one cannot use the GPU any more
            self.spoiled = gpu_errors.code(caught) == gpu_errors.ASSERT
            status, error = kind_of(caught), gpu_errors.explain(caught) or _one_line(caught)
        finally:
            self._trainer = None
        if status != "interrupted":
            more: dict[str, Any] = {"peak_memory_bytes": self._peak()} if self.value.scaling.ranks <= 1 else {}
            places = [known_json(file).get("host") for file in sorted((self.run / "logs").glob("place_*.json"))]
            if self.named and (hosts := dict.fromkeys(filter(None, places))):  # of several workers
                more["host"] = ", ".join(hosts)
            record.update(self.run, status=status, error=error, ended=time.time(), **more)
        return "end", status

    def _job(self) -> Job:
        indices: dict[str, Index] = ray.get(self.data.indices)
        weights = initial_weights.pretrained(self.value, indices["train"], self.run)
        return Job(
            self.value,
            self.run.absolute(),
            self.data.indices,
            self.data.images,
            put_weights(self.value, weights),
            time.time(),
            own_output=True,
            threads=self.data.threads,
            tasks=self.data.tasks,
            watched=False,
            gated=self.value.scaling.ranks > 1,
            baseline=self.data.baseline,
        )

    def validated(self, trainer: Trainer, row: Mapping[str, Any]) -> bool:
        """Hand a validation's row over and wait until the next one is wanted; return whether to stop instead."""
        self._trainer, last = trainer, trainer.over
        faulthandler.cancel_dump_traceback_later()
        record.update(self.run, peak_memory_bytes=self._peak())
        self._said.put(("row", {**row} | ({"last": True} if last else {"live": True})))
        if not last:
            self._go.acquire()
        self.alive()
        return self._stop.is_set()

    def _peak(self) -> int:
        """Return the most memory that the trial has taken, in bytes, in this process or in an earlier one."""
        known = record.read(self.run).get("peak_memory_bytes") or 0
        return max(known, _peak(bool(self.value.scaling.gpus_per_worker)))

    def alive(self) -> None:
        """Start the clock of `_watched` anew."""
        faulthandler.dump_traceback_later(self.limits.seconds, exit=True, file=self._stuck)

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """End this process with a traceback when the loop is stuck, by a timer in C without the interpreter's lock."""
        (self.run / "logs").mkdir(exist_ok=True)
        with open(self.run / "logs" / record.STUCK, "w") as self._stuck:
            self.alive()
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()


class Ended:
    """A trial that ended before the sweep was interrupted. It reports its validations again, from its metrics."""

    spoiled = False

    def __init__(self, run: Path, status: str):
        self._rows, self._status = record.validations(run), status

    def next(self) -> tuple[dict[str, Any] | None, str | None]:
        """As `Attempt.next`."""
        row = self._rows.pop(0) if self._rows else None
        return row, None if self._rows else self._status

    def stop(self) -> None:
        """Nothing is under way."""


class _Gate(Hook):
    """Makes the trainer wait after each validation for Tune, and resets the timer of `_watched`."""

    def __init__(self, attempt: Attempt):
        self.attempt, self._said = attempt, 0.0

    def after_step(self, trainer: Trainer) -> None:
        """Reset it, twice a second."""
        now = time.monotonic()
        if now - self._said > _ALIVE_SECONDS:
            self._said = now
            self.attempt.alive()

    def after_validation_saved(self, trainer: Trainer, row: Mapping[str, Any]) -> None:
        """Wait."""
        trainer.stopping = self.attempt.validated(trainer, row) or trainer.stopping

    after_epoch_saved = after_validation_saved


def kind_of(error: BaseException) -> str:
    """Return what an error makes of a trial: infeasible (out of memory), diverged (not finite) or failed."""
    if memory.lacks(error):
        return "infeasible"
    if isinstance(error, FloatingPointError) or "FloatingPointError" in str(error):
        return "diverged"
    return "failed"


def _one_line(error: BaseException) -> str:
    if isinstance(error, (errors.UserError, endings.RunFailed)):
        return " ".join(str(error).split())[:500]
    said, line = " ".join(f"{type(error).__name__}: {error}".split())[:500], places.line_of(error)
    return f"{said} ({line})" if line else said


@contextlib.contextmanager
def _limited(limits: Limits, gpu: bool) -> Iterator[None]:
    """Cap the memory of this process from here on, and reset its peak."""
    global _clean, _worn
    memory.reset_peak(gpu)
    pages = memory.pages()
    own = pages.resident - pages.shared
    _clean = own if _clean is None else _clean
    _worn = max(0, own - _clean)
    if gpu:
        memory.cap_gpus(limits.share, limits.memory)
    with memory.capped(None if gpu else limits.memory):
        yield


_clean: int | None = None
"""Bytes of its own that this process had before its first trial."""
_worn = 0
"""Further bytes that it had before the present trial: earlier trials left them, not this one."""


def _peak(gpu: bool) -> int:
    """Return the trial's peak bytes: on the device, or of the process together with the images that it shares."""
    return memory.peak(gpu) - (0 if gpu else _worn)
