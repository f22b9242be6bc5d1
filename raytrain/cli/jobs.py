"""The commands for jobs on a cluster: submit, status, logs and stop."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Callable
from pathlib import Path

from raytrain.cli.flags.arguments import without
from raytrain.cli.flags.jobs import Submit
from raytrain.driver.interrupts import asked, status_after
from raytrain.jobs import follow, job
from raytrain.jobs.dashboard import Dashboard, reach
from raytrain.jobs.project import check_storage, project
from raytrain.jobs.submit import submit as send
from raytrain.jobs.variables import variables
from raytrain.report import jobs as report


def submit(path: str, command: str, root: str, options: Submit, arguments: list[str]) -> int:
    """Send an experiment or a sweep to a cluster, and follow the job unless --no_wait is given."""
    check_storage(options.out)
    environment = variables(options.env)
    head = reach(options.address)
    sent = project(Path(path), options.out, root)
    flags = without(arguments, "--address", "--wait", "--no_wait", "--env")
    name = send(head, sent, options.name or Path(path).stem, command, flags, options.out, environment)

    if not options.wait:
        print(name)
        return 0
    report.submitted(head, name, sent, options.out)
    return _followed(head, name, report.wants_stop)


def _followed(head: Dashboard, name: str, wants_stop: Callable[[], bool]) -> int:
    """Follow a job to its end and return its exit status. After Ctrl-C, ask whether to stop the job."""
    log = report.Log()
    follower, stopped_by = follow.Follower(head, name, log.show), 0
    try:
        try:
            found = follower.to_end()
        except KeyboardInterrupt as interrupt:
            if asked(interrupt) != signal.SIGINT or not wants_stop():
                raise
            job.stop(head, name)
            stopped_by = 130
            found = follower.to_end()
    except KeyboardInterrupt as interrupt:
        report.left(head, name, stopping=bool(stopped_by))
        return status_after(128 + asked(interrupt))
    except follow.Lost as error:
        report.lost(head, name, str(error))
        return 1
    log.close(found)
    return stopped_by if stopped_by and found.status == "STOPPED" else found.exit_status


def status(name: str, address: str | None, as_json: bool) -> None:
    """List the jobs of a cluster, or show one job."""
    head = reach(address)
    found = [job.job(head, name)] if name else job.jobs(head)
    if as_json:
        listed = [dataclasses.asdict(one) for one in found]
        print(json.dumps(listed[0] if name else listed))
    else:
        report.show(found)


def logs(name: str, address: str | None, to_end: bool) -> int:
    """Print a job's log, and follow it if asked to."""
    head = reach(address)
    job.job(head, name)
    if to_end:
        return _followed(head, name, lambda: False)
    print(job.log(head, name), end="")
    return 0


def stop(name: str, address: str | None) -> int | None:
    """Stop a job, wait for its end, and report the end."""
    head = reach(address)
    found = job.job(head, name)
    if not found.over:
        job.stop(head, name)
        print("stopping after this step, with a checkpoint ...", flush=True)
        try:
            found = follow.wait(head, name)
        except follow.Lost as error:
            report.lost(head, name, str(error))
            return 1
    report.ended(found, job.log(head, name))
    return None
