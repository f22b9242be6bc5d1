"""The flags of the commands that train: train and resume."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from raytrain import errors
from raytrain.cli.flags.arguments import first_argument, show_usage, take
from raytrain.cli.flags.loggers import with_loggers
from raytrain.cli.flags.parsing import FLAT, STRATEGY_HELP, AnyOptions, describe, parse, take_strategy
from raytrain.driver.correction import Correction
from raytrain.driver.options import Options
from raytrain.experiment import Experiment
from raytrain.run.experiment_file import load
from raytrain.run.run import Run


@dataclass(frozen=True)
class Resume:
    """How a run is resumed."""

    experiment: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """The corrected experiment file: use it and the modules that it imports in place of the run's copies. The field
    values stay those of the run; the model's parameters must keep their names, shapes and order."""
    address: str | None = None
    """Address of a running Ray cluster, or `auto`; by default RAY_ADDRESS, or else this machine alone."""
    dry_run: bool = False
    """Print the plan and stop."""
    log: tuple[str, ...] = ()
    """Follow the run with tensorboard, csv, mlflow or wandb, besides the experiment's loggers, from its first step
    on."""
    profile: bool = False
    """Trace 20 steps after the first 10 of this command on each worker, and print what takes their time."""
    report: bool = True
    """Write report.html into the run's directory at its end: see `raytrain report`."""
    verbose: bool = False
    """Show Ray's own messages and the workers' output."""
    quiet: bool = False
    """Print nothing but errors."""
    json: bool = False
    """Print the run's summary to standard output as one line of JSON, with its directory or URL as `run`, and all else
    to standard error."""


def train(arguments: list[str]) -> tuple[Experiment, Options, Path | None] | None:
    """Return what to train, with which options, and the file that it came from."""
    usage, path = "raytrain train EXPERIMENT", first_argument(arguments)
    if path is None:
        return show_usage(
            arguments,
            usage,
            "Trains the experiment of a Python file, or of a run's experiment.json. "
            "`raytrain train EXPERIMENT --help` lists that experiment's fields.",
        )
    file = Path(path, "experiment.json")
    if os.path.isfile(file):
        how = (
            f"{errors.command('resume', arguments[0])} goes on with it, and {errors.command('train', file)} begins anew"
        )
        raise errors.UserError("this is a run, and no experiment file", arguments[0], how)
    return parse_training(arguments, "train", Options())


def parse_training(
    arguments: list[str], command: str, default: AnyOptions
) -> tuple[Experiment, AnyOptions, Path | None]:
    """Read the experiment, which is the first argument, and its flags.

    Returns:
        The experiment, the options, and the file that the experiment came from.
    """
    path = arguments[0]
    value, source = load(path, alone=True)
    value, arguments = take_strategy(value, arguments)

    def parsed(
        experiment: Annotated[Experiment, FLAT] = value, options: Annotated[Options, FLAT] = default
    ) -> tuple[Experiment, Options]:
        return experiment, options

    parsed.__annotations__["options"] = Annotated[type(default), FLAT]
    about = f"{describe(source)}\n\n{STRATEGY_HELP}"
    value, options = parse(parsed, arguments[1:], f"raytrain {command} {path}", about)
    return with_loggers(value, options.log), options, source


def resume(arguments: list[str]) -> tuple[Run, Experiment, Options, Correction | None] | None:
    """Return the run to resume, the changed experiment, the options, and the corrected file if there is one."""
    usage, path = "raytrain resume RUN", first_argument(arguments)
    if path is None:
        return show_usage(
            arguments,
            usage,
            "Resumes a run from its newest checkpoint, also on another number of workers. With --experiment FILE, the "
            "run takes its code from FILE, which was corrected after an error. "
            "`raytrain resume RUN --help` lists the fields.",
        )
    found, (file, _) = Run(path), take(arguments[1:], "--experiment")
    if file and not file[-1]:
        raise errors.bad_flag("--experiment needs a file", f"raytrain resume {path}")
    correction = Correction(found, Path(file[-1])) if file else None
    begun_with, arguments = take_strategy(correction.experiment if correction else found.experiment, arguments)

    def command(
        experiment: Annotated[Experiment, FLAT] = begun_with, options: Annotated[Resume, FLAT] = Resume()
    ) -> tuple[Experiment, Resume]:
        return experiment, options

    value, given = parse(command, arguments[1:], f"raytrain resume {path}", f"Resumes a run.\n\n{STRATEGY_HELP}")
    value = with_loggers(value, given.log)
    options = Options(
        address=given.address,
        dry_run=given.dry_run,
        profile=given.profile,
        report=given.report,
        verbose=given.verbose,
        quiet=given.quiet,
        json=given.json,
    )
    return found, value, options, correction
