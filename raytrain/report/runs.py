"""The runs and sweeps below a directory, as a table or as JSON."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from raytrain import errors, files
from raytrain.report import folds
from raytrain.report.layout import cell, columns
from raytrain.report.trials import Results, number, plain
from raytrain.run.lock import held
from raytrain.run.metrics_log import VALIDATED, read_metrics

ORDERS = ("when", "name", "metric", "size")
"""What runs may be sorted by, besides the name of a metric."""
_WAYS = ("max", "min")
_COLUMNS = ("name", "status", "written", "trained", "best", "size")
_NAME, _, _WRITTEN, _TRAINED, _BEST, _SIZE = range(6)
"""The places of the table's columns."""
_SHORTEST = 8
"""Characters that remain of a name, and of a metric's value and name, on a narrow terminal."""
_ENOUGH = 24
"""Characters of a name for which other columns are left out."""
_LEFT_OUT = (_SIZE, _WRITTEN, _TRAINED)
"""The table's columns that a narrow terminal goes without, the least important first."""


@dataclass(frozen=True)
class Found:
    """A run or a sweep.

    Attributes:
        name: its path below the directory that was searched.
        kind: run or sweep.
        status: that of its summary; `running` while a process holds its lock, `unfinished` without a summary.
        changed: seconds since 1970 at which its record was last written.
        epochs, steps: how far a run has come; None where that is not known. A sweep has `trials` instead.
        of_epochs, of_steps: how far it is to go: by its experiment one of them has a number.
        trials: number of trials of a sweep.
        metric: the name of the metric that chooses the best checkpoint, or a sweep's first objective.
        direction: whether the highest or the lowest value is the best, max or min; None of a run without a summary.
        best: the best value; of a cross-validation the mean over its folds.
        std: of a cross-validation, the sample standard deviation over its folds.
        bytes: size of all its files.
        metrics: the values of a run's metrics at its best checkpoint; of a sweep that of its first objective, and of a
            cross-validation the means of all metrics.
        directions: as far as they are known, those of the metrics.
    """

    name: str
    kind: str
    status: str
    changed: float
    epochs: int | None
    steps: int | None
    of_epochs: int | None
    of_steps: int | None
    trials: int | None
    metric: str
    direction: str | None
    best: float | None
    std: float | None
    bytes: int
    metrics: dict[str, float]
    directions: dict[str, str]


def find(root: Path) -> list[Found]:
    """Return the runs and sweeps below a directory, itself included. Damaged ones are listed with what is known."""
    found = []
    for place, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        if "sweep.json" in names or "experiment.json" in names:
            folders.clear()  # its trials and folds are its own
            path = Path(place)
            name = os.path.relpath(place, root) if path != root else path.absolute().name
            found.append(of_folder(path, name))
    return found


def of_folder(path: Path, name: str) -> Found:
    """Return what is known of the run or sweep of a directory."""
    return (_sweep if (path / "sweep.json").is_file() else _run)(path, plain(name))


def _run(path: Path, name: str) -> Found:
    summary, best, rows = files.known_json(path / "summary.json"), files.known_json(path / "best.json"), []
    with contextlib.suppress(OSError, ValueError):
        if "steps" not in summary:  # the rows of a run that has ended say no more
            rows = read_metrics(path / "metrics.jsonl", kinds=VALIDATED)[0]
    last = rows[-1] if rows else {}
    experiment = files.known_json(path / "experiment.json")
    task, of_steps = experiment.get("task"), number(experiment.get("steps"))
    metric = str(summary.get("monitor") or (task.get("monitor") if isinstance(task, dict) else None) or "")
    status = str(summary.get("status") or "unfinished")
    known = summary.get("directions"), {metric: summary.get("direction")}
    directions = {name: way for one in known if isinstance(one, dict) for name, way in one.items() if way in _WAYS}
    values = {plain(name): number(value) for name, value in (best | summary).items() if name.startswith("val_")}
    epochs, steps = (_first(number(summary.get(f"{key}s")), number(last.get(key))) for key in ("epoch", "step"))
    return Found(
        name,
        "run",
        "running" if held(path) else plain(status),
        _changed(path, "summary.json", "metrics.jsonl", "experiment.json"),
        _count(epochs),
        _count(steps),
        None if of_steps else _count(number(experiment.get("epochs"))),
        _count(of_steps),
        None,
        plain(metric),
        directions.get(metric),
        _first(number(summary.get(metric)), number(best.get(metric))),
        None,
        _size(path),
        {name: value for name, value in values.items() if value is not None},
        directions,
    )


def _sweep(path: Path, name: str) -> Found:
    results = Results.of(files.known_json(path / "sweep.json"))
    best = next((trial.goal for trial in results.trials if trial.number == results.best), None)
    if results.configurations:  # its best repeat is better than what the configuration reaches
        of_best = (one.spreads for one in results.configurations if results.best in one.trials)
        best = next((spreads[0].mean for spreads in of_best), None)
    best, std = folds.mean_and_std(results) or (best, None)
    status = "running" if held(path) else results.status or "unfinished"
    changed = _changed(path, "sweep.json")
    metric, direction = results.objectives[0].name, "max" if results.objectives[0].highest_is_best else "min"
    count, size = len(results.trials), _size(path)
    of_folds = files.known_json(path / "folds.json").get("metrics")
    known = of_folds.items() if isinstance(of_folds, dict) else ()
    means = {plain(key): one for key, one in known if isinstance(one, dict)}
    values = {key: number(one.get("mean")) for key, one in means.items()} | {metric: best}
    values = {key: value for key, value in values.items() if value is not None}
    ways = {key: one["direction"] for key, one in means.items() if one.get("direction") in _WAYS} | {metric: direction}
    progress = (None, None, None, None, count)
    return Found(name, "sweep", status, changed, *progress, metric, direction, best, std, size, values, ways)


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _count(value: float | None) -> int | None:
    return None if value is None else int(value)


def _changed(path: Path, *names: str) -> float:
    times = []
    for name in names:
        with contextlib.suppress(OSError):
            times.append((path / name).stat().st_mtime)
    return max(times, default=0.0)


def _size(path: Path) -> int:
    total = 0
    for place, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):  # a run that goes on removes old checkpoints
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def ordered(found: list[Found], by: str) -> list[Found]:
    """Return runs by name, with the newest or the largest first, or with the best value of their metrics first, one
    metric after the other; those without a value at the end.

    Args:
        by: name, when, metric or size; or the name of a metric, which then is that of all.

    Raises:
        UserError: no run has such a metric, or none says whether its highest or its lowest value is the best.
    """
    if by == "name":
        return sorted(found, key=lambda one: one.name)
    if by in ("when", "size"):
        return sorted(found, key=lambda one: one.changed if by == "when" else one.bytes, reverse=True)
    if by != "metric":
        way = _way(found, by)
        found = [
            replace(one, metric=by, direction=way, best=one.metrics.get(by), std=one.std if one.metric == by else None)
            for one in found
        ]
    known = [one for one in found if one.best is not None]
    return sorted(known, key=_rank) + [one for one in found if one.best is None]


def _way(found: list[Found], metric: str) -> str:
    """Return whether the highest or the lowest value of a metric is the best, as a run says."""
    names = dict.fromkeys(name for one in found for name in one.metrics)
    if metric not in names:
        how = f"{errors.nearest(metric, (*ORDERS, *names))}sort by {', '.join(ORDERS)} or a metric: "
        raise errors.UserError(f"no run has the metric {metric!r}", "", how + (errors.listed(names, 12) or "none"))
    way = next((one.directions[metric] for one in found if metric in one.directions), None)
    if way is None:
        what = f"no run says whether the highest or the lowest {metric} is the best"
        raise errors.UserError(what, "", "sort by a metric that one of them monitors")
    return way


def _rank(one: Found) -> tuple[str, float]:
    assert one.best is not None
    return one.metric, one.best if one.direction == "min" else -one.best


def to_dicts(found: list[Found]) -> list[dict[str, Any]]:
    """Return what JSON has of each, with the time in ISO 8601."""
    dicts = [asdict(one) | {"changed": _when(one, "%Y-%m-%dT%H:%M:%S%z")} for one in found]
    return [{name: value for name, value in one.items() if name != "directions"} for one in dicts]


def show(found: list[Found], root: str) -> None:
    """Print one line for each, as wide as the terminal.

    Where it is narrow, whole columns are left out before names are shortened: a number that is cut reads as another
    one, and a name is what other commands take.
    """
    if not found:
        print(f"no runs in {root}")
        return
    console = Console(highlight=False, soft_wrap=True)
    rows = [_COLUMNS, *map(_row, found)]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    places = _fit(rows, widths, columns(console))
    for line, row in enumerate(rows):
        cells = (cell(row[place], widths[place], left=place != _SIZE) for place in places)
        console.print(Text("  ".join(cells).rstrip(), style="" if line else "bold"))


def _fit(rows: list[tuple[str, ...]], widths: list[int], room: int | None) -> list[int]:
    """Return the places of the columns that a terminal has room for, and narrow the widths of those that can be."""
    places = list(range(len(widths)))
    if room is None:
        return places
    number = max(cell_len(row[_BEST].rpartition(" ")[0]) for row in rows)
    best = min(widths[_BEST], max(_SHORTEST, number + 2))  # value and spread whole, a space, the dots of a cut name

    def over() -> int:
        return max(0, sum(widths[place] + 2 for place in places) - 2 - room)

    spare = widths[_BEST] - best + max(0, widths[_NAME] - _ENOUGH)
    for place in _LEFT_OUT:
        if over() > spare:
            places.remove(place)
    widths[_BEST] = max(best, widths[_BEST] - over())
    widths[_NAME] -= min(over(), max(0, widths[_NAME] - _SHORTEST))
    return places


def _row(one: Found) -> tuple[str, ...]:
    done, planned, unit = (
        (one.epochs, one.of_epochs, "epoch") if one.of_steps is None else (one.steps, one.of_steps, "step")
    )
    progress = "?" if planned is None else f"{done or 0}/{planned} {unit}{'s' if planned != 1 else ''}"
    if one.kind == "sweep":
        progress = f"{one.trials} trial{'s' if one.trials != 1 else ''}"
    spread = "" if one.std is None else f"± {one.std:.2g} "
    best = "" if one.best is None else f"{one.best:.4g} {spread}{one.metric.removeprefix('val_')}"
    return one.name, one.status, _when(one, "%m-%d %H:%M"), progress, best, files.size(one.bytes)


def _when(one: Found, form: str) -> str:
    return datetime.fromtimestamp(one.changed).astimezone().strftime(form)
