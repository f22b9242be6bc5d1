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
from raytrain.jobs import dashboard, jobs
from raytrain.jobs.dashboard import Dashboard
from raytrain.report import jobs as report


def submit(path: str, command: str, options: Submit, arguments: list[str]) -> int:
    """Send an experiment or a sweep to a cluster, and follow the job unless --no_wait is given."""
    jobs.check_storage(options.out, folder=command == "sweep")
    head = dashboard.reach(options.address)
    sent = jobs.project(Path(path), options.out)
    flags = without(arguments, "--address", "--wait", "--no_wait")
    job = jobs.submit(head, sent, options.name or Path(path).stem, command, flags, options.out)

    if not options.wait:
        print(job)
        return 0
    report.submitted(head, job, sent, options.out)
    return _followed(head, job, report.wants_stop)


def _followed(head: Dashboard, job: str, wants_stop: Callable[[], bool]) -> int:
    """Follow a job to its end and return its exit status. After Ctrl-C, ask whether to stop the job."""
    log = report.Log()
    follower, stopped_by = jobs.Follower(head, job, log.show), 0
    try:
        try:
            found = follower.to_end()
        except KeyboardInterrupt as interrupt:
            if asked(interrupt) != signal.SIGINT or not wants_stop():
                raise
            jobs.stop(head, job)
            stopped_by = 130
            found = follower.to_end()
    except KeyboardInterrupt as interrupt:
        report.left(head, job, stopping=bool(stopped_by))
        return status_after(128 + asked(interrupt))
    except jobs.Lost as error:
        report.lost(head, job, str(error))
        return 1
    log.close(found)
    return stopped_by if stopped_by and found.status == "STOPPED" else found.exit_status


def status(name: str, address: str | None, as_json: bool) -> None:
    """List the jobs of a cluster, or show one job."""
    head = dashboard.reach(address)
    found = [jobs.job(head, name)] if name else jobs.jobs(head)
    if as_json:
        listed = [dataclasses.asdict(job) for job in found]
        print(json.dumps(listed[0] if name else listed))
    else:
        report.show(found)


def logs(name: str, address: str | None, follow: bool) -> int:
    """Print a job's log, and follow it if asked to."""
    head = dashboard.reach(address)
    jobs.job(head, name)
    if follow:
        return _followed(head, name, lambda: False)
    print(jobs.log(head, name), end="")
    return 0


def stop(name: str, address: str | None) -> int | None:
    """Stop a job, wait for its end, and report the end."""
    head = dashboard.reach(address)
    found = jobs.job(head, name)
    if not found.over:
        jobs.stop(head, name)
        print("stopping after this step, with a checkpoint ...", flush=True)
        try:
            found = jobs.wait(head, name)
        except jobs.Lost as error:
            report.lost(head, name, str(error))
            return 1
    report.ended(found, jobs.log(head, name))
    return None
