"""Where a run is kept and what it runs on, as flags."""

from __future__ import annotations

from dataclasses import dataclass

import tyro

from raytrain import errors


@dataclass(frozen=True)
class Options:
    """Where a run is kept and what it runs on."""

    out: str = "runs"
    """Folder or URL in which the run's directory is made; on a cluster, one that all nodes share."""
    name: str | None = None
    """Name of the run's directory; by default the experiment file's name and a number."""
    resume: bool = False
    """Resume the run or sweep of that --name in --out, if there is one: the same command may then be given again and
    again. A setting that is not the run's and cannot change is refused."""
    address: str | None = None
    """Address of a running Ray cluster, or `auto`; by default RAY_ADDRESS, or else this machine alone."""
    dry_run: bool = False
    """Print the plan and stop."""
    log: tuple[str, ...] = ()
    """Follow the run, or each trial, with tensorboard, csv, mlflow or wandb, besides the experiment's loggers. A
    resumed run keeps them."""
    profile: bool = False
    """Trace 20 steps after the first 10 of this command on each worker, and print what takes their time; not for a
    sweep. The run's results stay the same."""
    profile_steps: tyro.conf.Suppress[int] = 20
    """Steps to trace."""
    report: bool = True
    """Write report.html into the directory at the end: see `raytrain report`. Trials have none."""
    verbose: bool = False
    """Show Ray's own messages and the workers' output."""
    quiet: bool = False
    """Print nothing but errors."""
    json: bool = False
    """Print the result to standard output as one line of JSON, and all else to standard error: `summary.json` with the
    run's directory or URL as `run`, or `sweep.json` with the sweep's directory as `sweep`."""

    def __post_init__(self):
        if self.quiet and self.verbose:
            raise errors.UserError("--quiet and --verbose exclude each other", "", "leave one of them out")
        if self.json and self.dry_run:
            raise errors.UserError("--dry_run has no result to print as JSON", "", "leave --json or --dry_run out")
        if self.resume and self.name is None:
            raise errors.UserError(
                "--resume needs the name of the run", "", "give one with --name, or write `raytrain resume RUN`"
            )
