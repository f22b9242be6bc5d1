"""What each trial reached, and when: a curve a trial, from the validations of its run, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raytrain.report.plots import canvas
from raytrain.report.plots.canvas import BLUE, GREY, LOG_RATIO, ORANGE, RED, SKY, safe
from raytrain.report.sweep_figures import Curve, Learning
from raytrain.report.trials import Results, Trial

_KINDS = {"completed": (BLUE, "o"), "stopped": (ORANGE, "v"), "running": (SKY, "o")}


def draw(results: Results, learning: Learning, across: str) -> Figure | None:
    """Return the picture, a panel for each metric; None of fewer than two trials with a curve.

    Args:
        across: `seconds`, or the unit that the validations count.
    """
    found = [(metric, learning.curves(metric, across)) for metric in learning.metrics]
    found = [(metric, curves) for metric, curves in found if len(curves) > 1]
    if not found:
        return None
    figure = canvas.new_figure(7.4 if len(found) == 1 else 5.6 * len(found), 4.6)
    plots = figure.subplots(1, len(found), squeeze=False)[0]
    for plot, (metric, curves) in zip(plots, found, strict=True):
        _panel(plot, results.best, curves)
        if metric != "val_accuracy" and "loss" in metric:
            ends = np.array([value for _, curve in curves for _, value in curve])
            if ends.min() > 0 and ends.max() / ends.min() > LOG_RATIO:
                canvas.logarithmic(plot, "y")
        canvas.finish(plot, "seconds of training and validation" if across == "seconds" else f"{across}s", metric)
    title = "What each trial reached, and when" if across == "seconds" else "Learning curves, and how each trial ended"
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=11)
    named = {label: line for plot in plots for line, label in zip(*plot.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def _panel(plot: Axes, first: int | None, curves: Sequence[tuple[Trial, Curve]]) -> None:
    many, labelled = len(curves) > 40, set()
    for trial, points in sorted(curves, key=lambda found: found[0].number == first):
        curve, best = np.array(points, dtype=np.float64), trial.number == first
        colour, marker = (RED, "*") if best else _KINDS.get(trial.status, (GREY, "X"))
        word = trial.word if trial.status in _KINDS else "without a result"
        label = f"best: trial {trial.number} ({trial.word})" if best else word
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
            label=None if label in labelled else safe(label),
        )
        labelled.add(label)
    ends = [points[-1][0] for _, points in curves]
    if min(ends) > 0 and max(ends) / min(ends) > LOG_RATIO:
        canvas.logarithmic(plot, "x")
    else:
        plot.set_xlim(left=0)
