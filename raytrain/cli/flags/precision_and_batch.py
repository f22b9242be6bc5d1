"""The flags of `raytrain sweep --precision_and_batch`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from raytrain import errors
from raytrain.cli.flags.arguments import first_argument, show_usage, take
from raytrain.cli.flags.loggers import with_loggers
from raytrain.cli.flags.parsing import FLAT, STRATEGY_HELP, AnyOptions, describe, parse, take_strategy
from raytrain.driver.options import Options
from raytrain.driver.resources import local_resources
from raytrain.driver.session import Session
from raytrain.experiment import Experiment
from raytrain.run.experiment_file import load
from raytrain.sweep import Sweep
from raytrain.sweep.precision_and_batch import AXES, precision_and_batch

FLAG = "--precision_and_batch"
_ABOUT = (
    "Finds the fastest, the smallest and the most accurate precision, batch size and micro-batch size for an "
    "experiment on this machine, each configuration with several seeds, one trial at a time, and writes the "
    "recommended experiment."
)


def parse_precision_and_batch(arguments: list[str]) -> tuple[Path, Sweep, Options, Path | None] | None:
    """Return the path of the experiment, the sweep, its options, and the Python file that it came from.

    Args:
        arguments: without `FLAG`.
    """
    path = first_argument(arguments)
    if path is None:
        usage = f"raytrain sweep {FLAG} EXPERIMENT"
        return show_usage(arguments, usage, f"{_ABOUT} With EXPERIMENT, --help lists the fields.")
    wanted, options, source = parse_on(arguments, "sweep", Options(), _have_gpus)
    # A directory would be resumed: an experiment in one is that of a run.
    return (Path(path, "experiment.json") if Path(path).is_dir() else Path(path)), wanted, options, source


def _have_gpus(options: Options) -> bool:
    """Return whether the nodes have GPUs: those of a cluster, or this machine."""
    if not (options.address or os.environ.get("RAY_ADDRESS")):
        return local_resources().gpus > 0
    with Session(options.address, options.verbose) as session:
        return session.resources().gpus > 0


def parse_on(
    arguments: list[str], command: str, default: AnyOptions, have_gpus: Callable[[AnyOptions], bool]
) -> tuple[Sweep, AnyOptions, Path | None]:
    """Read the experiment, which is the first argument, and the flags; return the sweep, the options and the file.

    Args:
        have_gpus: asked where the experiment does not say whether its workers have GPUs.
    """
    path = arguments[0]
    for axis in AXES[::2]:
        if take(arguments[1:], f"--{axis}")[0]:
            raise errors.UserError(f"--{axis} is what the command varies", "", "leave it out")
    value, source = load(path)
    value, arguments = take_strategy(value, arguments)

    def parsed(
        experiment: Annotated[Experiment, FLAT] = value,
        options: Annotated[Options, FLAT] = default,
        trial_epochs: int = 1,
        trial_samples: int | None = None,
        repeats: int = 3,
        confidence: float = 0.95,
        constraints: tuple[str, ...] = (),
        budget_seconds: float | None = None,
        memory_gib: float | None = None,
        timeout_seconds: float = 600.0,
    ) -> tuple[Experiment, Options, int, int | None, dict[str, Any]]:
        """Run the sweep.

        Args:
            trial_epochs: Epochs of each trial; --epochs is the length of the recommended experiment.
            trial_samples: Samples in an epoch of a trial; None takes all.
            repeats: Trials of each configuration, with seeds of their own.
            confidence: Confidence of intervals, and of statements that configurations differ.
            constraints: Limits to figures of what is recommended, as "peak_memory_bytes <= 8 GiB".
            budget_seconds: Seconds after which the sweep ends, from the first trial on that this command trains.
            memory_gib: Memory that a trial may take.
            timeout_seconds: Seconds without a finished step after which a trial is stuck.
        """
        limits = {"budget_seconds": budget_seconds, "memory_gib": memory_gib, "timeout_seconds": timeout_seconds}
        answer = {"repeats": repeats, "confidence": confidence, "constraints": constraints}
        return experiment, options, trial_epochs, trial_samples, limits | answer

    parsed.__annotations__["options"] = Annotated[type(default), FLAT]
    about = f"{describe(source)}\n\n{_ABOUT}\n\n{STRATEGY_HELP}"
    usage = f"raytrain {command} {FLAG} {path}"
    value, options, epochs, samples, fields = parse(parsed, arguments[1:], usage, about)
    if options.profile:
        how = "profile the experiment with `raytrain profile EXPERIMENT`"
        raise errors.UserError("--profile is for a run, not for a sweep", "", how)
    if epochs < 1:
        raise errors.UserError(f"trial_epochs must be at least 1, got {epochs}", "", "give --trial_epochs 1 or more")
    value, gpus = with_loggers(value, options.log), value.scaling.gpus_per_worker
    on_gpus = have_gpus(options) if gpus is None else gpus > 0
    return precision_and_batch(value, on_gpus, epochs, samples, concurrent=1, **fields), options, source
