"""Curves as inline SVG, with a legend and a table of the same numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from raytrain.report.html import CURVES_LIGHT, cell, details, safe, table

WIDTH, HEIGHT = 480, 270
LEFT, RIGHT, TOP, BOTTOM = 66, 14, 42, 44
_LOG_RATIO = 30
_DASHES = ("", "7 4", "2 3", "9 3 2 3")


@dataclass(frozen=True)
class Curve:
    """A line of a chart.

    Attributes:
        name: what the legend says.
        points: (x, value) in order; a value that is not finite is None and breaks the line.
        colour: the number of its colour, counted on from 0.
        dashed: the number of its kind of dashes; 0 is a solid line.
        dots: mark each point.
    """

    name: str
    points: Sequence[tuple[float, float | None]]
    colour: int
    dashed: int = 0
    dots: bool = False


def chart(title: str, y: str, x: str, curves: Sequence[Curve], per_epoch: float | None = None) -> str:
    """Return a chart as a figure; an empty text if no curve has a finite value.

    Args:
        x: the unit of the horizontal axis: steps or epochs.
        per_epoch: steps of an epoch, for a second axis above the chart, which counts epochs.
    """
    finite = [(at, value) for curve in curves for at, value in curve.points if value is not None]
    if not finite:
        return ""
    values = [value for _, value in finite]
    log = min(values) > 0 and max(values) / min(values) > _LOG_RATIO and "loss" in y
    across = Scale(0.0, max(at for at, _ in finite) or 1.0, LEFT, WIDTH - RIGHT)
    low, high = min(values), max(values)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 0.5
    if log:
        up = Scale(low / 1.1, high * 1.1, HEIGHT - BOTTOM, TOP, log=True)
    else:
        up = Scale(0.0 if low >= 0 and low < margin * 4 else low - margin, high + margin, HEIGHT - BOTTOM, TOP)
    drawn = [*grid(across, up, x, f"{y}{' (log scale)' if log else ''}", per_epoch)]
    for curve in curves:
        drawn += _drawn(curve, across, up)
    label = f"{title}: {', '.join(curve.name for curve in curves)}, by {x}"
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{safe(label)}">{"".join(drawn)}</svg>'
    rows = [(curve.name, at, value) for curve in curves for at, value in curve.points]
    numbers = details("Data", table(title, ("curve", x, y), rows, exact=True))
    return f"<figure><h3>{safe(title)}</h3>{svg}{_legend(curves)}{numbers}</figure>\n"


@dataclass(frozen=True)
class Scale:
    """Places of values on an axis: `low` and `high` are at `first` and `last`."""

    low: float
    high: float
    first: float
    last: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        part = ((math.log(value) if self.log else value) - low) / ((high - low) or 1.0)
        return round(self.first + part * (self.last - self.first), 1)

    def ticks(self, most: int) -> list[float]:
        """Return round values within the axis, about `most` of them."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [digit * 10.0**power for power in powers for digit in ((1, 3) if len(powers) < 5 else (1,))]
            found = [value for value in found if self.low <= value <= self.high]
            return found[:: math.ceil(len(found) / most)] if found else []
        raw = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(digit * power for digit in (1, 2, 2.5, 5, 10) if digit * power >= raw * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def grid(
    across: Scale,
    up: Scale,
    x: str,
    y: str,
    per_epoch: float | None = None,
    named: Sequence[tuple[float, str]] = (),
) -> list[str]:
    """Return the axes with their ticks and labels.

    Args:
        named: places on the horizontal axis with their names, in place of numbers.
    """
    bottom, found = HEIGHT - BOTTOM, []
    for value in up.ticks(5):
        place = up(value)
        found.append(f'<path class="grid" d="M{LEFT} {place}H{WIDTH - RIGHT}"/>')
        found.append(f'<text x="{LEFT - 6}" y="{place + 4:g}" text-anchor="end">{short(value)}</text>')
    for value, text in named or [(value, short(value)) for value in across.ticks(4)]:
        found.append(f'<text x="{across(value)}" y="{bottom + 17}" text-anchor="middle">{safe(text)}</text>')
    found.append(f'<text x="{(LEFT + WIDTH) / 2:g}" y="{HEIGHT - 6}" text-anchor="middle">{safe(x)}</text>')
    found.append(f'<text x="4" y="13">{safe(y)}</text>')
    if per_epoch:
        above = Scale(0.0, across.high / per_epoch, LEFT, WIDTH - RIGHT)
        found.append(f'<text x="{WIDTH - RIGHT}" y="13" text-anchor="end">epochs</text>')
        for value in above.ticks(4):
            found.append(f'<text x="{above(value)}" y="{TOP - 10}" text-anchor="middle">{short(value)}</text>')
            found.append(f'<path class="grid" d="M{above(value)} {TOP - 6}V{bottom}"/>')
    return found


def _drawn(curve: Curve, across: Scale, up: Scale) -> list[str]:
    number, found = curve.colour % len(CURVES_LIGHT), []
    for known, group in itertools.groupby(curve.points, lambda point: point[1] is not None):
        places = [(across(at), up(value), at, value) for at, value in group if value is not None]
        if not known:
            continue
        line = "L".join(f"{left:g} {top:g}" for left, top, _, _ in places)
        found.append(f'<path class="curve c{number}"{_dash(curve)} d="M{line}"/>')
        if curve.dots or len(places) == 1:
            found += [
                f'<circle class="d{number}" cx="{left:g}" cy="{top:g}" r="3.5">'
                f"<title>{safe(curve.name)} at {at:g}: {cell(value)}</title></circle>"
                for left, top, at, value in places
            ]
    return found


def _legend(curves: Sequence[Curve]) -> str:
    each = "".join(
        '<li><svg viewBox="0 0 32 12" aria-hidden="true">'
        f'<path class="curve c{curve.colour % len(CURVES_LIGHT)}"{_dash(curve)} d="M0 6H32"/></svg>'
        f"{safe(curve.name)}</li>"
        for curve in curves
    )
    return f'<ul class="legend">{each}</ul>'


def _dash(curve: Curve) -> str:
    dash = _DASHES[curve.dashed % len(_DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def short(value: float) -> str:
    """Return the label of a tick."""
    if abs(value) >= 1e6 or 0 < abs(value) < 1e-4:
        return f"{value:.3g}"
    return f"{round(value, 10):,.10g}" if abs(value) < 1e4 else f"{value:,.0f}"
