"""What was reached along each axis: the trials as points, and means with their intervals."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raytrain.report.plots import canvas
from raytrain.report.plots.canvas import BLUE, GREY, LOG_RATIO, RED, safe
from raytrain.report.sweep_figures import by_configuration, points, slices
from raytrain.report.trials import Axis, Results

MOST_AXES = 12
_COLUMNS, _MOST_NAMES = 4, 12


def draw(results: Results) -> Figure | None:
    """Return the picture, a panel for each objective and axis that has at least two different values; None without
    any."""
    results = by_configuration(results)
    panels = [(place, axis) for place in range(len(results.objectives)) for axis in results.axes[:MOST_AXES]]
    panels = [(place, axis) for place, axis in panels if len({x for _, x, _ in points(results, axis, place)}) > 1]
    if not panels:
        return None
    columns = min(_COLUMNS, max(sum(place == other for other, _ in panels) for place, _ in panels))
    rows = sum(math.ceil(sum(place == other for other, _ in panels) / columns) for place in {p for p, _ in panels})
    figure = canvas.new_figure(max(5.6, 3.6 * columns), 0.9 + 2.7 * rows)
    plots = figure.subplots(rows, columns, squeeze=False)
    for plot in plots.flat:
        plot.set_visible(False)
    row, column, last = 0, 0, panels[0][0]
    for place, axis in panels:
        if column == columns or place != last:
            row, column, last = row + 1, 0, place
        _panel(plots[row, column], results, axis, place)
        column += 1
    level = f"{100 * results.confidence:g}%"
    dots = "trials" if results.each == "trial" else "configurations, with the mean of their repeats"
    words = f"Points: {dots}; bars: their mean with its {level} confidence interval, over {results.each}s with "
    words += "different values of the other axes. Intervals beyond a panel are cut."
    canvas.note(figure, words, 16 * figure.get_figwidth())
    figure.suptitle("What was reached along each axis", x=0.01, ha="left", weight="bold", size=11)
    return figure


def _panel(plot: Axes, results: Results, axis: Axis, place: int) -> None:
    plot.set_visible(True)
    found, goal = points(results, axis, place), results.objectives[place]
    x, y = np.array([(at, value) for _, at, value in found], dtype=np.float64).T
    marked = np.array([trial.number in results.marked for trial, _, _ in found])
    plot.plot(x[~marked], y[~marked], "o", color=GREY, markersize=3.5, alpha=0.6, markeredgewidth=0, zorder=3)
    plot.plot(
        x[marked], y[marked], "o", color=RED, markersize=5.5, markeredgecolor="white", markeredgewidth=0.6, zorder=4
    )
    if axis.levels is None and axis.log and x.min() > 0 and x.max() / x.min() > LOG_RATIO:
        canvas.logarithmic(plot, "x")
    if y.min() > 0 and y.max() / y.min() > LOG_RATIO:
        canvas.logarithmic(plot, "y")
    plot.set_ylim(plot.get_ylim())  # of the points: a mean of two may have an interval far beyond them
    means = slices(results, axis, place)
    at, middle = np.array([(one.at, one.mean.mean) for one in means], dtype=np.float64).T
    half = [0.0 if one.mean.high is None else one.mean.high - one.mean.mean for one in means]
    plot.errorbar(at, middle, half, fmt="_", color=BLUE, markersize=14, alpha=0.35, elinewidth=8, zorder=1)
    plot.plot(at, middle, "_" if axis.levels is not None else "_-", color=BLUE, markersize=14, zorder=2)
    if axis.levels is not None:
        step = math.ceil(len(axis.levels) / _MOST_NAMES)
        names = [canvas.middle(name, max(6, 36 // len(axis.levels))) for name in axis.levels]
        many = len(names) > 4
        plot.set_xticks(range(0, len(names), step), [safe(name) for name in names[::step]], size=8,
                        rotation=45 if many else 0, ha="right" if many else "center")  # fmt: skip
        plot.set_xlim(-0.5, len(axis.levels) - 0.5)
    canvas.finish(plot, safe("\n".join(canvas.wrapped(axis.path, 32))), "")
    canvas.name(plot, "y", goal.name)
