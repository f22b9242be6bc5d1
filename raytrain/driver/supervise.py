"""The workers' life, seen from the driver: Ray Train runs them; when some are lost, or there is room for more, the run
goes on from its newest checkpoint with those that there are."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from raytrain import errors
from raytrain.checkpoint import storage
from raytrain.driver import ray_internals
from raytrain.driver.interrupts import Interrupts, Leave
from raytrain.driver.observe import Tail
from raytrain.driver.plan import Plan
from raytrain.driver.session import Session, answers
from raytrain.driver.worker import Job, to_edit, work, work_on_cluster
from raytrain.experiment import Experiment
from raytrain.files import append, known_json, read_json
from raytrain.loggers import Logger
from raytrain.run.run import Run
from raytrain.user_code import sources
from raytrain.watchdog import Hung

_ANSWER_SECONDS, _START_SECONDS = 15, 10
"""How long a worker may be silent before it is taken for lost, and how long to wait for room that there seems to be."""
_LOOK_SECONDS, _HEAD_SECONDS = 1.0, 5.0
"""How often to look at the cluster, and how long its head may be silent."""
_LEAVE_SECONDS = 5.0
"""How long workers may take to stop while storage is silent: what they have is in rank 0's mirror by then."""


_TORCH_WARNING = re.compile(r"(\[rank\d+\]:)?\[W\d{4} ")  # what C++ warns of is no last word

_GONE = "Ray has ended under it: the cluster's head, or this machine's node, does not answer any more"


class RunFailed(Exception):
    """A run that started and did not end well.

    Attributes:
        run: its directory.
        rank: the rank whose error came first, or None where no rank could say.
        lost: whether no error of the training itself is known, only that workers were lost.
        edit: the user's file to correct, with the line where that is known; empty where none is known to be at fault.
    """

    def __init__(self, message: str, run: Path, rank: int | None, lost: bool = False, edit: str = ""):
        super().__init__(message)
        self.run, self.rank, self.lost, self.edit = run, rank, lost, edit


class _NoRoom(RunFailed):
    """Workers that found no room in time."""


def work_here(job: Job, tail: Tail, interrupts: Interrupts) -> None:
    """Trains in this process, where a debugger can follow.

    Raises:
        RunFailed: an error ended it.
    """
    try:
        with tail.in_background():
            work(job, unwind=interrupts.unwind)
    except (Exception, Hung) as error:
        raise _failure(error, job.run) from error


def distribute(job: Job, leave: threading.Event) -> RunFailed | None:
    """Train a job on Ray Train's workers, in the placement group of this process, and return what went wrong. Lost
    workers are not started again.

    Args:
        leave: when it is set, or the run's `stop` file is there, workers that have not done a step are given up.

    Raises:
        Leave: they were.
    """
    fitting, before, left = _Fitting(job, shares=True), _rows(job.run), False
    while fitting.is_alive():
        fitting.join(0.1)
        if not left and (leave.is_set() or (job.run / "stop").exists()) and _rows(job.run) <= before:
            left = True
            fitting.cancel()
    if left and fitting.failure is not None:
        raise Leave
    return fitting.failure


def _rows(run: Path) -> int:
    """Return the bytes of a run's metrics."""
    try:
        return (run / "metrics.jsonl").stat().st_size
    except OSError:
        return 0


class Supervisor:
    """Keeps a run going to its end.

    Args:
        planned: its plan.
        job: what each worker gets.
        session: the cluster.
        tail: the metrics, as the observer sees them.
    """

    def __init__(self, planned: Plan, job: Job, session: Session, tail: Tail, interrupts: Interrupts, observer: Logger):
        self.planned, self.job, self.session = planned, job, session
        self.tail, self.interrupts, self.observer = tail, interrupts, observer
        self.scaling, self.can_leave = planned.asked, not session.found
        self.failures, self.resizing, self.said = 0, "", ""
        self.demand = _Demand()
        self.head_seen = self.looked = time.monotonic()

    def run(self) -> None:
        """Trains until the run is completed, or was asked to stop.

        Raises:
            RunFailed: it failed by itself, or lost workers too often.
            Leave: it was asked to stop before a step was done.
        """
        with self.demand:
            while True:
                before = storage.newest(self.job.run)
                try:
                    self._train()
                    # Workers whose storage is silent leave no status there.
                    resized = self.resizing and self._status() in ("interrupted", "unfinished")
                    if not resized or self.interrupts.signal:
                        return
                    self._say("resized", self.resizing)
                except _NoRoom as failure:
                    self._say("waiting", str(failure))
                    self.session.let_nodes_tell()
                except RunFailed as failure:
                    self.failures = 1 if storage.newest(self.job.run) != before else self.failures + 1
                    if not failure.lost or self.failures > self.scaling.max_failures or self.interrupts.signal:
                        raise
                    self._say("lost", str(failure))
                self._prepare_again()

    def _train(self) -> None:
        """Runs the workers until they end, and looks after them."""
        self.resizing, self.started, self.tail.seen = "", time.monotonic(), False
        fitting = _Fitting(self.job)
        try:
            while fitting.is_alive():
                fitting.join(0.1)
                self.tail.poll()
                self.interrupts.ask()
                if self.can_leave and not self.tail.seen:
                    self.interrupts.stop_if_asked()  # no step is done: there is nothing to save
                if self.interrupts.seconds > _LEAVE_SECONDS and storage.silence(self.job.run) > storage.HURRY_SECONDS:
                    self.interrupts.stop_if_asked()
                if time.monotonic() - self.looked > _LOOK_SECONDS:
                    self._look()
        except BaseException:
            fitting.cancel()
            fitting.join(0 if self.can_leave else 10)  # where the connection is ours, its end is theirs
            raise
        if fitting.failure is None:
            storage.refresh(self.job.run)
        self.tail.poll()
        if fitting.failure is not None:
            raise fitting.failure

    def _look(self) -> None:
        """Looks at the cluster: is it still there, does a node of ours go, is there room for more workers?"""
        self.looked = now = time.monotonic()
        if self.session.answers():
            self.head_seen = now = time.monotonic()
        elif now - self.head_seen > _HEAD_SECONDS:
            raise RunFailed(_GONE, self.job.run, None)
        else:
            return
        if self.resizing or self.session.own:
            return
        workers = self.job.experiment.scaling.ranks
        if (going := ray_internals.draining()) and (going := going & _nodes_of(self.job.run)):
            self._resize(f"{len(going)} of the run's nodes will go")
        elif self.scaling.elastic and self.tail.seen:
            larger = [size for size in self.planned.sizes if size > workers]
            if now - self.started <= self.scaling.resize_seconds:
                self.demand.hold(_need(self.job.experiment), _steps(workers, larger))
                return
            self.started = now
            self.demand.drop()
            if any(self._room(size - workers) for size in larger):
                self._resize("there is room for more workers")

    def _resize(self, why: str) -> None:
        """Asks the workers for a checkpoint and an end, as a signal does."""
        with contextlib.suppress(OSError):  # the directory may be away: the next look will find the same
            (self.job.run / "stop").touch()
            storage.hasten(self.job.run)
            self.resizing = why

    def _prepare_again(self) -> None:
        """Chooses the number of workers anew, waiting until there is room for the fewest."""
        run = self.job.run
        for leftover in (*(run / "logs").glob("*_*.json"), run / "stop", run / "summary.json"):
            leftover.unlink(missing_ok=True)
        ready = False
        while True:
            with contextlib.suppress(errors.UserError):  # which storage is that does not answer
                if not ready:
                    storage.publish(run)
                    ready = True
            for workers in self.planned.sizes if ready else ():
                with contextlib.suppress(errors.UserError):
                    value = self.planned.on(workers, self.session.resources())
                    if _capacity(_need(value)) >= workers:
                        # `auto` was decided by the first workers.
                        value = replace(value, precision=Run(run).experiment.precision)
                        self.job = replace(self.job, experiment=value)
                        self.demand.drop()
                        self.observer.status(f"starting {workers} worker{'s' if workers > 1 else ''} again")
                        return
            self._say("waiting", f"for room for {self.scaling.least} workers" if ready else "for storage")
            self.interrupts.stop_if_asked()
            if not self.session.answers():
                raise RunFailed(_GONE, run, None)
            if ready and not self.session.own:
                self.demand.hold(_need(self.job.experiment), self.planned.sizes[-1:])
            time.sleep(1)

    def _room(self, workers: int) -> bool:
        """Whether the cluster has room for so many workers more, by asking for it."""
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group

        need, larger = _need(self.job.experiment), workers + self.job.experiment.scaling.ranks
        try:
            self.planned.on(larger, self.session.resources())  # Ray Data's CPU is no worker's
        except errors.UserError:
            return False
        if _capacity(need) < larger:
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
        """Shows and keeps what became of the workers."""
        newest = storage.newest(self.job.run)
        if event == "waiting" == self.said:
            return
        self.said = event
        row = {"time": time.time(), "event": event, "why": why, "checkpoint": newest or None}
        with contextlib.suppress(OSError):
            line = json.dumps(row | {"workers": self.job.experiment.scaling.ranks})
            append(self.job.run / "logs" / "workers.jsonl", f"{line}\n")
        self.observer.workers(event, why, newest)


class _Demand(contextlib.AbstractContextManager["_Demand"]):
    """Tells a cluster that can grow which workers the run would like, by placement groups that nothing runs in.

    An autoscaler counts pending groups as demand. They are this run's own, and Ray removes them when the driver's job
    ends, also after SIGKILL. `request_resources` is one value for the whole cluster, and stays until it is overwritten.
    """

    def __init__(self) -> None:
        self._wanted: list[int] | None = None
        self._groups: list[Any] = []

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):  # the cluster may be gone
            self.drop()

    def hold(self, need: dict[str, float], counts: list[int]) -> None:
        """Keep the demand pending until `drop`; call it once a second.

        A group that found room is removed at once, since it would keep others, Ray Data too, from using that room.

        Args:
            need: what one worker asks Ray for.
            counts: the workers of each group; a group finds room for all of its workers, or for none.
        """
        from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

        if self._wanted != counts:
            self.drop()
            self._wanted = counts
            self._groups = [placement_group([need] * count) for count in counts]
        elif self._groups:
            states = {name: found["state"] for name, found in placement_group_table().items()}
            placed = [group for group in self._groups if states.get(group.id.hex()) == "CREATED"]
            self._groups = [group for group in self._groups if group not in placed]
            for group in placed:
                remove_placement_group(group)

    def drop(self) -> None:
        """End the demand."""
        from ray.util.placement_group import remove_placement_group

        groups, self._groups, self._wanted = self._groups, [], None
        for group in groups:
            remove_placement_group(group)


class _Fitting(threading.Thread):
    """Ray Train's trainer in a side thread: in the main one it would take SIGINT for itself."""

    def __init__(self, job: Job, shares: bool = False):
        super().__init__(daemon=True, name="ray-train")
        self.job, self.trainer = job, _trainer(job, shares)
        self.failure: RunFailed | None = None
        self.start()

    def run(self) -> None:
        """Runs it to its end."""
        try:
            self.trainer.fit()
        except BaseException as error:
            self.failure = _failure(error, self.job.run)

    def cancel(self) -> None:
        """Ends it, with all that it started."""
        ray_internals.cancel(self.trainer)


def _work_on_cluster(settings: dict[str, Any]) -> None:
    value = settings["job"].experiment
    if not (value.compile or value.parallel.sharded):  # torch's sharded tensors import the compiler themselves
        ray_internals.defer_compiler()
    work_on_cluster(settings)


def _trainer(job: Job, shares: bool) -> Any:
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    os.environ.setdefault("RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S", str(_ANSWER_SECONDS))
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", str(_START_SECONDS))
    os.environ.setdefault("TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S", "2")  # half a minute where a worker is stopped
    os.environ.setdefault("RAY_TRAIN_ENABLE_PREEMPTION_WATCHER", "0")  # it is the supervisor who looks
    scaling = job.experiment.scaling
    return ray_internals.trainer(shares)(
        _work_on_cluster,
        train_loop_config={"job": job},
        scaling_config=ScalingConfig(
            num_workers=scaling.ranks,
            use_gpu=bool(scaling.gpus_per_worker),
            resources_per_worker=_need(job.experiment),
            placement_strategy=scaling.placement.upper(),
        ),
        torch_config=ray_internals.torch_config(job.experiment.parallel.backend(bool(scaling.gpus_per_worker))),
        run_config=RunConfig(
            name=f"train-{time.time_ns()}",
            storage_path=str(job.run / "logs"),
            # Whether to go on, and with how many, is the supervisor's decision.
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
        ),
    )


def _need(value: Experiment) -> dict[str, float]:
    """What each worker asks Ray for."""
    scaling = value.scaling
    need = {"CPU": scaling.cpus_per_worker or 1.0}
    return need | ({"GPU": scaling.gpus_per_worker} if scaling.gpus_per_worker else {})


def _steps(workers: int, larger: list[int]) -> list[int]:
    """Return how many workers each larger size adds to the one before it.

    Args:
        larger: the sizes, most first.
    """
    sizes = [workers, *reversed(larger)]
    return [after - before for before, after in pairwise(sizes)]


def _capacity(need: dict[str, float]) -> int:
    """How many workers the nodes have room for that are there and are not about to go."""
    import ray

    going = ray_internals.draining()
    return sum(
        int(min(node["Resources"].get(kind, 0.0) / count for kind, count in need.items()))
        for node in ray.nodes()
        if node["Alive"]
        and node["NodeID"] not in going
        # The head takes a node for alive until half a minute after its end.
        and answers(node["NodeManagerAddress"], node["NodeManagerPort"])
    )


def _nodes_of(run: Path) -> set[str]:
    """The ids of the nodes that the workers said they are on."""
    storage.refresh(run)
    found = set()
    for file in (run / "logs").glob("place_*.json"):
        with contextlib.suppress(ValueError, OSError):
            found.add(read_json(file)["node"])
    return found


def _failure(error: BaseException, path: Path) -> RunFailed:
    """The root cause: the rank whose error came first, not those that then missed it."""
    storage.refresh(path)
    found = [known_json(file) for file in (path / "logs").glob("rank_*.json")]
    records = [record for record in found if record.keys() >= {"time", "rank", "lost", "error", "at"}]
    if hung := [record for record in records if record.get("hung")]:
        first = min(hung, key=lambda record: record["rank"])
        return RunFailed(f"rank {first['rank']} {first['error']} ({first['at']})", path, first["rank"], lost=True)
    own = [record for record in records if not record["lost"]]
    if own:
        first = min(own, key=lambda record: record["time"])
        where = f" ({first['at']})" if first["at"] else ""
        edit = str(first.get("edit", ""))
        return RunFailed(f"rank {first['rank']}: {first['error']}{where}", path, first["rank"], edit=edit)
    if broken := [record for record in records if record.get("gpu")]:
        first = min(broken, key=lambda record: record["time"])
        return RunFailed(f"the GPU of rank {first['rank']} failed: {first['error']}", path, first["rank"], lost=True)
    stopped = getattr(error, "controller_failure", None)
    if isinstance(stopped, ray_internals.Unreachable):
        return RunFailed(str(stopped), path, None)
    start = _name(stopped)
    if start == "WorkerGroupStartupTimeoutError":
        return _NoRoom("for room on the cluster", path, None, lost=True)
    if start == "WorkerGroupStartupFailedError":
        return RunFailed("a worker, or its node, was lost while it started", path, None, lost=True)
    failures: dict[int, BaseException] = getattr(error, "worker_failures", None) or {}
    for rank, failure in sorted(failures.items()):
        if said := _end_of_process(failure):
            return RunFailed(f"rank {rank} {said}{_last_words(path, rank)}", path, rank, lost=True)
    if records:  # those who miss another one tell it first
        first = min(records, key=lambda record: record["time"])
        return RunFailed(f"rank {first['rank']} lost its connection to another rank", path, None, lost=True)
    for rank, failure in sorted(failures.items()):
        return RunFailed(f"rank {rank}: {last_line(failure)}", path, rank)
    return RunFailed(last_line(error), path, None)


def _end_of_process(failure: BaseException) -> str:
    """What ended a worker's process, where that is what Ray says."""
    from ray.exceptions import OutOfMemoryError, RayActorError, RaySystemError

    if _name(failure) == "WorkerHealthCheckTimeoutError":
        why = "it was stopped, a library keeps Python's lock, or its node is cut off"
        return f"did not answer for {_ANSWER_SECONDS} s: {why}"
    failure = getattr(failure, "health_check_failure", failure)
    if isinstance(failure, OutOfMemoryError):
        return (
            "was ended by Ray, since its node ran out of memory: take fewer workers on a node, or smaller micro-batches"
        )
    if isinstance(failure, RayActorError | RaySystemError):
        return "is gone: its process was killed or crashed, or its node was lost"
    return ""


def _name(error: BaseException | None) -> str:
    """Its class's name: the classes themselves are Ray's private ones."""
    return type(error).__name__


def _last_words(run: Path, rank: int) -> str:
    """The last line of a rank's own output."""
    with contextlib.suppress(OSError):
        lines = (run / "logs" / f"rank_{rank}.log").read_text(errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip() and not _TORCH_WARNING.match(line)]
        if said:
            return f"; its last line: {said[-1][:200]}"
    return ""


def failed_here(error: BaseException, path: Path) -> RunFailed:
    """Return the failure for an exception in the driver, with the user's line where it came from the user's code."""
    at = sources.line_of(error)
    edit = to_edit(error, at)
    return RunFailed(last_line(error) + (f" ({at})" if edit else ""), path, None, edit=edit)


def last_line(error: BaseException) -> str:
    """An error's kind and the last line of its text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"
