"""The jobs of a cluster: their states and logs, and how to stop one."""

from __future__ import annotations

import signal
import urllib.parse
from dataclasses import dataclass
from typing import Any

from raytrain import errors
from raytrain.jobs.dashboard import Dashboard

_ENDS = ("SUCCEEDED", "FAILED", "STOPPED")


@dataclass(frozen=True)
class Job:
    """A job as the cluster reports it.

    Attributes:
        id: its submission id.
        status: PENDING, RUNNING, SUCCEEDED, FAILED or STOPPED.
        command: the `raytrain` command that runs.
        started, ended: Unix time, seconds.
        exit_code: the command's exit code, if Ray reports it.
        message: Ray's explanation of the status.
        out: the folder or URL for its run.
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
        """Whether the job has ended."""
        return self.status in _ENDS

    @property
    def exit_status(self) -> int:
        """The exit status of a command that follows the job to its end.

        It is the job's own exit status, 143 (as for SIGTERM) if the job was stopped, and 1 if it could not start.
        """
        if self.status == "SUCCEEDED":
            return 0
        if self.status == "STOPPED":
            return 143
        code = self.exit_code or 1
        return code if code > 0 else 128 - code

    @property
    def killed_by(self) -> int:
        """The signal that ended the command from outside, or 0. It handles SIGINT, SIGTERM and SIGHUP itself."""
        code = self.exit_code or 0
        return -code if code < 0 else signal.SIGKILL if code == 128 + signal.SIGKILL else 0


def jobs(dashboard: Dashboard) -> list[Job]:
    """Return the cluster's jobs, the oldest first."""
    status, answer = _asked(dashboard, "")
    if status != 200 or not isinstance(answer, list):
        raise refused(dashboard.url, reason(answer))
    found = [_job(one) for one in answer if one.get("submission_id")]
    return sorted(found, key=lambda job: job.started or 0)


def job(dashboard: Dashboard, name: str) -> Job:
    """Return one job.

    Raises:
        UserError: the cluster has no job of that name.
    """
    return _job(_of_job(dashboard, name, ""))


def log(dashboard: Dashboard, name: str) -> str:
    """Return all that a job has printed."""
    return str(_of_job(dashboard, name, "/logs")["logs"])


def stop(dashboard: Dashboard, name: str) -> None:
    """Ask a job to stop: its run ends after the current step with a checkpoint. `follow.wait` waits for the end."""
    _of_job(dashboard, name, "/stop", "POST")


def _of_job(dashboard: Dashboard, name: str, what: str, method: str = "GET") -> Any:
    status, answer = _asked(dashboard, urllib.parse.quote(name, safe="") + what, method)
    if status == 404:
        raise errors.UserError(
            f"no job {name!r} there",
            "",
            f"{errors.nearest(name, [one.id for one in jobs(dashboard)])}`raytrain status` lists the jobs",
        )
    if status != 200 or not isinstance(answer, dict):
        raise refused(dashboard.url, reason(answer))
    return answer


def _asked(dashboard: Dashboard, path: str, method: str = "GET") -> tuple[int, Any]:
    return dashboard.ask(f"/api/jobs/{path}", method)


def reason(answer: Any) -> str:
    """Return the last line of what a cluster answered."""
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


def refused(url: str, reason: str) -> errors.UserError:
    """Return the error for a request that the cluster refuses."""
    return errors.UserError(
        f"the cluster refuses it: {reason}", url, "correct what it names; dashboard.log on the head says more"
    )
