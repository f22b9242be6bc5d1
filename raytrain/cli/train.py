"""The commands that train: train and resume."""

from __future__ import annotations

from pathlib import Path

from raytrain.cli.started import command_started
from raytrain.driver import fit
from raytrain.driver.fit import Options
from raytrain.driver.observe import watched
from raytrain.driver.resumption import Correction
from raytrain.experiment import Experiment
from raytrain.report.console import Console
from raytrain.run.run import Run


def train(value: Experiment, options: Options, source: Path | None) -> None:
    """Train an experiment."""
    with watched(Console(), value.loggers) as observer:
        fit.train(value, options, observer, source, command_started())


def resume(run: Run, value: Experiment, options: Options, correction: Correction | None) -> None:
    """Resume a run."""
    with watched(Console(), value.loggers) as observer:
        fit.resume(run, value, options, observer, command_started(), correction)
