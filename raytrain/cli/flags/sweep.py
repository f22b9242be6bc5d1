"""The flags of the commands sweep and folds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from raytrain import config, errors
from raytrain.cli.flags.arguments import first_argument, show_usage, take
from raytrain.cli.flags.loggers import with_loggers
from raytrain.cli.flags.parsing import FLAT, STRATEGY_HELP, AnyOptions, describe, parse, take_strategy
from raytrain.cli.flags.precision_and_batch import FLAG, parse_precision_and_batch
from raytrain.data.folds import AXIS
from raytrain.driver.options import Options
from raytrain.experiment import Experiment
from raytrain.files import is_url
from raytrain.run.experiment_file import load as load_experiment
from raytrain.sweep import Grid, Scheduler, Search, Sweep, sweep_file
from raytrain.sweep import sweep as sweeps


def sweep(arguments: list[str]) -> tuple[Path, Sweep, Options, Path | None] | None:
    """Return the sweep's path, the sweep, its options, and the Python file that it came from."""
    if FLAG in arguments:
        return parse_precision_and_batch([argument for argument in arguments if argument != FLAG])
    usage, path = "raytrain sweep SWEEP", first_argument(arguments)
    if path is None:
        return show_usage(
            arguments,
            usage,
            "Runs the sweep of a Python file (`sweep = Sweep(...)`), or resumes the sweep of a directory. "
            "`raytrain sweep SWEEP --help` lists its fields and those of its experiment. "
            f"`raytrain sweep {FLAG} EXPERIMENT` needs no such file: it finds the fastest, the smallest and the most "
            "accurate precision and batch size for an experiment.",
        )
    return Path(path), *parse_sweep(arguments, "sweep", Options())


def folds(arguments: list[str]) -> tuple[Path, Sweep, Options, Path | None] | None:
    """Return the path of the experiment, the sweep over its folds, its options, and the Python file that it came
    from; of a sweep's directory, what `sweep` returns."""
    usage, path = "raytrain folds EXPERIMENT", first_argument(arguments)
    if path is None:
        return show_usage(
            arguments,
            usage,
            "Splits the training data into folds, trains the experiment once for each of them, which validates, and "
            "reports mean and standard deviation of the metrics. This is a sweep: `raytrain sweep DIR` resumes it. "
            "`raytrain folds EXPERIMENT --help` lists the fields; those of --data.folds say how to split.",
        )
    if Path(path, "sweep.json").is_file():
        return sweep(arguments)
    if take(arguments[1:], f"--{AXIS}")[0]:
        raise errors.UserError(
            f"--{AXIS} is what the command varies", "", f"leave it out, or use {errors.command('train', path)}"
        )
    if take(arguments[1:], "--data.folds.count")[0]:
        raise errors.UserError("--data.folds.count would be the number of folds", "", "write it as --folds N")
    value, source = load_experiment(path)
    value, arguments = take_strategy(value, arguments)

    def parsed(
        experiment: Annotated[Experiment, FLAT] = value,
        options: Annotated[Options, FLAT] = Options(),
        folds: int = value.data.folds.count or 5,
        concurrent: int | None = None,
    ) -> tuple[Experiment, Options, int, int | None]:
        """Train all folds.

        Args:
            folds: Number of folds.
            concurrent: Folds that train at once; None takes as many as fit.
        """
        return experiment, options, folds, concurrent

    about = f"{describe(source)}\n\n{STRATEGY_HELP}"
    value, options, count, concurrent = parse(parsed, arguments[1:], f"raytrain folds {path}", about)
    _refuse_profile(options)
    value = with_loggers(value, options.log)
    if count < 2:
        raise errors.out_of_range("folds", count, "of at least 2", "the command line")
    split = dataclasses.replace(value.data.folds, count=count, fold=0)
    value = config.replace(value, "data.folds", split)
    axes = (Grid(AXIS, tuple(range(count))),)
    return Path(path), Sweep(value, axes, value.task.monitor, concurrent=concurrent, keep=count), options, source


def parse_sweep(arguments: list[str], command: str, default: AnyOptions) -> tuple[Sweep, AnyOptions, Path | None]:
    """Read the sweep, which is the first argument, and its flags."""
    path = arguments[0]
    if is_url(path):  # of a sweep there, the directory on this machine that has its files comes in its place
        raise errors.not_a_sweep(path)
    value, source = sweep_file.load(path)
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
        constraints: tuple[str, ...] = value.constraints,
        repeats: int = 1 if value.by_fold else value.repeats,
        by_fold: bool = value.by_fold,
        confidence: float = value.confidence,
    ) -> tuple[dict[str, Any], Options]:
        """Run a sweep.

        Args:
            objective: What to look for: one name, or two or three for a Pareto front.
            search: What to try next.
            scheduler: Which trials end early, or change on the way.
            trials: How many; None tries every combination of Grid axes once. With repeats: how many configurations.
            budget_seconds: Seconds after which the sweep ends, from the first trial on that this command trains.
            concurrent: Trials at once; None takes as many as fit.
            memory_gib: Memory that a trial may take.
            timeout_seconds: Seconds without a finished step after which a trial is stuck.
            retries: How often a trial goes on after its process died or was stuck. Lost hosts do not count.
            keep: The best so many trials keep their weights.
            constraints: Limits to figures of a trial, as "peak_memory_bytes <= 8 GiB".
            repeats: Trials of each configuration, with seeds of their own; configurations rank by their mean.
            by_fold: Repeat each configuration on all folds of --data.folds in place of seeds: it ranks by the mean of
                the cross-validation.
            confidence: With repeats, the confidence of intervals and of statements that configurations differ.
        """
        given = {name: found for name, found in locals().items() if name in sweeps.FLAGS}
        if not take(arguments[1:], "--objective")[0]:
            given["objective"] = value.objective  # None takes what --task.monitor sets
        return given, options

    parsed.__annotations__["options"] = Annotated[type(default), FLAT]
    about = f"{describe(source)}\n\n{STRATEGY_HELP}"
    given, options = parse(parsed, arguments[1:], f"raytrain {command} {path}", about)
    _refuse_profile(options)
    value = dataclasses.replace(value, **given)
    return dataclasses.replace(value, experiment=with_loggers(value.experiment, options.log)), options, source


def _refuse_profile(options: Options) -> None:
    if options.profile:
        how = "profile one of its experiments with `raytrain profile EXPERIMENT`"
        raise errors.UserError("--profile is for a run, not for a sweep", "", how)
