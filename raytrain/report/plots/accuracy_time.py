"""What each trial reached, and when: a curve a trial, from the validations of its run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from raytrain.report.plots import canvas
from raytrain.report.plots.canvas import BLUE, GREY, LOG_RATIO, RED
from raytrain.report.trials import Results, number
from raytrain.run.metrics_log import VALIDATED, read_metrics, seconds_at


def draw(results: Results, path: Path) -> Figure | None:
    """Return the picture; None of fewer than two trials with a validation.

    Args:
        path: the sweep's directory.
    """
    rows = {trial.number: _validations(path / "trials" / f"{trial.number:04d}") for trial in results.trials}
    metric = "val_accuracy"
    if not any(number(row.get(metric)) is not None for found in rows.values() for row in found):
        metric = "val_loss"
    curves = [(trial, curve) for trial in results.trials if len(curve := _curve(rows[trial.number], metric))]
    if len(curves) < 2:
        return None
    figure = canvas.new_figure(7.4, 4.6)
    plot = figure.add_subplot()
    many, labelled = len(curves) > 40, set()
    curves.sort(key=lambda found: found[0].number == results.best)
    kinds = {"completed": (BLUE, "o"), "stopped": ("#E69F00", "v"), "running": ("#56B4E9", "o")}
    for trial, curve in curves:
        best = trial.number == results.best
        colour, marker = (RED, "*") if best else kinds.get(trial.status, (GREY, "X"))
        word = trial.word if trial.status in kinds else "without a result"
        label = f"best: trial {trial.number}" if best else word
        plot.plot(
            *(curve[:, 0], curve[:, 1]),
            color=colour,
            linewidth=2.4 if best else 1.1,
            alpha=1.0 if best else 0.35 if many else 0.6,
            zorder=4 if best else 2,
        )
        if not many or best:
            plot.plot(curve[:-1, 0], curve[:-1, 1], ".", color=colour, markersize=5 if best else 3, alpha=0.8)
        plot.plot(
            *(curve[-1:, 0], curve[-1:, 1], marker),
            color=colour,
            markersize=13 if best else 5,
            markeredgecolor="white",
            markeredgewidth=0.6,
            zorder=5 if best else 3,
            label=None if label in labelled else label,
        )
        labelled.add(label)
    longest = max(curve[-1, 0] for _, curve in curves)
    shortest = min(curve[-1, 0] for _, curve in curves)
    if shortest > 0 and longest / shortest > LOG_RATIO:
        canvas.logarithmic(plot, "x")
    else:
        plot.set_xlim(left=0)
    if metric == "val_loss":
        ends = np.concatenate([curve[:, 1] for _, curve in curves])
        if ends.min() > 0 and ends.max() / ends.min() > LOG_RATIO:
            canvas.logarithmic(plot, "y")
    canvas.finish(plot, "seconds of training and validation", metric)
    plot.set_title("What each trial reached, and when", loc="left", weight="bold", size=11)
    figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _validations(run: Path) -> list[dict[str, Any]]:
    """Return the rows of a run's validations; none where there are none to read."""
    try:
        rows = read_metrics(run / "metrics.jsonl")[0]
    except (OSError, ValueError, RecursionError):
        return []
    return [row for row in rows if isinstance(row, dict) and row.get("kind") in VALIDATED]


def _curve(rows: Sequence[dict[str, Any]], metric: str) -> np.ndarray:
    """(seconds, metric) after each validation that has both: shape (points, 2), float64."""
    values = zip(map(number, seconds_at(rows)), (number(row.get(metric)) for row in rows), strict=True)
    points = [(seconds, value) for seconds, value in values if None not in (seconds, value)]
    return np.array(points, dtype=np.float64).reshape(-1, 2)
