"""Submission of a job: `raytrain train` or `raytrain sweep` on a node of the cluster, by default the head, in a copy of
the project."""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Mapping, Sequence

from raytrain import errors
from raytrain.jobs.dashboard import Dashboard
from raytrain.jobs.job import reason, refused
from raytrain.jobs.project import SEND_LESS, Project
from raytrain.run import repository

_STOP_SECONDS = 300
"""After `stop`, a run has this long to finish its step and write a checkpoint; Ray's default is 3 s."""
_NO_AGENT = "No available agent"
"""Ray's message, after 10 s, if the head's dashboard agent could not open its port (52365 by default)."""
_TOO_LARGE = "Request failed with status code 413"
# A job's shell does not know which Python runs Ray: find it from the process that started the shell.
_ENTRYPOINT = (
    "python=$(sed -n 's|^.* \\(/.*\\)/lib/python3[^/]*/[^/]*/ray/_raylet.so$|\\1/bin/python|p' /proc/$PPID/maps "
    '| head -n 1); test -x "$python" || python=python3; exec "$python" -m raytrain.cli '
)


def submit(
    dashboard: Dashboard,
    sent: Project,
    name: str,
    command: str,
    flags: Sequence[str],
    out: str,
    environment: Mapping[str, str] = {},
) -> str:
    """Send a project and start `raytrain COMMAND EXPERIMENT FLAGS` in its copy on the cluster.

    Args:
        name: the job's id begins with it and ends in random characters.
        command: `train` or `sweep`.
        flags: the command's flags. They must hold no secret: whoever can query the cluster can read them.
        out: the folder or URL for the run.
        environment: variables of the job's processes.

    Returns:
        The job's id.

    Raises:
        UserError: the cluster refuses it.
    """
    job = f"raytrain-{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)[:60]}-{secrets.token_hex(3)}"
    arguments = [command, sent.experiment, *flags]
    try:
        return dashboard.client().submit_job(
            entrypoint=_ENTRYPOINT + shlex.join([*arguments, "--address", "auto"]),
            submission_id=job,
            runtime_env={
                "working_dir": str(sent.folder),
                "excludes": list(sent.excludes),
                "env_vars": {
                    # Ray's job supervisor reads this from the job's environment.
                    "RAY_JOB_STOP_WAIT_TIME_S": str(_STOP_SECONDS),
                    **repository.to_send(str(sent.folder)),
                    **environment,
                },
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
        if _TOO_LARGE in str(error):
            size = f"{sent.size / 2**20:,.1f} MiB"
            what = f"the cluster, or a proxy before it, takes no project of {size} (HTTP status 413)"
            raise errors.UserError(what, dashboard.url, SEND_LESS) from None
        raise refused(dashboard.url, reason(error)) from None
