"""The learning-rate range test for people: a bar while it goes on, the plot and its figures, what to do next."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raytrain.loggers import Logger
from raytrain.report.console import terminal
from raytrain.report.layout import show as show_line
from raytrain.report.layout import show_facts, show_next
from raytrain.report.progress import progress
from raytrain.tools.output import write_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from raytrain.tools.lr_range import Curve


_BLUE, _RED = "#1f5fa8", "#c0392b"


class Bar(Logger):
    """What the plan warns of, and on a terminal a bar."""

    def __init__(self, steps: int):
        self._progress = progress("range test")
        self._task = self._progress.add_task("", total=steps)

    def planned(self, lines: Sequence[tuple[str, str]]) -> None:
        """Print the plan's notes, and begin the bar."""
        for note in (text for name, text in lines if name == "note"):
            show_line(self._progress.console, "note: ", note, "yellow", "yellow")
        self._progress.start()

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Move the bar."""
        self._progress.advance(self._task, len(rows))

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()


def write(curve: Curve, tested: Path, file: Path) -> None:
    """Write the plot, and beside it a .csv file with lr, loss and smoothed loss of each step.

    Args:
        tested: the experiment's file, for the title.

    Raises:
        UserError: the place cannot be written.
    """
    from raytrain.report.plots.canvas import new_figure  # matplotlib, which a search without a plot does not need

    figure = new_figure(8, 4.8)
    _draw(figure.add_subplot(), curve, tested)
    plot, text = io.BytesIO(), io.StringIO(newline="")
    figure.savefig(plot, format=file.suffix[1:])
    rows = csv.writer(text)
    rows.writerow(("step", "lr", "loss", "smoothed"))
    points = zip(curve.lr.tolist(), curve.loss.tolist(), curve.smoothed.tolist(), strict=True)
    rows.writerows((step, *point) for step, point in enumerate(points, 1))
    write_file(file, plot.getvalue())
    write_file(file.with_suffix(".csv"), text.getvalue().encode())


def show(curve: Curve, file: Path | None, command: Sequence[str], scale: float = 1.0) -> None:
    """Print what was found, and the command that trains with it.

    Args:
        file: the plot, if one was written.
        command: what trains the experiment.
        scale: what `lr_scaling` multiplies the optimizer's learning rate by.
    """
    console, kept = terminal(lasting=True), "--out lr.png keeps a plot of the losses, and lr.csv their figures"
    if file:
        kept = f"the plot is in {file}, its figures in {file.with_suffix('.csv')}"
    lowest, steepest, tenth = curve.lowest, curve.steepest, curve.tenth
    end = f"learning rates from {curve.lr[0]:.2g} to {curve.lr[-1]:.2g} in {len(curve.lr)} steps"
    if lowest is None or steepest is None or tenth is None:
        show_line(console, "", f"{end}: the loss never fell, so no learning rate is suggested")
        show_line(console, "", kept)
        show_line(console, "", "next:  try another --low and --high, or more --steps")
        return
    rows = [
        ("steepest descent", f"{steepest:.2g}"),
        ("a tenth of the lowest loss's", f"{tenth:.2g}"),
        ("lowest smoothed loss", f"{curve.smoothed[lowest]:.4f} at {curve.lr[lowest]:.2g}"),
    ]
    if scale != 1:
        rows.insert(1, (f"before lr_scaling by {scale:.4g}", f"{steepest / scale:.2g}"))
    show_facts(console, end, rows)
    show_line(console, "", kept)
    show_next(console, [_next(steepest, command, scale)])


def to_json(curve: Curve, file: Path | None, command: Sequence[str], scale: float = 1.0) -> str:
    """Return what `show` prints, as one JSON object; the suggestion is null where the loss never fell."""
    lowest, steepest = curve.lowest, curve.steepest
    return json.dumps(
        {
            "suggested_lr": None if steepest is None else steepest / scale,
            "steepest_descent": steepest,
            "tenth_of_lowest": curve.tenth,
            "lowest_loss": None if lowest is None else float(curve.smoothed[lowest]),
            "lowest_loss_lr": None if lowest is None else float(curve.lr[lowest]),
            "lr_scale": scale,
            "first_lr": float(curve.lr[0]),
            "last_lr": float(curve.lr[-1]),
            "steps": len(curve.lr),
            "plot": file and str(file),
            "curve": file and str(file.with_suffix(".csv")),
            "next": None if steepest is None else shlex.join(_next(steepest, command, scale)),
        }
    )


def _next(steepest: float, command: Sequence[str], scale: float) -> list[str]:
    return [*command, "--optimizer.lr", f"{steepest / scale:.2g}"]


def _draw(axes: Axes, curve: Curve, tested: Path) -> None:
    axes.semilogx(curve.lr, curve.loss, color=_BLUE, alpha=0.3, linewidth=1, label="loss of each batch")
    axes.semilogx(curve.lr, curve.smoothed, color=_BLUE, linewidth=2, label="smoothed loss")
    finite = curve.loss[np.isfinite(curve.loss)]
    if len(finite):  # losses of a divergence would press the curve flat
        low, high = finite.min(), finite[0]
        room = max(high - low, 0.05 * abs(high), 1e-12)
        axes.set_ylim(low - 0.1 * room, high + 0.3 * room)
    if curve.steepest is None:
        axes.text(0.02, 0.95, "no suggestion: the loss never fell", color=_RED, transform=axes.transAxes)
    else:
        loss = float(np.interp(curve.steepest, curve.lr, curve.smoothed))
        axes.axvline(curve.steepest, color=_RED, linestyle="--", linewidth=1)
        axes.plot(curve.steepest, loss, "o", color=_RED)
        axes.annotate(
            f"suggested: {curve.steepest:.2g}\n(steepest descent)",
            (curve.steepest, 0.97),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-6, 0),
            textcoords="offset points",
            horizontalalignment="right",
            verticalalignment="top",
            color=_RED,
        )
    axes.set_title(f"Learning-rate range test of {tested.name}", loc="left", weight="bold")
    axes.set_xlabel("learning rate (logarithmic scale)")
    axes.set_ylabel("training loss of a sample")
    axes.margins(x=0.02)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left")
