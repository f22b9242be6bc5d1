"""The commands that train: train and resume."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raytrain.cli.answer import answered
from raytrain.cli.started import command_started
from raytrain.driver import fit
from raytrain.driver.correction import Correction
from raytrain.driver.observe import watched
from raytrain.driver.options import Options
from raytrain.experiment import Experiment
from raytrain.loggers import Logger
from raytrain.report import run_page
from raytrain.report.console import Console
from raytrain.report.profile import show_profile
from raytrain.run.run import Run


def train(value: Experiment, options: Options, source: Path | None) -> None:
    """Train an experiment."""
    trained(value, options, source, command_started())


def resume(run: Run, value: Experiment, options: Options, correction: Correction | None) -> None:
    """Resume a run."""
    resumed(run, value, options, correction, command_started())


def trained(
    value: Experiment,
    options: Options,
    source: Path | None,
    started: float,
    loggers: Sequence[Logger] = (),
    profiled: Experiment | None = None,
) -> Run | None:
    """Train an experiment and return its run; None for a dry run.

    Args:
        source: the experiment's file.
        started: the Unix time at which the user's wait began.
        loggers: follow the run besides those of the experiment.
        profiled: the experiment that a profile is about, if not this one.
    """

    def work() -> Run | None:
        with watched(Logger() if options.quiet else Console(), (*value.loggers, *loggers)) as observer:
            run = fit.train(value, options, observer, source, started, run_page.at_end)
        if run and options.profile and not options.quiet:
            show_profile(run, profiled or value)
        return run

    return answered(options, work)


def resumed(
    run: Run,
    value: Experiment,
    options: Options,
    correction: Correction | None,
    started: float,
    loggers: Sequence[Logger] = (),
) -> Run:
    """Resume a run with a changed experiment; the other arguments are those of `trained`."""

    def work() -> Run:
        with watched(Logger() if options.quiet else Console(), (*value.loggers, *loggers)) as observer:
            done = fit.resume(run, value, options, observer, started, correction, run_page.at_end)
        if options.profile and not options.dry_run and not options.quiet:
            show_profile(done, value)
        return done

    return answered(options, work)
