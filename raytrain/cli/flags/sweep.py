"""The flags of the command sweep."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from raytrain import errors
from raytrain.cli.flags.arguments import first_argument, show_usage, take
from raytrain.cli.flags.parsing import FLAT, STRATEGY_HELP, AnyOptions, describe, parse, take_strategy
from raytrain.driver.options import Options
from raytrain.experiment import Experiment
from raytrain.sweep import Scheduler, Search, Sweep
from raytrain.sweep import sweep as sweeps


def sweep(arguments: list[str]) -> tuple[Path, Sweep, Options, Path | None] | None:
    """Return the sweep's path, the sweep, its options, and the Python file that it came from."""
    usage, path = "raytrain sweep SWEEP", first_argument(arguments)
    if path is None:
        return show_usage(
            arguments,
            usage,
            "Runs the sweep of a Python file (`sweep = Sweep(...)`), or resumes the sweep of a directory. "
            "`raytrain sweep SWEEP --help` lists its fields and those of its experiment.",
        )
    return Path(path), *parse_sweep(arguments, "sweep", Options())


def parse_sweep(arguments: list[str], command: str, default: AnyOptions) -> tuple[Sweep, AnyOptions, Path | None]:
    """Read the sweep, which is the first argument, and its flags."""
    path = arguments[0]
    value, source = sweeps.load(path)
    for axis in value.axes:
        if take(arguments[1:], f"--{axis.path}")[0]:
            raise errors.UserError(f"--{axis.path} is what the sweep varies", "", "change the axis in its file")
    base, arguments = take_strategy(value.experiment, arguments)

    def parsed(
        experiment: Annotated[Experiment, FLAT] = base,
        options: Annotated[Options, FLAT] = default,
        objective: tuple[str, ...] = tuple(objective.name for objective in value.objectives),
        search: Search = value.search,
        scheduler: Scheduler = value.scheduler,
        trials: int | None = value.trials,
        budget_seconds: float | None = value.budget_seconds,
        concurrent: int | None = value.concurrent,
        memory_gib: float | None = value.memory_gib,
        timeout_seconds: float = value.timeout_seconds,
        retries: int = value.retries,
        keep: int = value.keep,
    ) -> tuple[dict[str, Any], Options]:
        """Run a sweep.

        Args:
            objective: What to look for: one name, or two for a Pareto front.
            search: What to try next.
            scheduler: Which trials end early, or change on the way.
            trials: How many; None tries every combination of Grid axes once.
            budget_seconds: Seconds after which the sweep ends.
            concurrent: Trials at once; None takes as many as fit.
            memory_gib: Memory that a trial may take.
            timeout_seconds: Seconds without a finished step after which a trial is stuck.
            retries: How often a trial goes on after its process died or was stuck.
            keep: The best so many trials keep their weights.
        """
        given = {name: found for name, found in locals().items() if name in sweeps.FLAGS}
        if tuple(objective) == tuple(o.name for o in value.objectives):
            given["objective"] = value.objective
        return given, options

    parsed.__annotations__["options"] = Annotated[type(default), FLAT]
    about = f"{describe(source)}\n\n{STRATEGY_HELP}"
    given, options = parse(parsed, arguments[1:], f"raytrain {command} {path}", about)
    return dataclasses.replace(value, **given), options, source
