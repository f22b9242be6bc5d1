"""The commands for jobs on a cluster: submit, status, logs and stop."""

from __future__ import annotations

import dataclasses
import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from raytrain import errors
from raytrain.cli.parsing import (
    first_argument,
    parse,
    show_usage,
    without,
)
from raytrain.cli.sweep import parse_sweep
from raytrain.cli.train import parse_training
from raytrain.driver.fit import Options
from raytrain.driver.interrupts import asked, status_after

if TYPE_CHECKING:
    from raytrain.jobs.dashboard import Dashboard


_JOB = tyro.conf.arg(metavar="JOB", help="The job's id, which `submit` prints.")


@dataclass(frozen=True)
class Submit(Options):
    """How a job is sent to a cluster, and where its run is kept."""

    out: str = ""
    """Folder that all nodes share, or a URL, in which the run's directory is made."""
    address: str | None = None
    """URL of the cluster's dashboard, such as http://HOST:8265; by default RAY_API_SERVER_ADDRESS or RAY_ADDRESS."""
    wait: bool = True
    """Follow the job to its end; --no_wait prints its id and returns."""


def submit_command(arguments: list[str]) -> int:
    """Train on a cluster: raytrain submit EXPERIMENT|SWEEP --address URL [--field value ...] [--no_wait]"""
    usage, path = "raytrain submit EXPERIMENT", first_argument(arguments)
    if path is None:
        show_usage(
            arguments,
            usage,
            "Sends an experiment's or a sweep's file, with the project around it, to a cluster (--address URL of its "
            "dashboard), runs it there with the flags given, follows it, and ends with its exit status: 143 where it "
            "was stopped. --out is a folder that all nodes share, or a URL. --no_wait prints the job's id and returns.",
        )
        return 0
    if Path(path).is_dir():
        raise errors.UserError(
            "a job takes a file, and this is a directory", path, "name the experiment's or the sweep's file"
        )
    from raytrain.sweep.sweep import is_sweep

    command = "sweep" if is_sweep(path) else "train"
    _, options, _ = (parse_sweep if command == "sweep" else parse_training)(arguments, "submit", Submit())
    from raytrain.jobs import dashboard, jobs
    from raytrain.report import jobs as report

    jobs.check_storage(options.out, folder=command == "sweep")
    head = dashboard.reach(options.address)
    sent = jobs.project(Path(path), options.out)
    flags = without(arguments[1:], "--address", "--wait", "--no_wait")
    job = jobs.submit(head, sent, options.name or Path(path).stem, command, flags, options.out)

    if not options.wait:
        print(job)
        return 0
    report.submitted(head, job, sent, options.out)
    return _followed(head, job, report.wants_stop)


def _followed(head: Dashboard, job: str, wants_stop: Callable[[], bool]) -> int:
    """Follows a job to its end; after Ctrl-C it is asked whether the job is to be stopped."""
    from raytrain.jobs import jobs
    from raytrain.report import jobs as report

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


def status_command(arguments: list[str]) -> None:
    """Look at jobs: raytrain status [JOB] --address URL [--json]"""

    def command(
        job: tyro.conf.Positional[Annotated[str, _JOB]] = "", address: str | None = None, json: bool = False
    ) -> tuple[str, str | None, bool]:
        """Lists the jobs of a cluster, or says what there is of one.

        Args:
            address: URL of the cluster's dashboard; by default RAY_API_SERVER_ADDRESS or RAY_ADDRESS.
            json: Print one JSON object, or a list of them.
        """
        return job, address, json

    name, address, as_json = parse(command, arguments, "raytrain status")
    from raytrain.jobs import dashboard, jobs
    from raytrain.report import jobs as report

    head = dashboard.reach(address)
    found = [jobs.job(head, name)] if name else jobs.jobs(head)
    if as_json:
        listed = [dataclasses.asdict(job) for job in found]
        print(json.dumps(listed[0] if name else listed))
    else:
        report.show(found)


def logs_command(arguments: list[str]) -> int:
    """Read a job's log: raytrain logs JOB --address URL [--follow]"""

    def command(
        job: tyro.conf.Positional[Annotated[str, _JOB]], address: str | None = None, follow: bool = False
    ) -> tuple[str, str | None, bool]:
        """Prints what a job has printed.

        Args:
            address: URL of the cluster's dashboard; by default RAY_API_SERVER_ADDRESS or RAY_ADDRESS.
            follow: Go on to the job's end, and end with its exit status, as `submit` does.
        """
        return job, address, follow

    name, address, follow = parse(command, arguments, "raytrain logs")
    from raytrain.jobs import dashboard, jobs

    head = dashboard.reach(address)
    jobs.job(head, name)
    if follow:
        return _followed(head, name, lambda: False)
    print(jobs.log(head, name), end="")
    return 0


def stop_command(arguments: list[str]) -> int | None:
    """Stop a job: raytrain stop JOB --address URL"""

    def command(job: tyro.conf.Positional[Annotated[str, _JOB]], address: str | None = None) -> tuple[str, str | None]:
        """Stops a job, which writes a checkpoint first, and waits for its end.

        Args:
            address: URL of the cluster's dashboard; by default RAY_API_SERVER_ADDRESS or RAY_ADDRESS.
        """
        return job, address

    name, address = parse(command, arguments, "raytrain stop")
    from raytrain.jobs import dashboard, jobs
    from raytrain.report import jobs as report

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
