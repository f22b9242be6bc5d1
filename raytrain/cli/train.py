"""The commands that train: train and resume."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from raytrain import errors
from raytrain.cli.parsing import (
    FLAT,
    STRATEGY_HELP,
    AnyOptions,
    describe,
    first_argument,
    parse,
    show_usage,
    take,
    take_strategy,
)
from raytrain.cli.sweep import sweep_command
from raytrain.cli.terminal import command_started, console
from raytrain.driver.fit import Options, resume, train
from raytrain.driver.observe import watched
from raytrain.driver.resumption import Correction
from raytrain.experiment import Experiment
from raytrain.experiment_file import load
from raytrain.run.run import Run


@dataclass(frozen=True)
class Resume:
    """How a resumed run goes on."""

    experiment: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """The corrected experiment file, to go on with it and the modules that it imports in place of the run's copies.
    The values stay the run's; the model's parameters must have the names, shapes and order that they had."""
    address: str | None = None
    """Address of a running Ray cluster, or `auto`; by default RAY_ADDRESS, or else this machine alone."""
    dry_run: bool = False
    """Print the plan and stop."""
    verbose: bool = False
    """Show Ray's own messages and the workers' output."""


def train_command(arguments: list[str]) -> None:
    """Train an experiment: raytrain train EXPERIMENT [--field value ...]"""
    usage, path = "raytrain train EXPERIMENT", first_argument(arguments)
    if path is None:
        return show_usage(
            arguments,
            usage,
            "Trains the experiment of a Python file, or of a run's experiment.json. "
            "`raytrain train EXPERIMENT --help` lists that experiment's fields.",
        )
    value, options, source = parse_training(arguments, "train", Options())
    with watched(console(), value.loggers) as observer:
        train(value, options, observer, source, command_started())


def parse_training(
    arguments: list[str], command: str, default: AnyOptions
) -> tuple[Experiment, AnyOptions, Path | None]:
    """Reads the experiment that comes first, and its flags: what to train, how, and the file that it came from."""
    path = arguments[0]
    value, source = load(path)
    value, arguments = take_strategy(value, arguments)

    def parsed(
        experiment: Annotated[Experiment, FLAT] = value, options: Annotated[Options, FLAT] = default
    ) -> tuple[Experiment, Options]:
        return experiment, options

    parsed.__annotations__["options"] = Annotated[type(default), FLAT]
    about = f"{describe(source)}\n\n{STRATEGY_HELP}"
    value, options = parse(parsed, arguments[1:], f"raytrain {command} {path}", about)
    return value, options, source


def resume_command(arguments: list[str]) -> None:
    """Go on with a run: raytrain resume RUN [--epochs N] [--scaling.workers N] [--experiment FILE]"""
    usage, path = "raytrain resume RUN", first_argument(arguments)
    if path is None:
        return show_usage(
            arguments,
            usage,
            "Goes on with a run from its newest checkpoint, also on another number of "
            "workers, and with --experiment FILE with code that was corrected after an error. "
            "`raytrain resume RUN --help` lists the fields.",
        )
    if (Path(path) / "sweep.json").is_file():
        return sweep_command(arguments)
    found, (file, _) = Run(path), take(arguments[1:], "--experiment")
    if file and not file[-1]:
        raise errors.bad_flag("--experiment needs a file", f"raytrain resume {path}")
    correction = Correction(found, Path(file[-1])) if file else None
    begun_with, arguments = take_strategy(correction.experiment if correction else found.experiment, arguments)

    def command(
        experiment: Annotated[Experiment, FLAT] = begun_with, options: Annotated[Resume, FLAT] = Resume()
    ) -> tuple[Experiment, Resume]:
        return experiment, options

    value, options = parse(command, arguments[1:], f"raytrain resume {path}", f"Goes on with a run.\n\n{STRATEGY_HELP}")
    with watched(console(), value.loggers) as observer:
        resume(
            found,
            value,
            Options(address=options.address, dry_run=options.dry_run, verbose=options.verbose),
            observer,
            command_started(),
            correction,
        )
