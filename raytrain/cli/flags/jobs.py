"""The flags of the commands for jobs on a cluster: submit, status, logs and stop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from raytrain import errors
from raytrain.cli.flags.arguments import first_argument, show_usage
from raytrain.cli.flags.parsing import parse
from raytrain.cli.flags.precision_and_batch import FLAG, parse_on
from raytrain.cli.flags.sweep import parse_sweep
from raytrain.cli.flags.train import parse_training
from raytrain.driver.options import Options
from raytrain.sweep.sweep import Sweep
from raytrain.sweep.sweep_file import is_sweep

_ID = "The job's id, which `submit` prints."
_JOB = tyro.conf.arg(metavar="JOB", help=_ID)
_ANY_JOB = tyro.conf.arg(metavar="[JOB]", help=_ID, help_behavior_hint="(default: all jobs)")


@dataclass(frozen=True)
class Submit(Options):
    """How a job is sent to a cluster, and where its run is kept."""

    out: str = ""
    """A folder that all nodes share, or a URL, in which the run's directory is made."""
    address: str | None = None
    """URL of the cluster's dashboard, such as http://HOST:8265; by default RAY_API_SERVER_ADDRESS or RAY_ADDRESS."""
    wait: bool = True
    """Follow the job to its end; --no_wait prints its id and returns."""
    env: tuple[str, ...] = ()
    """Environment variables of the job and its workers, such as WANDB_MODE=offline NCCL_DEBUG=INFO. All who may ask the
    cluster can read them."""


def submit(arguments: list[str]) -> tuple[str, str, str, Submit, list[str]] | None:
    """Return the file to send, the command that the job runs (train or sweep), where its data must be, the options, and
    all flags."""
    finds = FLAG in arguments  # the best precision and batch size
    arguments = [argument for argument in arguments if argument != FLAG]
    usage, path = "raytrain submit EXPERIMENT", first_argument(arguments)
    if path is None:
        return show_usage(
            arguments,
            usage,
            "Sends the file of an experiment or a sweep, with the project around it, to a cluster (--address URL of "
            "its dashboard), runs it there with the flags given, follows the job, and ends with the job's exit status: "
            "143 if it was stopped. --out is a folder that all nodes share, or a URL. --no_wait prints the job's id "
            f"and returns. With --name and --resume the same command resumes its run or sweep. {FLAG} before "
            "EXPERIMENT finds the best precision and batch size.",
        )
    if Path(path).is_dir():
        raise errors.UserError(
            "a job takes a file, and this is a directory", path, "name the experiment's or the sweep's file"
        )
    command = "sweep" if finds or is_sweep(path) else "train"
    if finds:  # which precisions there are, the job asks the cluster
        value, options, _ = parse_on(arguments, "submit", Submit(), lambda _: False)
    else:
        value, options, _ = (parse_sweep if command == "sweep" else parse_training)(arguments, "submit", Submit())
    if options.json:
        raise errors.UserError(
            "--json is not for a job, whose log holds all that it prints", "", "read summary.json in the run's folder"
        )
    data = (value.experiment if isinstance(value, Sweep) else value).data
    root = "" if getattr(data, "download", False) else str(getattr(data, "root", ""))
    return path, command, root, options, [*([FLAG] if finds else []), *arguments[1:]]


def status(arguments: list[str]) -> tuple[str, str | None, bool]:
    """Return the job's id (empty for all jobs), the dashboard's address, and whether JSON is wanted."""

    def command(
        job: tyro.conf.Positional[Annotated[str, _ANY_JOB]] = "", address: str | None = None, json: bool = False
    ) -> tuple[str, str | None, bool]:
        """List the jobs of a cluster, or show one job.

        Args:
            address: URL of the cluster's dashboard; by default RAY_API_SERVER_ADDRESS or RAY_ADDRESS.
            json: Print one JSON object for a job, a JSON list for all jobs.
        """
        return job, address, json

    return parse(command, arguments, "raytrain status")


def logs(arguments: list[str]) -> tuple[str, str | None, bool]:
    """Return the job's id, the dashboard's address, and whether to follow the job."""

    def command(
        job: tyro.conf.Positional[Annotated[str, _JOB]], address: str | None = None, follow: bool = False
    ) -> tuple[str, str | None, bool]:
        """Print what a job has printed.

        Args:
            address: URL of the cluster's dashboard; by default RAY_API_SERVER_ADDRESS or RAY_ADDRESS.
            follow: Follow the job to its end and end with its exit status, as `submit` does.
        """
        return job, address, follow

    return parse(command, arguments, "raytrain logs")


def stop(arguments: list[str]) -> tuple[str, str | None]:
    """Return the job's id and the dashboard's address."""

    def command(job: tyro.conf.Positional[Annotated[str, _JOB]], address: str | None = None) -> tuple[str, str | None]:
        """Stop a job, which first writes a checkpoint, and wait for its end.

        Args:
            address: URL of the cluster's dashboard; by default RAY_API_SERVER_ADDRESS or RAY_ADDRESS.
        """
        return job, address

    return parse(command, arguments, "raytrain stop")
