"""What one result costs in another: a point a trial at the sweep's two objectives, or, where it has one, at its speed
and accuracy; and which of them no other one beats."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from raytrain.report.plots import canvas
from raytrain.report.plots.canvas import BLUE, GREY, INK, LOG_RATIO, RED, safe
from raytrain.report.trials import ENDED_WELL, UNITS, WORDS, Axis, Objective, Results, Trial, text
from raytrain.sweep.front import pareto_front

_MARKERS = {"completed": ("o", "completed"), "stopped": ("v", "stopped early")}
_LABELLED = 12  # points that have a label each


def draw(results: Results) -> Figure | None:
    """Return the picture; None of fewer than two trials that have both figures."""
    across, upright, counted, pairs = _figures(results)
    both = [place for place, pair in enumerate(pairs) if None not in pair]
    trials = [counted[place] for place in both]
    if len(trials) < 2:
        return None
    x, y = np.array([pairs[place] for place in both], dtype=np.float64).T
    memory = [trial.peak_memory_bytes for trial in trials]
    modes = ["max" if goal.highest_is_best else "min" for goal in (across, upright)]
    points: list[tuple[float | None, ...]] = list(zip(x, y, strict=True))
    weighed = len(results.objectives) == 1 and sum(size is not None for size in memory) > 1
    if weighed:
        # Two digits of it: processes differ by a per cent without any reason in the trial.
        sizes = [None if size is None else float(f"{size:.1e}") for size in memory]
        points, modes = [(*point, size) for point, size in zip(points, sizes, strict=True)], [*modes, "min"]
    of_all = [i for i, trial in enumerate(trials) if trial.number in results.front]
    front = of_all if len(results.objectives) > 2 else pareto_front(points, modes)  # two of three are drawn

    figure = canvas.new_figure(7.4, 4.9)
    plot = figure.add_subplot()
    if x.min() > 0 and x.max() / x.min() > LOG_RATIO:
        canvas.logarithmic(plot, "x")
    if "accuracy" not in upright.name and y.min() > 0 and y.max() / y.min() > LOG_RATIO:
        canvas.logarithmic(plot, "y")
    mebibytes = np.array([math.nan if size is None else size / 2**20 for size in memory], dtype=np.float64)
    steps = pareto_front(list(zip(x, y, strict=True)), modes[:2])
    steps.sort(key=lambda i: x[i])
    plot.plot(
        x[steps],
        y[steps],
        drawstyle="steps-pre" if modes[0] == "max" else "steps-post",
        color=GREY,
        linewidth=1,
        linestyle="--",
        zorder=1,
    )
    _dots(plot, trials, x, y, mebibytes if weighed else None, set(front))
    chosen = range(len(trials)) if len(trials) <= _LABELLED else front
    named = _naming(results)
    shown = [WORDS.get(status, status) for status in ENDED_WELL]
    missing = [f"{count} {word}" for word, count in results.counted().items() if word not in shown]
    notes = [
        *([f"labels: {' × '.join(axis.name for axis in named)}"] if named else []),  # noqa: RUF001
        *([f"not shown: {', '.join(missing)}"] if missing else []),
    ]
    below = "\n".join([_title(across), *textwrap.wrap("; ".join(notes), 90)])
    canvas.finish(plot, safe(below), safe(_title(upright)))
    plot.margins(x=0.16, y=0.12)
    if plot.get_xscale() == "linear":
        plot.xaxis.set_major_formatter(lambda value, _: f"{value:,.12g}")
    names = [upright.name, UNITS.get(across.name, across.name), *(["memory"] if weighed else [])]
    plot.set_title(safe(f"Pareto front of {', '.join(names[:-1])} and {names[-1]}"), loc="left", weight="bold", size=11)
    figure.legend(handles=_marks(trials, set(front)), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    by_value = sorted(chosen, key=lambda i: (i not in set(front), -y[i] if modes[1] == "max" else y[i]))
    corners = [(x[i], y[j]) if modes[0] == "max" else (x[j], y[i]) for i, j in itertools.pairwise(steps)]
    staircase = [(x[i], y[i]) for i in steps]
    line = [place for pair in itertools.zip_longest(staircase, corners) for place in pair if place is not None]
    _label(figure, plot, [(x[i], y[i], _name(named, trials[i])) for i in by_value], np.stack([x, y], axis=1), line)
    return figure


def _figures(
    results: Results,
) -> tuple[Objective, Objective, list[Trial], list[tuple[float | None, float | None]]]:
    """Return what is drawn across and upright, and the trials that count with both figures of each."""
    counted = [trial for trial in results.trials if trial.counts]
    if len(results.objectives) > 1:  # the first, which chooses the best, from below to above
        upright, across, *_ = results.objectives
        counted = [trial for trial in counted if len(trial.objective) == len(results.objectives)]
        pairs = [(trial.objective[1], trial.objective[0]) for trial in counted]
    else:
        metric = "val_accuracy" if any(trial.val_accuracy is not None for trial in counted) else "val_loss"
        upright, across = Objective(metric, metric == "val_accuracy"), Objective("samples_per_second", True)
        pairs = [(trial.samples_per_second, getattr(trial, metric)) for trial in counted]
    return across, upright, counted, pairs


def _title(goal: Objective) -> str:
    return f"{UNITS.get(goal.name, goal.name)} ({'higher' if goal.highest_is_best else 'lower'} is better)"


def _dots(
    plot: Axes, trials: Sequence[Trial], x: np.ndarray, y: np.ndarray, memory: np.ndarray | None, front: set[int]
) -> None:
    """Trials as points, coloured by their memory where that is known; a ring around those of the front."""
    colours: Any = [BLUE] * len(trials)
    if memory is not None:
        low, high = float(np.nanmin(memory)), float(np.nanmax(memory))
        norm = Normalize(low, high if high > low else low + 1)
        shades = ListedColormap(colormaps["viridis"](np.linspace(0.93, 0.0, 256)))
        colours = ["white" if math.isnan(size) else shades(norm(size)) for size in memory]
        bar = plot.figure.colorbar(ScalarMappable(norm, shades), ax=plot, aspect=30, pad=0.02)
        bar.set_label("peak memory, MiB")
        bar.outline.set_visible(False)  # type: ignore[operator]
    for status, (marker, _) in _MARKERS.items():
        for on_front in (False, True):
            chosen = [i for i, trial in enumerate(trials) if trial.status == status and (i in front) == on_front]
            plot.scatter(
                *(x[chosen], y[chosen], 90 if on_front else 45),
                color=[colours[i] for i in chosen],
                marker=marker,
                edgecolors=RED if on_front else GREY,
                linewidths=2.0 if on_front else 0.6,
                zorder=3 if on_front else 2,
            )


def _marks(trials: Sequence[Trial], front: set[int]) -> list[Line2D]:
    """Return the legend of `_dots`, without a colour of its own."""
    kinds = sorted({(trial.status, i in front) for i, trial in enumerate(trials)})
    return [
        Line2D(
            *([], []),
            linestyle="",
            marker=_MARKERS[status][0],
            markersize=9 if on_front else 6,
            markerfacecolor="#dddddd",
            markeredgecolor=RED if on_front else GREY,
            markeredgewidth=2.0 if on_front else 0.6,
            label=_MARKERS[status][1] + (", on the front" if on_front else ""),
        )
        for status, on_front in kinds
    ]


def _naming(results: Results) -> list[Axis]:
    """Return the axes whose values name a point: those with a choice; none where there are too many of them."""
    chosen = [axis for axis in results.axes if axis.levels is not None and len(axis.levels) > 1]
    return chosen if len(chosen) <= 3 else []


def _name(axes: Sequence[Axis], trial: Trial) -> str:
    if not axes:
        return f"trial {trial.number}"
    return " × ".join(canvas.middle(text(trial.values.get(axis.path)), 16) for axis in axes)  # noqa: RUF001


def _label(
    figure: Figure,
    plot: Axes,
    labels: Sequence[tuple[float, float, str]],
    points: np.ndarray,
    line: Sequence[tuple[float, float]],
) -> None:
    """Put each label where it covers no point, no line and no other label; one that has no such place is left out.

    Args:
        labels: x, y and what to say of it, those that matter most first.
        points: x and y, shape (points, 2).
        line: x and y of a line's corners.
    """
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    frame, scale = plot.get_window_extent(), figure.dpi / 72
    taken = [
        Bbox.from_bounds(x - 5 * scale, y - 5 * scale, 10 * scale, 10 * scale)
        for x, y in plot.transData.transform(points)
    ]
    for (a, b), (c, d) in itertools.pairwise(plot.transData.transform(np.array(line))):
        taken.append(Bbox.from_extents(min(a, c), min(b, d), max(a, c) + 1, max(b, d) + 1))
    places = ((9, 0), (-9, 0), (0, 10), (0, -10), (8, 8), (-8, 8), (8, -8), (-8, -8))
    for x, y, words in labels:
        for right, up in places:
            note = plot.annotate(
                safe(words),
                (x, y),
                xytext=(right, up),
                textcoords="offset points",
                ha="left" if right > 0 else "right" if right < 0 else "center",
                va="bottom" if up > 0 else "top" if up < 0 else "center",
                size=8,
                color=INK,
                zorder=6,
            )
            note.set_in_layout(False)
            box = note.get_window_extent(renderer)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            note.remove()
