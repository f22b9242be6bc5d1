"""Colours, axes and safe texts of all pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from raytrain.report.trials import UNITS, cut, plain, text

# Okabe and Ito's colours, which all can tell apart
BLUE, RED, GREY, LIGHT, INK = "#0072B2", "#D55E00", "#8c8c8c", "#c8d3dc", "#333333"
ORANGE, SKY = "#E69F00", "#56B4E9"
LOG_RATIO = 30
"""Figures that span more are drawn on a logarithmic scale."""
MEANS = "configurations with the means of their repeats; bars: {:g}% confidence intervals, cut at the edge"


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches that no window belongs to."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def finish(plot: Axes, x: str, y: str) -> None:
    """Names the axes, and draws a grid."""
    plot.set_xlabel(x)
    plot.set_ylabel(safe(y))
    plot.grid(alpha=0.25)
    plot.spines[["top", "right"]].set_visible(False)


def logarithmic(plot: Axes, which: str) -> None:
    """A logarithmic scale whose numbers are written out."""
    (plot.set_xscale if which == "x" else plot.set_yscale)("log")
    axis = plot.xaxis if which == "x" else plot.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=8))
    axis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1000 else text(float(value), 3))
    axis.set_minor_formatter(NullFormatter())


def name(plot: Axes, which: str, name: str, more: str = "") -> None:
    """Name an axis after a figure; memory is counted in MiB."""
    memory = name == "peak_memory_bytes"
    words = safe(f"{'peak memory, MiB' if memory else UNITS.get(name, name)}{more}")
    (plot.set_xlabel if which == "x" else plot.set_ylabel)(words)
    axis = plot.xaxis if which == "x" else plot.yaxis
    if memory:
        axis.set_major_formatter(lambda value, _: f"{value / 2**20:,.5g}")
    elif axis.get_scale() == "linear":
        axis.set_major_formatter(lambda value, _: f"{value:,.12g}")


def note(figure: Figure, words: str, width: float) -> None:
    """Write below a figure, in lines of so many characters."""
    lines = "\n".join(textwrap.wrap(words, int(width)))
    figure.supxlabel(safe(lines), x=0.01, ha="left", size=8, color="#666666")


def wrapped(path: str, width: int) -> list[str]:
    """Return a dotted path in lines of at most `width` characters, broken behind a dot or an underscore where it can
    be."""
    lines = [""]
    for part in plain(path).replace(".", ".\0").replace("_", "_\0").split("\0"):
        if len(lines[-1]) + len(part) > width and lines[-1]:
            lines.append("")
        lines[-1] += part
    return [cut(line, width) for line in lines[:4]]


def intervals(
    plot: Axes,
    x: np.ndarray,
    y: np.ndarray,
    across: Sequence[float | None] = (),
    up: Sequence[float | None] = (),
) -> None:
    """Draw intervals around points, of which the halves are given, within the plot as it is: a mean of few values may
    have one far beyond all points."""
    halves = [np.array([0.0 if half is None else half for half in found]) for found in (across, up)]
    if any(half.any() for half in halves):
        wide, high = (half if half.any() else None for half in halves)
        plot.set(xlim=plot.get_xlim(), ylim=plot.get_ylim())
        plot.errorbar(x, y, high, wide, fmt="none", ecolor=GREY, elinewidth=1, capsize=2, alpha=0.7, zorder=1.5)


def end(words: str, limit: int) -> str:
    """Return the end of a text that is too long: of a dotted path, the part that says most."""
    return words if len(words) <= limit else "…" + words[1 - limit :]


def middle(words: str, limit: int) -> str:
    """Return the beginning and the end of a text that is too long: names of one family differ at their end."""
    half = (limit - 1) // 2
    return words if len(words) <= limit else f"{words[: limit - 1 - half]}…{words[-half:]}"


def safe(words: str) -> str:
    """Without a meaning for matplotlib, which takes what stands between two dollars for mathematics."""
    return words.replace("$", r"\$")
