"""The curves of runs: their rows of metrics.jsonl as charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from raytrain.report.charts import Curve, chart
from raytrain.report.html import safe
from raytrain.report.trials import cut, number
from raytrain.run.metrics_log import VALIDATED, read_metrics, seconds_at
from raytrain.run.run import Run

_POINTS, _ALL_POINTS, _PAGE_POINTS = 300, 3000, 15_000
"""The most points of a curve, of all curves of a chart, and of a page."""
_MOST_CHARTS = 40


@dataclass(frozen=True)
class Rows:
    """The metrics of a run."""

    name: str
    steps: tuple[dict[str, Any], ...]
    validations: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, run: Run, name: str) -> Rows:
        """Read a run's metrics.jsonl; rows without a step are left out."""
        found = [row for row in read_metrics(run.path / "metrics.jsonl")[0] if number(row.get("step")) is not None]
        steps = tuple(row for row in found if row["kind"] == "step")
        return cls(name, steps, tuple(row for row in found if row["kind"] in VALIDATED))

    @cached_property
    def per_epoch(self) -> float | None:
        """Steps of an epoch; None before the first epoch has ended."""
        ends = [(row["step"], number(row.get("epoch"))) for row in self.validations if row["kind"] == "epoch"]
        return next((step / epoch for step, epoch in ends if epoch), None)

    @property
    def metrics(self) -> list[str]:
        """The names of the validation's metrics."""
        names = dict.fromkeys(name for row in self.validations for name in row if name.startswith("val_"))
        return [name for name in names if any(number(row.get(name)) is not None for row in self.validations)]

    @property
    def seconds(self) -> list[float]:
        """Seconds of training and validation up to each validation."""
        return seconds_at(self.validations)


def charts(runs: Sequence[Rows]) -> str:
    """Return the charts of one run, or of several over each other: loss, each metric of the validation, learning rate.

    The horizontal axis counts steps, with epochs above. Runs whose epochs have different numbers of steps are compared
    by epochs.
    """
    lengths = {rows.per_epoch for rows in runs}
    per_epoch = next(iter(lengths)) if len(lengths) == 1 else None
    by_epochs = len(lengths) > 1 and None not in lengths
    x = "epochs" if by_epochs else "steps"
    kinds = 2 if len(runs) > 1 else 1
    names = list(dict.fromkeys(name for rows in runs for name in rows.metrics if name != "val_loss"))
    left, names = names[_MOST_CHARTS:], names[:_MOST_CHARTS]
    drawable = (len(names) + 3) * len(runs)
    most = max(6, min(_POINTS, _ALL_POINTS // (kinds * len(runs)), _PAGE_POINTS // drawable))

    def curves(rows_of: Callable[[Rows], Iterable[dict[str, Any]]], name: str, said: str, mean: bool) -> list[Curve]:
        found = []
        for place, rows in enumerate(runs):
            per = rows.per_epoch if by_epochs else None
            points = [
                (row["step"] / per if per else row["step"], number(row.get(name)))
                for row in rows_of(rows)
                if name in row
            ]
            size = math.ceil(len(points) / most)
            points = _means(points, size) if mean else _thinned(points, size)
            extra = f", mean of {size:,} steps" if mean and size > 1 else ""
            label = f"{said}{extra}" if len(runs) == 1 else f"{rows.name}{f': {said}{extra}' if said else ''}"
            if any(value is not None for _, value in points):
                dashed = place // 6
                found.append(Curve(label, points, place, dashed, dots=not mean and name != "lr" and len(points) <= 60))
        return found

    losses = curves(lambda rows: rows.steps, "loss", "training", True)
    checked = curves(lambda rows: rows.validations, "val_loss", "validation", False)
    if len(runs) == 1:
        checked = [Curve(one.name, one.points, 1, 1, one.dots) for one in checked]
        drawn = [chart("Loss", "loss", x, [*losses, *checked], per_epoch)]
    else:
        drawn = [chart("Training loss", "loss", x, losses, per_epoch)]
        drawn.append(chart("val_loss", "val_loss", x, checked, per_epoch))
    for name in names:
        said = name if len(runs) == 1 else ""
        drawn.append(chart(name, name, x, curves(lambda rows: rows.validations, name, said, False), per_epoch))
    rates = curves(lambda rows: rows.steps, "lr", "learning rate" if len(runs) == 1 else "", False)
    drawn.append(chart("Learning rate", "learning rate", x, rates, per_epoch))
    found = "".join(drawn)
    if left:
        found += (
            f"<p class='muted'>{len(left):,} more metrics are in metrics.jsonl: {safe(cut(', '.join(left), 500))}</p>"
        )
    return f'<div class="charts">{found}</div>' if found else "<p>The run has no metrics yet.</p>"


def _means(points: Sequence[tuple[float, float | None]], size: int) -> list[tuple[float, float | None]]:
    """Return the mean of each `size` following points, at the last of them; None where all are None."""
    found: list[tuple[float, float | None]] = []
    for first in range(0, len(points), max(1, size)):
        part = points[first : first + size]
        known = [value for _, value in part if value is not None]
        found.append((part[-1][0], math.fsum(known) / len(known) if known else None))
    return found


def _thinned(points: Sequence[tuple[float, float | None]], size: int) -> list[tuple[float, float | None]]:
    """Return each `size`-th point, and the last one."""
    if size <= 1:
        return list(points)
    return [*points[::size], *([points[-1]] if (len(points) - 1) % size else [])]
