"""Supervise the workers from the driver. Ray Train runs them. When some are lost, or there is room for more, the run
resumes from its newest checkpoint with a new worker group."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.util.placement_group import placement_group, remove_placement_group

from raytrain import errors
from raytrain.checkpoint import pulse, remote
from raytrain.driver.demand import Demand, resources_needed, smaller_sizes, workers_at_most
from raytrain.driver.endings import ClusterLost, HostLost, NoRoom, RunFailed
from raytrain.driver.failures import ANSWER_SECONDS, GONE, run_failure
from raytrain.driver.interrupts import Interrupts, Leave
from raytrain.driver.job import Job, work_on_cluster
from raytrain.driver.observe import Tail
from raytrain.driver.plan import Plan
from raytrain.driver.ray_cluster import all_answer
from raytrain.driver.ray_internals import cluster_state, ray_train
from raytrain.driver.room import needed_and_free
from raytrain.driver.session import Session
from raytrain.driver.worker import work
from raytrain.files import append, file_size, known_json, read_json
from raytrain.loggers import Logger
from raytrain.run.run import Run
from raytrain.watchdog import Hung

_BREAKPOINT = os.environ.get("PYTHONBREAKPOINT", "")
"""The debugger that the user has chosen, before Ray sets its own; empty for Python's."""
_START_SECONDS = 10
_LOOK_SECONDS, _HEAD_SECONDS = 1.0, 5.0
"""Seconds between checks of the cluster, and seconds for which its head may be silent."""
_LEAVE_SECONDS = 5.0
"""Seconds for workers to stop while storage is silent: by then their state is in rank 0's mirror."""


def work_here(job: Job, tail: Tail, interrupts: Interrupts) -> None:
    """Train in this process, for a debugger.

    Raises:
        RunFailed: an error ended it.
    """
    # breakpoint() is to stop here, in the terminal. Ray has set its own debugger, which waits for another program.
    os.environ["PYTHONBREAKPOINT"] = "" if _BREAKPOINT.startswith("ray.") else _BREAKPOINT
    try:
        with tail.in_background():
            work(job, unwind=interrupts.unwind)
    except (Exception, Hung) as error:
        raise run_failure(error, job.run) from error


def distribute(job: Job, leave: threading.Event) -> RunFailed | None:
    """Train a job on Ray Train's workers, in the placement group of this process, and return what went wrong. Lost
    workers are not started again.

    Args:
        leave: when it is set, or the run's `stop` file is there, workers that have not done a step are given up.

    Raises:
        Leave: it gave up.
    """
    metrics, left = job.run / "metrics.jsonl", False
    fitting, before = _Fitting(job, shares=True), file_size(metrics)
    while fitting.is_alive():
        fitting.join(0.1)
        if not left and (leave.is_set() or (job.run / "stop").exists()) and file_size(metrics) <= before:
            left = True
            fitting.cancel()
    failure = fitting.failure
    if left and failure is not None:
        raise Leave
    if failure is not None and failure.lost and not all_answer(_nodes_of(job.run)):
        return HostLost(str(failure), failure.run, failure.rank, lost=True)
    return failure


class Supervisor:
    """Runs the workers until the run ends, and restarts them after losses.

    Args:
        planned: the plan.
        job: what each worker gets.
        session: the cluster.
        tail: the metrics, as the observer sees them.
    """

    def __init__(self, planned: Plan, job: Job, session: Session, tail: Tail, interrupts: Interrupts, observer: Logger):
        self.planned, self.job, self.session = planned, job, session
        self.tail, self.interrupts, self.observer = tail, interrupts, observer
        self.scaling, self.can_leave = planned.asked, not session.found
        self.failures, self.resizing, self.said = 0, "", ""
        self.demand = Demand()
        self.head_seen = self.looked = time.monotonic()

    def run(self) -> None:
        """Train until the run is completed or asked to stop.

        Raises:
            RunFailed: it failed by itself, or lost workers too often.
            Leave: it was asked to stop before a step was done.
        """
        with self.demand:
            while True:
                before, in_vain = remote.newest(self.job.run), False
                try:
                    self._train()
                    # `unfinished`: workers cannot write a status to silent storage.
                    resized = self.resizing and self._status() in ("interrupted", "unfinished")
                    if not resized or self.interrupts.signal:
                        return
                    self._say("resized", self.resizing)
                except NoRoom as failure:
                    in_vain = True
                    self._say("waiting", f"{failure}: {needed_and_free(self.job.experiment.scaling)}")
                    self.session.let_nodes_tell()
                except RunFailed as failure:
                    self.failures = 1 if remote.newest(self.job.run) != before else self.failures + 1
                    if not failure.lost or self.failures > self.scaling.max_failures or self.interrupts.signal:
                        raise
                    self._say("lost", str(failure))
                self._prepare_again(in_vain)

    def _train(self) -> None:
        """Run one worker group until it ends, and watch it."""
        self.resizing, self.started, self.tail.seen = "", time.monotonic(), False
        fitting = _Fitting(self.job)
        try:
            while fitting.is_alive():
                fitting.join(0.1)
                self.tail.poll()
                self.interrupts.ask()
                if self.can_leave and not self.tail.seen:
                    self.interrupts.stop_if_asked()  # no step is done: there is nothing to save
                if self.interrupts.seconds > _LEAVE_SECONDS and remote.silence(self.job.run) > pulse.HURRY_SECONDS:
                    self.interrupts.stop_if_asked()
                if time.monotonic() - self.looked > _LOOK_SECONDS:
                    self._look()
        except BaseException:
            fitting.cancel()
            fitting.join(0 if self.can_leave else 10)  # if this command made the connection, ending it ends the workers
            raise
        if fitting.failure is None:
            remote.refresh(self.job.run)
        self.tail.poll()
        if fitting.failure is not None:
            raise fitting.failure

    def _look(self) -> None:
        """Check the cluster: does its head answer, does a node of the run drain, is there room for more workers?"""
        self.looked = now = time.monotonic()
        if self.session.answers():
            self.head_seen = now = time.monotonic()
        elif now - self.head_seen > _HEAD_SECONDS:
            raise ClusterLost(GONE, self.job.run, None)
        else:
            return
        if self.resizing or self.session.own:
            return
        workers = self.job.experiment.scaling.ranks
        draining = cluster_state.draining()
        going = draining & _nodes_of(self.job.run) if draining else draining
        if going:
            self._resize(f"{len(going)} of the run's nodes {'is' if len(going) == 1 else 'are'} draining")
        elif self.scaling.elastic and self.tail.seen:
            larger = [size for size in self.planned.sizes if size > workers]
            if now - self.started <= self.scaling.resize_seconds:
                self.demand.hold(resources_needed(self.job.experiment), smaller_sizes(workers, larger))
                return
            self.started = now
            self.demand.drop()
            if any(self._room(size - workers) for size in larger):
                self._resize("there is room for more workers")

    def _resize(self, why: str) -> None:
        """Ask the workers to write a checkpoint and stop, as a signal does."""
        with contextlib.suppress(OSError):  # the directory may be unreachable: the next check retries
            (self.job.run / "stop").touch()
            remote.hasten(self.job.run)
            self.resizing = why

    def _prepare_again(self, in_vain: bool) -> None:
        """Choose the number of workers again; wait until there is room for the minimum.

        Args:
            in_vain: whether they found no room, in which case they are started again and again.
        """
        run = self.job.run
        for leftover in (*(run / "logs").glob("*_*.json"), run / "stop", run / "summary.json"):
            leftover.unlink(missing_ok=True)
        ready = False
        while True:
            with contextlib.suppress(errors.UserError):  # storage does not answer
                if not ready:
                    remote.publish(run)
                    ready = True
            for workers in self.planned.sizes if ready else ():
                with contextlib.suppress(errors.UserError):
                    value = self.planned.on(workers, self.session.resources())
                    if workers_at_most(resources_needed(value)) >= workers:
                        # `auto` was decided by the first workers.
                        value = replace(value, precision=Run(run).experiment.precision)
                        threads = replace(self.planned, experiment=value).threads
                        self.job = replace(self.job, experiment=value, threads=threads)
                        self.demand.drop()
                        if not in_vain:
                            self.observer.status(f"starting {workers} worker{'s' if workers > 1 else ''}")
                        return
            self._say("waiting", f"for room for {self.scaling.least} workers" if ready else "for storage")
            self.interrupts.stop_if_asked()
            if not self.session.answers():
                raise ClusterLost(GONE, run, None)
            if ready and not self.session.own:
                self.demand.hold(resources_needed(self.job.experiment), self.planned.sizes[-1:])
            time.sleep(1)

    def _room(self, workers: int) -> bool:
        """Return whether the cluster has room for a number of further workers, by requesting a placement group."""
        need, larger = resources_needed(self.job.experiment), workers + self.job.experiment.scaling.ranks
        try:
            self.planned.on(larger, self.session.resources())  # this also reserves a CPU for Ray Data
        except errors.UserError:
            return False
        if workers_at_most(need) < larger:
            return False
        group = placement_group([need] * workers)
        try:
            found = bool(ray.wait([group.ready()], timeout=1.0)[0])
        finally:
            remove_placement_group(group)
        if not found:
            self.session.let_nodes_tell()
        return found

    def _status(self) -> str:
        return known_json(self.job.run / "summary.json").get("status", "unfinished")

    def _say(self, event: str, why: str) -> None:
        """Show and log an event of the worker group."""
        newest = remote.newest(self.job.run)
        if event == self.said == "waiting":  # said once
            return
        self.said = event
        row = {"time": time.time(), "event": event, "why": why, "checkpoint": newest or None}
        with contextlib.suppress(OSError):
            line = json.dumps(row | {"workers": self.job.experiment.scaling.ranks})
            append(self.job.run / "logs" / "workers.jsonl", f"{line}\n")
        self.observer.workers(event, why, newest)


class _Fitting(threading.Thread):
    """Ray Train's trainer in a side thread: in the main thread it would handle SIGINT."""

    def __init__(self, job: Job, shares: bool = False):
        super().__init__(daemon=True, name="ray-train")
        self.job, self.trainer = job, _trainer(job, shares)
        self.failure: RunFailed | None = None
        self.start()

    def run(self) -> None:
        """Run it to its end."""
        try:
            self.trainer.fit()
        except BaseException as error:
            self.failure = run_failure(error, self.job.run)

    def cancel(self) -> None:
        """Cancel the trainer and its workers."""
        ray_train.cancel(self.trainer)


def _trainer(job: Job, shares: bool) -> Any:
    os.environ.setdefault("RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", str(ANSWER_SECONDS))
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(_START_SECONDS))
    os.environ.setdefault("TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S", "2")  # by default 30 s where a worker is stopped
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")  # the supervisor watches for preemption
    scaling = job.experiment.scaling
    backend = job.experiment.parallel.backend(bool(scaling.gpus_per_worker))
    return ray_train.trainer(shares)(
        work_on_cluster,
        train_loop_config={"job": job},
        scaling_config=ScalingConfig(
            num_workers=scaling.ranks,
            use_gpu=bool(scaling.gpus_per_worker),
            resources_per_worker=resources_needed(job.experiment),
            placement_strategy=scaling.placement.upper(),
        ),
        torch_config=ray_train.torch_config(backend, scaling.collective_seconds),
        run_config=RunConfig(
            name=f"train-{time.time_ns()}",
            storage_path=str(job.run / "logs"),
            # The supervisor decides on restarts and the number of workers.
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
        ),
    )


def _nodes_of(run: Path) -> set[str]:
    """Return the ids of the workers' nodes, from the files that the workers wrote."""
    remote.refresh(run)
    found = set()
    for file in (run / "logs").glob("place_*.json"):
        with contextlib.suppress(ValueError, OSError):
            found.add(read_json(file)["node"])
    return found
