"""The cause of a failed run, from the errors of Ray, torch and the ranks."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from ray.exceptions import ActorUnavailableError, OutOfMemoryError, RayActorError, RaySystemError, RayTaskError

from raytrain import errors
from raytrain.checkpoint import location, remote
from raytrain.driver import gpu_errors
from raytrain.driver.blame import last_line
from raytrain.driver.endings import NoRoom, RunFailed
from raytrain.driver.ray_internals import ray_train
from raytrain.files import known_json

ANSWER_SECONDS = 15
"""Seconds for which a worker may be silent before it counts as lost, and the placement-group timeout."""


_TORCH_WARNING = re.compile(r"(\[rank\d+\]:)?\[W\d{4} ")  # a warning of C++ is no last line
_LATE = re.compile(r"Timed out waiting (\d+)ms for (?:recv|send) operation")  # gloo's transport


GONE = "Ray has stopped: the cluster's head, or this machine's node, no longer answers"


def run_failure(error: BaseException, path: Path) -> RunFailed:
    """Return the root cause: the rank with the first error, not the ranks that then lost it."""
    remote.refresh(path)
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
        if first["error"].startswith("FloatingPointError: ") and not edit:  # raytrain's own, which says what to do
            how = f"and {errors.command('resume', location.url_of(path) or path)} takes these flags"
            return RunFailed(f"rank {first['rank']}: {first['error']}", path, first["rank"], how=how)
        return RunFailed(f"rank {first['rank']}: {first['error']}{where}", path, first["rank"], edit=edit)
    if broken := [record for record in records if record.get("gpu")]:
        first = min(broken, key=lambda record: record["time"])
        return RunFailed(f"the GPU of rank {first['rank']} failed: {first['error']}", path, first["rank"], lost=True)
    stopped = getattr(error, "controller_failure", None)
    if isinstance(stopped, ray_train.Unreachable):
        return RunFailed(str(stopped), path, None)
    start = _name(stopped)
    if start == "WorkerGroupStartupTimeoutError":
        return NoRoom("for room on the cluster", path, None, lost=True)
    if start == "WorkerGroupStartupFailedError":
        return RunFailed("a worker, or its node, was lost while it started", path, None, lost=True)
    failures: dict[int, BaseException] = getattr(error, "worker_failures", None) or {}
    gone = {rank: said for rank, failure in sorted(failures.items()) if (said := _end_of_process(failure))}
    ends = {rank: end for rank in gone if (end := gpu_errors.ended(_log(path, rank)))}
    if ends:  # one that failed by itself rather than one that waited for it
        rank, end = min(ends.items(), key=lambda one: one[1].waited)
        return RunFailed(f"rank {rank} was ended by NCCL's watchdog: {end.error}", path, rank, lost=end.lost)
    for rank, said in gone.items():
        return RunFailed(f"rank {rank} {said}{_last_words(path, rank)}", path, rank, lost=True)
    if records:  # the ranks that lost another rank report first
        first = min(records, key=lambda record: record["time"])
        if late := _LATE.search(first["error"]):
            why = f"rank {first['rank']} waited {int(late.group(1)) / 1000:g} s for another rank in a collective"
            return RunFailed(why, path, None, lost=True)
        return RunFailed(f"rank {first['rank']} lost its connection to another rank", path, None, lost=True)
    for rank, failure in sorted(failures.items()):
        return RunFailed(f"rank {rank}: {last_line(failure)}", path, rank)
    return RunFailed(last_line(error), path, None)


def of_host(error: BaseException) -> bool:
    """Return whether an actor's error says that its host was lost: Ray's head knows it, or it does not know yet why the
    actor is out of reach. Of a process that ends on a host that lives, it knows."""
    if isinstance(error, ActorUnavailableError):
        return True
    return isinstance(error, RayActorError) and "its node has died" in str(error)


def _end_of_process(failure: BaseException) -> str:
    """Return the reason for the end of a worker's process; empty if Ray reports none."""
    if _name(failure) == "WorkerHealthCheckTimeoutError":
        why = "it was stopped, a library keeps Python's lock, or its node is cut off"
        return f"did not answer for {ANSWER_SECONDS} s: {why}"
    failure = getattr(failure, "health_check_failure", failure)
    if isinstance(failure, OutOfMemoryError):
        return (
            "was ended by Ray, since its node ran out of memory: use fewer workers on a node, or smaller micro-batches"
        )
    if isinstance(failure, RayActorError | RaySystemError):
        return "is gone: its process was killed or crashed, or its node was lost"
    return ""


def end_of_actor(error: BaseException) -> str:
    """Return why an actor of Ray or its task failed, without Ray's advice."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        return str(error.cause)
    if of_host(error):
        return "its host was lost"
    killed = "worker process has died" in str(error)
    return f"its process died: {'it was killed, or crashed' if killed else last_line(error)}"


def _name(error: BaseException | None) -> str:
    """Return the name of the error's class: the classes are private to Ray."""
    return type(error).__name__


def _last_words(run: Path, rank: int) -> str:
    """Return the last line of a rank's own output."""
    said = [line.strip() for line in _log(run, rank).split("\n") if line.strip() and not _TORCH_WARNING.match(line)]
    return f"; its last line: {said[-1][:200]}" if said else ""


def _log(run: Path, rank: int) -> str:
    """Return the output of a rank's last process; empty if there is none."""
    logs = run / "logs"
    with contextlib.suppress(OSError):
        text = (logs / f"rank_{rank}.log").read_bytes()
        before = known_json(logs / f"place_{rank}.json").get("log", 0)
        return text[before if before <= len(text) else 0 :].decode(errors="replace")  # it may have been shortened
    return ""
