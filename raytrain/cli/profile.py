"""The command profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from raytrain.cli.started import command_started
from raytrain.cli.train import trained
from raytrain.driver.options import Options
from raytrain.experiment import Experiment
from raytrain.training.profiling import WARM_UP


def profile(value: Experiment, options: Options, source: Path | None) -> None:
    """Train some steps and print what takes their time. Loggers are left out: it is no run that anyone follows.
    Nothing ends it earlier, neither hours nor patience."""
    few = replace(value, steps=WARM_UP + options.profile_steps, max_hours=None, patience=None, loggers=())
    trained(few, options, source, command_started(), profiled=value)
