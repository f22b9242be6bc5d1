"""Which values led where: a line a trial, from its value on each axis to what it reached."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from raytrain.report.coordinates import ABSENT, fraction, goal_axis, height_of, said
from raytrain.report.plots import canvas
from raytrain.report.plots.canvas import GREY, INK, RED, safe
from raytrain.report.sweep_figures import by_configuration
from raytrain.report.trials import WITHOUT_RESULT, WORDS, Axis, Objective, Results, Trial


def draw(results: Results) -> Figure | None:
    """Return the picture; None of fewer than two trials with a result."""
    results = by_configuration(results)
    trials = [trial for trial in results.trials if trial.counts]
    if len(trials) < 2 or not results.axes:
        return None
    without = [trial for trial in results.trials if trial.status in WITHOUT_RESULT]
    goal, sign = results.objectives[0], 1.0 if results.objectives[0].highest_is_best else -1.0
    trials.sort(key=lambda trial: sign * (trial.goal or 0.0))  # the best ones are drawn last, above the others
    kinds = [status for status in WITHOUT_RESULT if any(trial.status == status for trial in without)]
    floors = {status: -0.13 - 0.07 * place for place, status in enumerate(kinds)}
    axes, lines = _lines(results, trials, [*without, *trials], floors)

    low = min([*floors.values(), *lines[~np.isnan(lines)]], default=0.0) - 0.05
    width = min(22.0, 1.75 * len(axes) + 2.2)
    figure = canvas.new_figure(width, max(4.6, width / 3) + 0.25 * len(kinds))
    plot = figure.add_subplot()
    plot.set(xlim=(-0.72, len(axes) - 1 + (0.62 if kinds else 0.12)), ylim=(low, 1.06))
    plot.axis("off")
    curves = [_smooth(line) for line in lines]
    failed = LineCollection(
        curves[: len(without)],
        colors=GREY,
        linewidths=1,
        linestyles=(0, (4, 3)),
        alpha=max(0.35, 0.8 - len(without) / 50),
    )
    plot.add_collection(failed)
    scores = np.array([trial.goal for trial in trials], dtype=np.float64)
    cmap, bottom, top = _colours(goal, scores)
    coloured = LineCollection(
        curves[len(without) :],
        cmap=cmap,
        linewidths=2.0 if len(trials) < 30 else 1.2,
        alpha=0.9 if len(trials) < 60 else 0.65,
    )
    coloured.set_array(scores)
    coloured.set_clim(bottom, top)
    plot.add_collection(coloured)
    for place, axis in enumerate(axes):
        _vertical(plot, place, axis, bool((lines[:, place] == ABSENT).any()) and place < len(results.axes))
    for status, height in floors.items():
        count = sum(trial.status == status for trial in without)
        _written(plot, len(axes) - 1 + 0.03, height, f"{WORDS.get(status, status)} ({count})", "left", INK)
    named = []
    best = [curve for curve, trial in zip(curves[len(without) :], trials, strict=True) if trial.number == results.best]
    if best:
        plot.plot(best[0][:, 0], best[0][:, 1], color=RED, linewidth=3, solid_capstyle="round")
        named.append(Line2D([], [], color=RED, linewidth=3, label=f"best: {results.each} {results.best}"))
    if without:
        named.append(Line2D([], [], color=GREY, linewidth=1, linestyle=(0, (4, 3)), label="without a result"))
    bar = figure.colorbar(coloured, ax=plot, aspect=30, shrink=0.8, pad=0.01, extend=_extend(scores, bottom, top))
    bar.solids.set_alpha(1)  # type: ignore[union-attr]
    bar.set_label(safe(f"{goal.name} ({'higher' if goal.highest_is_best else 'lower'} is better)"))
    bar.outline.set_visible(False)  # type: ignore[operator]
    if named:
        figure.legend(handles=named, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    title = f"{len(trials)} {results.each}s, from their values to what they reached"
    figure.suptitle(title, x=0.01, ha="left", weight="bold", size=11)
    return figure


def _lines(
    results: Results, trials: list[Trial], everyone: list[Trial], floors: dict[str, float]
) -> tuple[list[Axis], np.ndarray]:
    """Return the axes, and the height of each trial's line at each axis.

    Args:
        trials: those with a result, which decide the axes of the objectives.
        everyone: all that are drawn.
        floors: the height at which a line without a result ends, by the trial's status.

    Returns:
        The axes, and float64 [trials, axes].
    """
    goals = [goal_axis(objective, i, trials) for i, objective in enumerate(results.objectives)]
    heights = [np.array([height_of(axis, trial) for trial in everyone]) for axis in results.axes]
    for i, axis in enumerate(goals):
        reached = [
            floors[trial.status]
            if trial.status in floors
            else fraction(axis, trial.objective[i] if i < len(trial.objective) else None)
            for trial in everyone
        ]
        heights.append(np.array(reached, dtype=np.float64))
    return [*results.axes, *goals], np.array(heights).T


def _vertical(plot: Axes, place: int, axis: Axis, absent: bool) -> None:
    plot.plot([place, place], [0, 1], color=INK, linewidth=1, zorder=4)
    plot.text(
        place, 1.075, safe("\n".join(canvas.wrapped(axis.path, 18))), ha="center", va="bottom", size=9, weight="bold"
    )
    for height, label in _ticks(axis):
        plot.plot([place - 0.02, place], [height, height], color=INK, linewidth=1, zorder=4)
        _written(plot, place - 0.04, height, canvas.middle(label, 16), "right", INK)
    if absent:
        plot.plot([place], [ABSENT], "o", color=GREY, markersize=4, zorder=4)
        _written(plot, place - 0.04, ABSENT, "absent", "right", GREY)


def _written(plot: Axes, x: float, y: float, words: str, side: str, colour: str) -> None:
    """A text that lines may run behind."""
    halo = [withStroke(linewidth=3, foreground="white")]
    plot.text(x, y, safe(words), ha=side, va="center", size=8, color=colour, path_effects=halo, zorder=5)


def _smooth(heights: np.ndarray) -> np.ndarray:
    """Return a curve that passes every axis level, so that one can follow it: shape (points, 2)."""
    steps = np.linspace(0, 1, 25)
    ease = 3 * steps**2 - 2 * steps**3
    x = np.concatenate([place + steps for place in range(len(heights) - 1)])
    y = np.concatenate([a + (b - a) * ease for a, b in itertools.pairwise(heights)])
    return np.stack([x, y], axis=1)


def _ticks(axis: Axis) -> list[tuple[float, str]]:
    if axis.levels is not None:
        count = len(axis.levels)
        step = math.ceil(count / 16)
        return [(i / (count - 1) if count > 1 else 0.5, axis.levels[i]) for i in range(0, count, step)]
    if axis.high - axis.low <= 1e-9 * max(abs(axis.low), abs(axis.high)):
        return [(0.5, said(axis, axis.low))]
    if axis.log:
        first, last = math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high))
        step = max(1, round((last - first) / 6))
        factors = (1, 2, 5) if axis.high / axis.low < 200 else (1,)
        values = [m * 10.0**exponent for exponent in range(first, last + 1, step) for m in factors]
    else:
        values = list(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]).tick_values(axis.low, axis.high))
    room = 1e-9 * max(abs(axis.low), abs(axis.high))
    inside = [value for value in values if axis.low - room <= value <= axis.high + room]
    if len(inside) < 2:
        inside = [axis.low, axis.high]
    return [(fraction(axis, value), said(axis, float(value))) for value in inside]


def _colours(objective: Objective, scores: np.ndarray) -> tuple[Colormap, float, float]:
    """Return the better the darker; trials far worse than the rest do not take the colours from the others."""
    shades = colormaps["viridis"](np.linspace(0.93, 0.0, 256))
    q1, q3 = np.quantile(scores, [0.25, 0.75])
    fence = 1.5 * (q3 - q1)
    low, high = float(scores.min()), float(scores.max())
    if objective.highest_is_best:
        low = float(scores[scores >= q1 - fence].min())
    else:
        shades, high = shades[::-1], float(scores[scores <= q3 + fence].max())
    return ListedColormap(shades), low, high if high > low else low + (abs(low) * 1e-6 or 1e-6)


def _extend(scores: np.ndarray, low: float, high: float) -> Any:
    return "min" if scores.min() < low else "max" if scores.max() > high else "neither"
