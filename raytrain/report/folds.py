"""Cross-validation for people and programs: mean and standard deviation over the folds of a sweep."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

from raytrain.checkpoint import location
from raytrain.data.folds import AXIS
from raytrain.files import is_url, known_json
from raytrain.report.trials import ENDED_WELL, Results, plain
from raytrain.sweep import record
from raytrain.tools.output import write_file

WITHOUT = "--data.folds.count", "0", "--data.folds.fold", "0"
"""Flags that train the experiment of a fold on the source's own splits."""


def summary(path: Path, answer: dict[str, Any]) -> dict[str, Any] | None:
    """Return what folds.json holds: `folds`, `monitor`, `missing` (the folds that have not ended well) and `metrics`,
    of each metric the values of the folds' best epochs, `count`, how many of them have one (a fold of one class has no
    AUROC), of these the mean and the sample standard deviation (None for one value), and `direction`, whether the
    highest or the lowest value is the best (None of folds of an older version).

    Args:
        path: the sweep's directory.
        answer: the content of its sweep.json.

    Returns:
        None where the sweep is not one over folds alone.
    """
    results = Results.of(answer)
    if not results.of_folds:
        return None
    found: dict[int, dict[str, Any]] = {}
    for trial in results.trials:
        fold, figures = trial.values.get(AXIS), known_json(record.folder(path, trial.number) / "summary.json")
        if isinstance(fold, int) and trial.status in ENDED_WELL:
            found[fold] = figures
    names = dict.fromkeys(name for figures in found.values() for name in figures if name.startswith("val_"))
    monitor = next((figures["monitor"] for figures in found.values() if "monitor" in figures), None)
    if monitor in names:  # the monitored metric comes first
        names = {monitor: None} | names
    ways = {name: way for one in found.values() for name, way in one.get("directions", {}).items()}
    metrics = {}
    for name in names:
        values = {fold: figures.get(name) for fold, figures in sorted(found.items())}
        finite = [value for value in values.values() if isinstance(value, int | float) and math.isfinite(value)]
        if finite:
            std = statistics.stdev(finite) if len(finite) > 1 else None
            mean = statistics.fmean(finite)
            figures = {"mean": mean, "std": std, "count": len(finite), "direction": ways.get(name)}
            metrics[name] = {**figures, "folds": values}
    folds = sorted(trial.values[AXIS] for trial in results.trials if isinstance(trial.values.get(AXIS), int))
    missing = [fold for fold in folds if fold not in found]
    return {"folds": len(folds), "monitor": monitor, "missing": missing, "metrics": metrics}


def mean_and_std(results: Results) -> tuple[float, float | None] | None:
    """Return the mean of the first objective over the folds that have a result, and its sample standard deviation, None
    for one fold; None for a sweep of another kind, or without a result."""
    values = [trial.goal for trial in results.trials if trial.counts and trial.goal is not None]
    if not results.of_folds or not values:
        return None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def write(path: Path, answer: dict[str, Any]) -> None:
    """Write `folds.json`, if the sweep is one over folds; see `summary`.

    Raises:
        UserError: it cannot be written.
    """
    found = summary(path, answer)
    if found is not None:
        write_file(path / "folds.json", (json.dumps(found, indent=2) + "\n").encode())


def following(path: Path, where: str, results: Results) -> list[tuple[str, ...]]:
    """Return the commands that train on the splits of the source, without folds, and that evaluate all folds, or where
    some have not ended well, one of them.

    Args:
        path: the sweep's directory.
        where: what commands call it.
        results: some of them have a result.
    """
    first = next(trial.number for trial in results.trials if trial.counts)
    experiment = str(record.folder(path, first) / "experiment.json")  # `train` reads files
    run = location.join(where, f"trials/{first:04d}")
    if not is_url(where):
        experiment = f"{run}/experiment.json"
    return [
        ("raytrain", "train", experiment, *WITHOUT),
        ("raytrain", "evaluate", where if all(trial.status in ENDED_WELL for trial in results.trials) else run),
    ]


def lines(path: Path, answer: dict[str, Any]) -> list[str]:
    """Return the table of the folds' figures, with its title; nothing for other sweeps, or without a result."""
    found = summary(path, answer)
    if not found or not found["metrics"]:
        return []
    count = found["folds"] - len(found["missing"])
    fewer = any(one["count"] < count for one in found["metrics"].values())
    rows: list[tuple[str, ...]] = [("metric", "mean", "std", "lowest", "highest", *(("folds",) if fewer else ()))]
    for name, one in found["metrics"].items():
        values = [value for value in one["folds"].values() if value is not None]
        figures = (one["mean"], one["std"], min(values), max(values))
        shown = ["" if figure is None else f"{figure:.4g}" for figure in figures]
        rows.append((plain(name), *shown, *((f"{one['count']} of {found['folds']}",) if fewer else ())))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    missing = f"; no result of fold {', '.join(map(str, found['missing']))}" if found["missing"] else ""
    return [f"{count} of {found['folds']} folds, each at its best epoch{missing}", *table]
