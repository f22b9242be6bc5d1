"""How a search went: what each trial reached, in the order in which they ended, and the best so far."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from raytrain.report.plots import canvas
from raytrain.report.plots.canvas import BLUE, GREY, LOG_RATIO, RED
from raytrain.report.sweep_figures import by_configuration, half_of, history, steps
from raytrain.report.trials import Results


def draw(results: Results) -> Figure | None:
    """Return the picture, a panel for each objective; None of fewer than two trials with a result."""
    results = by_configuration(results)
    found = [(place, goal, history(results, place)) for place, goal in enumerate(results.objectives)]
    found = [(place, goal, ended) for place, goal, ended in found if len(ended) > 1]
    if not found:
        return None
    figure = canvas.new_figure(7.4, 0.8 + 2.8 * len(found))
    plots = figure.subplots(len(found), 1, squeeze=False)[:, 0]
    for plot, (place, goal, ended) in zip(plots, found, strict=True):
        at, values = np.array([(one.at, one.value) for one in ended], dtype=np.float64).T
        plot.plot(at, values, "o", color=GREY, markersize=4, alpha=0.7, label=f"a {results.each}")
        plot.plot(*np.array(steps(ended)).T, color=BLUE, linewidth=1.8, label="best so far")
        last = next(one for one in ended if one.value == ended[-1].best)
        if place == 0:  # a configuration that lacks a repeat may look better
            last = next((one for one in ended if one.trial.number == results.best), last)
        plot.plot([last.at], [last.value], "*", color=RED, markersize=13, markeredgecolor="white", label="best")
        beside = (6, 6) if goal.highest_is_best else (6, -13)
        named = f"{results.each} {last.trial.number}"
        plot.annotate(named, (last.at, last.value), xytext=beside, textcoords="offset points", size=8)
        plot.margins(y=0.14)
        if values.min() > 0 and values.max() / values.min() > LOG_RATIO:
            canvas.logarithmic(plot, "y")
        canvas.intervals(plot, at, values, up=[half_of(one.trial, place) for one in ended])
        canvas.finish(plot, "", "")
        canvas.name(plot, "y", goal.name, f"\n({'higher' if goal.highest_is_best else 'lower'} is better)")
    means = "" if results.each == "trial" else f"\n{canvas.MEANS.format(100 * results.confidence)}"
    plots[-1].set_xlabel(f"{results.each}s that have ended{means}")
    figure.suptitle("Optimisation history", x=0.01, ha="left", weight="bold", size=11)
    figure.legend(*plots[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure
