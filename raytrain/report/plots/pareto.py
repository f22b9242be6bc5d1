"""What one result costs in another: a point a trial at the sweep's two objectives, or, where it has one, at its speed
and accuracy; and which of them no other one beats."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
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
from raytrain.report.sweep_figures import by_configuration, half_of, planes
from raytrain.report.trials import ENDED_WELL, UNITS, WORDS, Axis, Objective, Results, Trial, text
from raytrain.sweep.front import pareto_front

_MARKERS = {"completed": ("o", "completed"), "stopped": ("v", "stopped early")}
_RINGS = (
    ("", GREY, 0.6, 6.7),
    (", on the front, dominated in this plane", INK, 2.0, 8.0),
    (", on the front", RED, 2.0, 9.5),
)
"""What the legend adds, the colour and the width of the edge, and the size of a point."""
_LABELLED = 12  # points that have a label each


@dataclass(frozen=True)
class _Plane:
    """Two figures of trials."""

    across: Objective
    upright: Objective
    trials: list[Trial]
    x: np.ndarray
    y: np.ndarray
    memory: np.ndarray | None
    """MiB, where it colours the points; NaN where it is not known."""
    front: set[int]
    """The places of the trials on the front of all objectives."""
    steps: list[int]
    """The places of the trials on the front of these two figures, from left to right."""
    halves: tuple[list[float | None], list[float | None]]
    """Of configurations: half the widths of the intervals across and upright."""


def draw(results: Results) -> Figure | None:
    """Return the picture, a panel for each pair of objectives; None where no pair has two trials with both figures."""
    results = by_configuration(results)
    found = [plane for places in planes(results) or [None] if (plane := _plane(results, places)) is not None]
    if not found:
        return None
    figure = canvas.new_figure(7.4 if len(found) == 1 else 5.4 * len(found), 4.9)
    plots = figure.subplots(1, len(found), squeeze=False)[0]
    for plot, plane in zip(plots, found, strict=True):
        _panel(plot, results, plane)
    marks = {line.get_label(): line for plane in found for line in _marks(plane)}
    figure.legend(handles=[*marks.values()], loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    for plot, plane in zip(plots, found, strict=True):
        _name_points(figure, plot, results, plane)
    return figure


def _plane(results: Results, places: tuple[int, int] | None) -> _Plane | None:
    """Return the trials in the plane of two objectives; without any in that of speed and accuracy. None of fewer than
    two trials that have both figures."""
    across, upright, counted, pairs = _figures(results, places)
    both = [place for place, pair in enumerate(pairs) if None not in pair]
    trials = [counted[place] for place in both]
    if len(trials) < 2:
        return None
    x, y = np.array([pairs[place] for place in both], dtype=np.float64).T
    modes = ["max" if goal.highest_is_best else "min" for goal in (across, upright)]
    steps = pareto_front(list(zip(x, y, strict=True)), modes)
    memory = [trial.peak_memory_bytes for trial in trials]
    if len(results.objectives) > 2:  # the sweep's front, of which two figures are drawn
        front = {i for i, trial in enumerate(trials) if trial.number in results.front}
    elif places is None and sum(size is not None for size in memory) > 1:
        # Two digits of it: processes differ by a per cent without any reason in the trial.
        sizes = [None if size is None else float(f"{size:.1e}") for size in memory]
        points: list[tuple[float | None, ...]] = list(zip(x, y, sizes, strict=True))
        front = set(pareto_front(points, [*modes, "min"]))
    else:
        front = set(steps)
    mebibytes = np.array([math.nan if size is None else size / 2**20 for size in memory], dtype=np.float64)
    weighed = places is None and sum(size is not None for size in memory) > 1
    steps.sort(key=lambda i: x[i])
    names = [goal.name for goal in results.objectives]
    halves = [
        [half_of(trial, names.index(goal.name)) if goal.name in names else None for trial in trials]
        for goal in (across, upright)
    ]
    return _Plane(across, upright, trials, x, y, mebibytes if weighed else None, front, steps, (halves[0], halves[1]))


def _panel(plot: Axes, results: Results, plane: _Plane) -> None:
    across, upright, x, y = plane.across, plane.upright, plane.x, plane.y
    if x.min() > 0 and x.max() / x.min() > LOG_RATIO:
        canvas.logarithmic(plot, "x")
    if "accuracy" not in upright.name and y.min() > 0 and y.max() / y.min() > LOG_RATIO:
        canvas.logarithmic(plot, "y")
    plot.plot(
        x[plane.steps],
        y[plane.steps],
        drawstyle="steps-pre" if across.highest_is_best else "steps-post",
        color=GREY,
        linewidth=1,
        linestyle="--",
        zorder=1,
    )
    _dots(plot, plane)
    named = _naming(results)
    shown = [WORDS.get(status, status) for status in ENDED_WELL]
    missing = [f"{count} {word}" for word, count in results.counted().items() if word not in shown]
    notes = [
        *([f"labels: {' × '.join(axis.name for axis in named)}"] if named else []),  # noqa: RUF001
        *([f"not shown: {', '.join(missing)}"] if missing else []),
        *([canvas.MEANS.format(100 * results.confidence)] if results.each != "trial" else []),
    ]
    several = len(results.objectives) > 2
    below = "\n".join([_better(across), *textwrap.wrap("; ".join(notes), 60 if several else 90)])
    canvas.finish(plot, "", "")
    canvas.name(plot, "x", across.name, below)
    canvas.name(plot, "y", upright.name, _better(upright))
    plot.margins(x=0.16, y=0.12)
    canvas.intervals(plot, x, y, *plane.halves)
    names = [upright.name, UNITS.get(across.name, across.name), *(["memory"] if plane.memory is not None else [])]
    title = f"{' and '.join(names)}" if several else f"Pareto front of {', '.join(names[:-1])} and {names[-1]}"
    plot.set_title(safe(title), loc="left", weight="bold", size=11)


def _name_points(figure: Figure, plot: Axes, results: Results, plane: _Plane) -> None:
    """Put names beside the points, or beside those of the front of many."""
    x, y, steps, named = plane.x, plane.y, plane.steps, _naming(results)
    chosen = range(len(plane.trials)) if len(plane.trials) <= _LABELLED else plane.front
    sign = -1.0 if plane.upright.highest_is_best else 1.0
    by_value = sorted(chosen, key=lambda i: (i not in plane.front, sign * y[i]))
    right = plane.across.highest_is_best
    corners = [(x[i], y[j]) if right else (x[j], y[i]) for i, j in itertools.pairwise(steps)]
    staircase = [(x[i], y[i]) for i in steps]
    line = [place for pair in itertools.zip_longest(staircase, corners) for place in pair if place is not None]
    labels = [(x[i], y[i], _name(named, plane.trials[i], results.each)) for i in by_value]
    _label(figure, plot, labels, np.stack([x, y], axis=1), line)


def _figures(
    results: Results, places: tuple[int, int] | None
) -> tuple[Objective, Objective, list[Trial], list[tuple[float | None, float | None]]]:
    """Return what is drawn across and upright, and the trials that count with both figures of each."""
    counted = [trial for trial in results.trials if trial.counts]
    if places is not None:  # the first, which chooses the best, from below to above
        first, second = places
        upright, across = results.objectives[first], results.objectives[second]
        counted = [trial for trial in counted if len(trial.objective) == len(results.objectives)]
        pairs = [(trial.objective[second], trial.objective[first]) for trial in counted]
    else:
        metric = "val_accuracy" if any(trial.val_accuracy is not None for trial in counted) else "val_loss"
        upright, across = Objective(metric, metric == "val_accuracy"), Objective("samples_per_second", True)
        pairs = [(trial.samples_per_second, getattr(trial, metric)) for trial in counted]
    return across, upright, counted, pairs


def _better(goal: Objective) -> str:
    return f" ({'higher' if goal.highest_is_best else 'lower'} is better)"


def _dots(plot: Axes, plane: _Plane) -> None:
    """Trials as points, coloured by their memory where that is known; a ring around those of the front."""
    colours: Any = [BLUE] * len(plane.trials)
    if plane.memory is not None:
        low, high = float(np.nanmin(plane.memory)), float(np.nanmax(plane.memory))
        norm = Normalize(low, high if high > low else low + 1)
        shades = ListedColormap(colormaps["viridis"](np.linspace(0.93, 0.0, 256)))
        colours = ["white" if math.isnan(size) else shades(norm(size)) for size in plane.memory]
        bar = plot.figure.colorbar(ScalarMappable(norm, shades), ax=plot, aspect=30, pad=0.02)
        bar.set_label("peak memory, MiB")
        bar.outline.set_visible(False)  # type: ignore[operator]
    kinds = [_kind(plane, i) for i in range(len(plane.trials))]
    for status, (marker, _) in _MARKERS.items():
        for place, (_, edge, width, size) in enumerate(_RINGS):
            chosen = [i for i, trial in enumerate(plane.trials) if trial.status == status and kinds[i] == place]
            plot.scatter(
                *(plane.x[chosen], plane.y[chosen], size**2),
                color=[colours[i] for i in chosen],
                marker=marker,
                edgecolors=edge,
                linewidths=width,
                zorder=2 + 0.1 * place,
            )


def _kind(plane: _Plane, i: int) -> int:
    """Return the ring of a trial: whether it is on the front, and then whether another beats it in this plane."""
    return 0 if i not in plane.front else 2 if i in plane.steps or plane.memory is not None else 1


def _marks(plane: _Plane) -> list[Line2D]:
    """Return the legend of `_dots`, without a colour of its own."""
    kinds = sorted({(trial.status, _kind(plane, i)) for i, trial in enumerate(plane.trials)})
    return [
        Line2D(
            *([], []),
            linestyle="",
            marker=_MARKERS[status][0],
            markersize=_RINGS[kind][3],
            markerfacecolor="#dddddd",
            markeredgecolor=_RINGS[kind][1],
            markeredgewidth=_RINGS[kind][2],
            label=_MARKERS[status][1] + _RINGS[kind][0],
        )
        for status, kind in kinds
    ]


def _naming(results: Results) -> list[Axis]:
    """Return the axes whose values name a point: those with a choice; none where there are too many of them."""
    chosen = [axis for axis in results.axes if axis.levels is not None and len(axis.levels) > 1]
    return chosen if len(chosen) <= 3 else []


def _name(axes: Sequence[Axis], trial: Trial, each: str) -> str:
    if not axes:
        return f"{each} {trial.number}"
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
