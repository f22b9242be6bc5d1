"""Jobs: an experiment's project sent to a cluster, its log followed to the end, its outcome, and how it is stopped.

A job is `raytrain train` or `raytrain sweep` on a node of the cluster, the head by default, in a copy of the project.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import re
import secrets
import shlex
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from raytrain import errors
from raytrain.checkpoint import location
from raytrain.driver import ray_internals
from raytrain.driver.credentials import token_file
from raytrain.jobs.dashboard import ADDRESSES, Dashboard

_LIMIT = 256 * 2**20
"""Ray refuses 512 MiB, and warns from the half: what is sent lies in the head's memory."""
_MOST_FILES = 20_000
_WALK_SECONDS = 8.0
"""Where to look through the files takes longer, there are too many."""
_LEFT_OUT = (
    *(".git", ".venv", "venv", "__pycache__", ".pytest_cache", ".ruff_cache", ".cache", "/runs"),
    *(".ray", ".ssh", ".aws", ".netrc", ".env", "auth_token"),
)
_OF_A_RUN = ("/checkpoints", "/trials", "/pool", "/logs")
_STOP_SECONDS = 300
"""What a run has, from `stop` on, to end its step and write a checkpoint; Ray's default is 3."""
_QUIET_SECONDS = 60.0
"""A stream without a line for so long is opened again: it may have been cut without a word."""
_LOST_SECONDS = 120.0
"""For so long the cluster may be away while its log is followed."""
_PAUSE_SECONDS = 1.0
_SOONEST_SECONDS, _SHARE = 0.2, 0.02
"""Whether a silent job is over is asked more often at first, for a job that is refused ends within seconds: the pauses
are a share of the time that it has been followed."""
_NO_AGENT = "No available agent"
"""What Ray says, after 10 s, where the head's dashboard agent could not open its port (52365 by default)."""
_ENDS = ("SUCCEEDED", "FAILED", "STOPPED")
# Ray's processes know their Python, and a job's shell does not: it is that of the process which runs the shell.
_ENTRYPOINT = (
    "python=$(sed -n 's|^.* \\(/.*\\)/lib/python3[^/]*/[^/]*/ray/_raylet.so$|\\1/bin/python|p' /proc/$PPID/maps "
    '| head -n 1); test -x "$python" || python=python3; exec "$python" -m raytrain.cli '
)

T = TypeVar("T")


class Lost(Exception):
    """The cluster went away while a job was followed: how the job ends is not known."""


@dataclass(frozen=True)
class Job:
    """A job as the cluster tells it.

    Attributes:
        id: its submission id.
        status: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED.
        command: what runs, for people.
        started, ended: Unix time, seconds.
        exit_code: the command's, where Ray tells it.
        message: Ray's own words on the status.
        out: where its run is kept.
    """

    id: str
    status: str
    command: str
    started: float | None = None
    ended: float | None = None
    exit_code: int | None = None
    message: str = ""
    out: str = ""

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.status in _ENDS

    @property
    def exit_status(self) -> int:
        """What a command that followed it to its end exits with: the job's own exit status; 143 where it was stopped,
        as for SIGTERM; 1 where it could not be started."""
        if self.status == "SUCCEEDED":
            return 0
        if self.status == "STOPPED":
            return 143
        code = self.exit_code or 1
        return code if code > 0 else 128 - code


@dataclass(frozen=True)
class Project:
    """What is sent.

    Attributes:
        folder: the job's working directory is a copy of it.
        experiment: the experiment's file, relative to it.
        excludes: what stays here, as lines of a .gitignore.
        files, size: how many files and bytes go.
    """

    folder: Path
    experiment: str
    excludes: tuple[str, ...]
    files: int
    size: int


def check_storage(out: str, folder: bool = False) -> None:
    """Checks that what a job writes outlives it.

    Args:
        folder: whether it must be a folder, as a sweep's.

    Raises:
        UserError: it would not, or the URL holds a secret.
    """
    if location.is_url(out):
        if urllib.parse.urlsplit(out).password is not None or re.search(r"[?&]secret_key=", out):
            raise errors.secret_in_url("--out")
        if folder:
            raise errors.not_local(out)
    elif not Path(out).is_absolute():
        raise errors.UserError(
            f"--out {f'{out} is relative' if out else 'is not given'}, and a job runs in a "
            "temporary copy of the project: its results would be lost",
            "",
            "give a folder that all nodes share (--out /shared/runs), or a URL (--out s3://bucket/runs)",
        )


def project(path: Path, out: str) -> Project:
    """The project of an experiment file: the directory that the user is in, where the file lies below it and that is
    no home directory, or else the file's folder.

    Raises:
        UserError: it is too large, or lacks the file.
    """
    file, here, home = path.resolve(), Path.cwd().resolve(), Path.home().resolve()
    inside = here in file.parents and here / "runs" not in file.parents and here not in (home, *home.parents)
    folder = here if inside else file.parent
    excludes = [*_LEFT_OUT, *(_OF_A_RUN if folder == file.parent and file.suffix == ".json" else ())]
    for kept in (Path(out), token_file()):
        if folder in kept.resolve().parents and not location.is_url(str(kept)):
            excludes.append("/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", kept.resolve().relative_to(folder).as_posix()))
    sizes = _sizes(folder, excludes)
    name = file.relative_to(folder).as_posix()
    if name not in sizes:
        raise errors.UserError(
            "this file would not be sent: it is left out of the project",
            path,
            f"mend {folder}/.gitignore or .rayignore, or put it elsewhere",
        )
    return Project(folder, name, tuple(excludes), len(sizes), sum(sizes.values()))


def _sizes(folder: Path, excludes: Sequence[str]) -> dict[str, int]:
    """The files that are sent, with their sizes in bytes."""
    sizes: dict[str, int] = {}
    stops = 0.0

    def found(path: Path) -> None:
        nonlocal stops
        stops = stops or time.monotonic() + _WALK_SECONDS
        if path.is_file():
            sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
        if len(sizes) > _MOST_FILES or time.monotonic() > stops:
            raise _Enough

    enough = False
    try:
        ray_internals.packed(folder, excludes, found)
    except _Enough:
        enough = True
    except OSError as error:
        raise errors.UserError(
            f"the project cannot be sent: {error.filename}: {error.strerror}",
            folder,
            "mend that, or name it in a .rayignore",
        ) from None
    size = sum(sizes.values())
    if size > _LIMIT:
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
        raise _project_too_large(folder, size, _LIMIT, largest)
    if enough:
        raise errors.UserError(
            f"the project has too many files, {len(sizes):,} or more",
            folder,
            "submit from the experiment's own folder, or add a .rayignore",
        )
    return sizes


class _Enough(Exception):
    """More files than are sent."""


def submit(dashboard: Dashboard, sent: Project, name: str, command: str, flags: Sequence[str], out: str) -> str:
    """Sends a project and starts `raytrain COMMAND EXPERIMENT FLAGS` in its copy on the cluster.

    Args:
        name: what the job is called after; its id has a random end.
        command: `train` or `sweep`.
        flags: the command's flags, which hold no secret: all who can ask the cluster can read them.
        out: where the run is kept.

    Returns:
        The job's id.

    Raises:
        UserError: the cluster refuses it.
    """
    job = f"raytrain-{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)[:60]}-{secrets.token_hex(3)}"
    arguments = [command, sent.experiment, *flags]
    try:
        return _client(dashboard).submit_job(
            entrypoint=_ENTRYPOINT + shlex.join([*arguments, "--address", "auto"]),
            submission_id=job,
            runtime_env={
                "working_dir": str(sent.folder),
                "excludes": list(sent.excludes),
                # Whoever starts the job reads this from the job's own environment.
                "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_SECONDS)},
            },
            metadata={"command": shlex.join(["raytrain", *arguments]), "out": out},
        )
    except (RuntimeError, ValueError, OSError) as error:
        if _NO_AGENT in str(error):
            raise errors.UserError(
                "the cluster takes no jobs: the dashboard agent of its head does not answer",
                dashboard.url,
                "wait if Ray has just started; otherwise another program has the agent's port: start the head with "
                "`--dashboard-agent-listen-port PORT` (`raytrain doctor --address auto` there says whether that is so)",
            ) from None
        raise _refused_by_cluster(dashboard.url, _reason(error)) from None


def _client(dashboard: Dashboard) -> Any:
    """Ray's own client, without its messages, and without the environment's addresses, which it puts before ours."""
    from ray.job_submission import JobSubmissionClient

    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "ray":
            logging.getLogger(name).setLevel(logging.CRITICAL)
    before = {name: os.environ.pop(name) for name in ADDRESSES if name in os.environ}
    try:
        # A header of ours, also an empty one, keeps it from a token of its own, which nobody has asked for.
        return JobSubmissionClient(dashboard.url, headers={"Authorization": "", **dashboard.headers})
    finally:
        os.environ.update(before)


def jobs(dashboard: Dashboard) -> list[Job]:
    """The cluster's jobs, the oldest first."""
    status, answer = _asked(dashboard, "")
    if status != 200 or not isinstance(answer, list):
        raise _refused_by_cluster(dashboard.url, _reason(answer))
    found = [_job(one) for one in answer if one.get("submission_id")]
    return sorted(found, key=lambda job: job.started or 0)


def job(dashboard: Dashboard, name: str) -> Job:
    """One job.

    Raises:
        UserError: there is none of that name.
    """
    return _job(_of_job(dashboard, name, ""))


def log(dashboard: Dashboard, name: str) -> str:
    """All that a job has printed."""
    return str(_of_job(dashboard, name, "/logs")["logs"])


def stop(dashboard: Dashboard, name: str) -> None:
    """Asks a job to stop, which a run does after its step, with a checkpoint; `wait` for it."""
    _of_job(dashboard, name, "/stop", "POST")


def wait(dashboard: Dashboard, name: str) -> Job:
    """Waits for a job's end.

    Raises:
        Lost: the cluster went away.
    """
    while not (found := _patiently(lambda: job(dashboard, name))).over:
        time.sleep(_PAUSE_SECONDS)
    return found


class Follower:
    """Shows what a job prints as it comes, each character once however often the connection breaks.

    Args:
        show: takes pieces of text, which may end within a line.
    """

    def __init__(self, dashboard: Dashboard, name: str, show: Callable[[str], None]):
        self.dashboard, self.name, self.show = dashboard, name, show
        self._shown = 0

    def to_end(self) -> Job:
        """Goes on to the job's end; again after an interruption, from where that came.

        Raises:
            Lost: the cluster went away.
        """
        while True:
            position = 0
            for text in _stream(self.dashboard, self.name):  # from the start on, each time
                self._show(text, position)
                position += len(text)
            found = _patiently(lambda: job(self.dashboard, self.name))
            if found.over:
                self._show(_patiently(lambda: log(self.dashboard, self.name)), 0)
                return found
            time.sleep(_PAUSE_SECONDS)

    def _show(self, text: str, position: int) -> None:
        """Shows what of a text at a position of the log is new."""
        new = text[max(0, self._shown - position) :]
        self._shown += len(new)
        self.show(new)


def _stream(dashboard: Dashboard, name: str) -> Iterator[str]:
    """What a job has printed from its start on, until the connection ends, or is silent for long; or the job is over,
    which Ray's stream says seconds later."""
    from aiohttp import ClientError

    pieces: queue.Queue[str | BaseException | None] = queue.Queue()

    async def read() -> None:
        async for text in _client(dashboard).tail_job_logs(name):
            pieces.put(text)

    def run() -> None:
        try:
            asyncio.run(read())
            pieces.put(None)
        except (OSError, RuntimeError, ClientError):  # the connection is cut, and the job is asked
            pieces.put(None)
        except BaseException as error:
            pieces.put(error)

    threading.Thread(target=run, daemon=True, name="log").start()
    began = heard = time.monotonic()
    while True:
        pause = min(max(_SHARE * (time.monotonic() - began), _SOONEST_SECONDS), _PAUSE_SECONDS)
        try:
            text = pieces.get(timeout=pause)
        except queue.Empty:
            with contextlib.suppress(errors.UserError):  # who follows the job asks again
                if time.monotonic() > heard + _QUIET_SECONDS or job(dashboard, name).over:
                    return
            continue
        if text is None:
            return
        if isinstance(text, BaseException):
            raise text
        heard = time.monotonic()
        yield text


def _patiently(ask: Callable[[], T]) -> T:
    """Asks until there is an answer.

    Raises:
        Lost: there was none for long, or the cluster no longer knows the job.
    """
    deadline = time.monotonic() + _LOST_SECONDS
    while True:
        try:
            return ask()
        except errors.NoAnswer as error:
            if time.monotonic() > deadline:
                raise Lost(f"{error.what}, for {_LOST_SECONDS:.0f} s") from None
            time.sleep(_PAUSE_SECONDS)
        except errors.UserError as error:
            raise Lost(error.what) from None


def _of_job(dashboard: Dashboard, name: str, what: str, method: str = "GET") -> Any:
    status, answer = _asked(dashboard, urllib.parse.quote(name, safe="") + what, method)
    if status == 404:
        raise errors.UserError(
            f"no job {name!r} there",
            "",
            f"{errors.nearest(name, [one.id for one in jobs(dashboard)])}`raytrain status` lists the jobs",
        )
    if status != 200 or not isinstance(answer, dict):
        raise _refused_by_cluster(dashboard.url, _reason(answer))
    return answer


def _asked(dashboard: Dashboard, path: str, method: str = "GET") -> tuple[int, Any]:
    return dashboard.ask(f"/api/jobs/{path}", method)


def _reason(answer: Any) -> str:
    lines = [line for line in str(answer).splitlines() if line.strip()]
    return lines[-1][:300] if lines else "without a word"


def _job(answer: dict[str, Any]) -> Job:
    said = answer.get("metadata") or {}
    started, ended = answer.get("start_time"), answer.get("end_time")
    return Job(
        str(answer.get("submission_id")),
        str(answer.get("status")),
        said.get("command") or str(answer.get("entrypoint")),
        started / 1000 if started else None,
        ended / 1000 if ended else None,
        answer.get("driver_exit_code"),
        str(answer.get("message") or ""),
        said.get("out") or "",
    )


def _refused_by_cluster(url: str, reason: str) -> errors.UserError:
    return errors.UserError(
        f"the cluster refuses it: {reason}", url, "correct what it names; dashboard.log on the head says more"
    )


def _project_too_large(folder: Path, size: int, limit: int, largest: Sequence[tuple[str, int]]) -> errors.UserError:
    files = errors.listed(f"{name} ({bytes / 2**20:,.1f} MiB)" for name, bytes in largest)
    return errors.UserError(
        f"the project has {size / 2**20:,.0f} MiB or more and {limit / 2**20:,.0f} MiB may be sent; "
        f"the largest files are {files}",
        folder,
        "keep data and weights on storage that all nodes share, or name them in a .rayignore",
    )
