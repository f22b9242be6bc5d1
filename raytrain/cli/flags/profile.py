"""The flags of the command profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from raytrain import errors
from raytrain.cli.flags.arguments import first_argument, show_usage, take
from raytrain.cli.flags.train import parse_training
from raytrain.driver.options import Options
from raytrain.experiment import Experiment


def profile(arguments: list[str]) -> tuple[Experiment, Options, Path | None] | None:
    """Return the experiment, the options with the number of steps to trace, and the experiment's file."""
    usage, path = "raytrain profile EXPERIMENT", first_argument(arguments)
    if path is None:
        return show_usage(
            arguments,
            usage,
            "Trains an experiment for 10 steps, traces the next ones (--steps 20) on each worker, validates once, and "
            "prints the share of each phase, the operators that take longest, the bottleneck and what to change. The "
            "run and its traces go to profiles/NAME-N (--out, --name). The other flags are those of `raytrain train`.",
        )
    found, rest = take(arguments, "--steps")
    default = Options(out="profiles", profile=True)
    steps = found[-1] if found else str(default.profile_steps)
    if not steps.isdecimal() or not int(steps):
        raise errors.bad_flag(f"--steps must be a whole number from 1 on, got {steps}", usage)
    value, options, source = parse_training(rest, "profile", default)
    return value, replace(options, profile=True, profile_steps=int(steps)), source
