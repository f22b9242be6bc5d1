"""The answer of a sweep over precision and batch sizes: the fastest, the smallest, the most accurate, and what to
train with."""

from __future__ import annotations

import contextlib
import math
import shlex
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from raytrain import errors
from raytrain.report.configurations import best_in, interval
from raytrain.report.sweep_table import title_of
from raytrain.report.trials import Configuration, Results, Spread, text
from raytrain.run import experiment_file
from raytrain.sweep.precision_and_batch import AXES, MACHINE
from raytrain.sweep.space import apply
from raytrain.sweep.sweep_file import load
from raytrain.tools.output import write_file

RECOMMENDED = "recommended.json"
_FASTEST, _SMALLEST = 1, 2  # places of the objectives


def lines(answer: dict[str, Any]) -> list[str]:
    """Return the answer; nothing of other sweeps, or without a result.

    Args:
        answer: the content of the sweep's sweep.json.
    """
    results = _read(answer)
    chosen = recommended(results)
    if chosen is None:
        return []
    goal = results.objectives[0].name
    best = [(f"best {title_of(goal)}", 0), ("fastest", _FASTEST), ("smallest", _SMALLEST)]
    rows = [(name, _said(results, found, place)) for name, place in best if (found := best_in(results, place))]
    front = [one.number for one in results.configurations if {*one.trials} & {*results.front}]
    rows.append(("Pareto front", f"configuration{'s' if len(front) > 1 else ''} {', '.join(map(str, front))}"))
    why = f"the fastest whose {title_of(goal)} is within a standard error of the best"
    why += f", of those with {' and '.join(results.limits)}" if results.limits else ""
    rows.append(("recommended", f"configuration {chosen.number}: {_values(chosen)} ({why})"))
    rows.append(("as flags", shlex.join(flags(answer, chosen))))
    speed = chosen.spreads[_FASTEST]
    if speed.mean is not None and speed.high is not None and speed.high > 1.5 * speed.mean:
        rows.append(
            ("note", "speeds vary much between repeats: train longer, as with --trial_epochs 5, or free the machine")
        )
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {said}" for name, said in rows]


def recommended(results: Results) -> Configuration | None:
    """Return the fastest configuration whose metric is as good as the best one's: its mean is within one standard error
    of it (the rule of Breiman et al., "Classification and Regression Trees", 1984), and the test does not tell them
    apart.

    Returns:
        None where the sweep is another one, or has no result.
    """
    names = tuple(objective.name for objective in results.objectives[1:])
    there = {axis.path for axis in results.axes}
    best = best_in(results, 0) if names == MACHINE and {*AXES[:2]} <= there else None
    if best is None:
        return None
    values, mean = best.spreads[0].values, best.spreads[0].mean or 0.0
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    fitting = [best]
    for one in results.configurations:
        spread = one.spreads[0]
        if spread.mean is not None and not spread.told_apart and one.whole >= best.whole:
            fitting += [one] * (abs(spread.mean - mean) <= error)
    return max(fitting, key=lambda one: one.spreads[_FASTEST].mean or 0.0)


def flags(answer: dict[str, Any], chosen: Configuration) -> list[str]:
    """Return the flags that give an experiment the values of a configuration, and the learning rate that goes with
    them. They name whole batches too: the experiment may have micro-batches."""
    found = {path: chosen.values.get(path) for path in AXES}
    sweep = answer.get("sweep")
    base = sweep.get("experiment") if isinstance(sweep, dict) else None
    if isinstance(base, dict):
        found |= {path: base[path] for path in ("lr_scaling", "lr_batch_size") if base.get(path) is not None}
    return [word for path, value in found.items() for word in (f"--{path}", text(value))]


def write(path: Path, answer: dict[str, Any]) -> None:
    """Write `recommended.json`, the experiment in its full length with the recommended values; nothing for other
    sweeps, and where the experiment cannot be loaded.

    Args:
        path: the sweep's directory.
    """
    chosen = recommended(_read(answer))
    if chosen is not None:
        values = {name: value for name, value in chosen.values.items() if name in AXES}
        with contextlib.suppress(errors.UserError):  # its classes cannot be loaded any more: the report needs none
            content = experiment_file.to_json(apply(load(path)[0].experiment, values))
            write_file(path / RECOMMENDED, content.encode())


def _read(answer: dict[str, Any]) -> Results:
    """Return the results, each trial as a configuration where none is repeated."""
    results = Results.of(answer)
    alone = [trial for trial in results.trials if trial.counts] if not results.configurations else ()
    found = []
    for trial in alone:
        goals = (*trial.objective, *[None] * len(results.objectives))[: len(results.objectives)]
        spreads = tuple(Spread(() if goal is None else (goal,), goal, None, None, None) for goal in goals)
        found.append(Configuration(trial.number, (trial.number,), trial.values, True, spreads))
    return replace(results, configurations=(*results.configurations, *found))


def _said(results: Results, one: Configuration, place: int) -> str:
    name = results.objectives[place].name
    return f"configuration {one.number}: {_values(one)}: {interval(name, one.spreads[place])} {title_of(name)}"


def _values(one: Configuration) -> str:
    given = {path: one.values.get(path) for path in AXES if path in one.values}
    return ", ".join(f"{path} {'whole' if value is None else text(value)}" for path, value in given.items())
