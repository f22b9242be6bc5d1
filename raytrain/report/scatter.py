"""Points of two figures as inline SVG, with a table of the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raytrain.report.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Scale, grid
from raytrain.report.html import cell, details, safe, table
from raytrain.report.trials import cut
from raytrain.sweep.compare import Mean

_TITLED, _MOST_NAMES, _LOG_RATIO = 200, 6, 30


@dataclass(frozen=True)
class Point:
    """A point of a plot.

    Attributes:
        x, y: finite numbers.
        name: what it is, for the table.
        marked: draw it large, in another colour.
        ring: draw it as a ring.
    """

    x: float
    y: float
    name: str
    marked: bool = False
    ring: bool = False


def scatter(
    title: str,
    x: str,
    y: str,
    points: Sequence[Point],
    *,
    names: Sequence[str] = (),
    equal: bool = False,
    steps: Sequence[tuple[float, float]] = (),
    log: bool = False,
    what: str = "name",
    note: str = "",
    bars: Sequence[tuple[float, Mean]] = (),
    data: str = "",
) -> str:
    """Return a plot as a figure; an empty text without points.

    Args:
        names: of the places 0, 1, ... on the horizontal axis, in place of numbers.
        equal: draw the line on which both figures are equal.
        steps: a second line over the points.
        log: whether the horizontal axis is logarithmic, where its values are positive and far apart.
        what: the head of the names' column in the table.
        note: a line below the plot.
        bars: means with their intervals, at places of the horizontal axis.
        data: what is listed in place of all points.
    """
    if not points:
        return ""
    ys = [point.y for point in points]
    low, high = _span([*ys, *(point.x for point in points)])
    if equal:
        across, up = Scale(low, high, LEFT, WIDTH - RIGHT), Scale(low, high, HEIGHT - BOTTOM, TOP)
    else:
        across, up = _across(points, names, log), Scale(*_span(ys), HEIGHT - BOTTOM, TOP)
    few = len(names) <= _MOST_NAMES
    labels = [(float(at), cut(name, 60 // max(1, len(names)))) for at, name in enumerate(names)] if few else []
    drawn = grid(across, up, f"{x}{' (log scale)' if across.log else ''}", y, named=labels)
    if equal:
        drawn.append(f'<path class="rule" d="M{across(low)} {up(low)}L{across(high)} {up(high)}"/>')
    if steps:
        line = "L".join(f"{across(left):g} {up(value):g}" for left, value in steps)
        drawn.append(f'<path class="curve c1" d="M{line}"/>')
    drawn += [*_bars(bars, across, up), *_dots(points, across, up)]
    label = f"{title}: {y} by {x}, {len(points):,} points"
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{safe(label)}">{"".join(drawn)}</svg>'
    if not data:
        rows = [(point.name, names[int(point.x)] if names else point.x, point.y) for point in points]
        data = table(title, (what, x, y), rows, exact=True)
    said = f"<p class='muted'>{safe(note)}</p>" if note else ""
    return f"<figure><h3>{safe(title)}</h3>{svg}{said}{details('Data', data)}</figure>\n"


def _bars(bars: Sequence[tuple[float, Mean]], across: Scale, up: Scale) -> list[str]:
    """Return means with their intervals, as far as they lie in the plot."""
    found = []
    for at, mean in bars:
        x = across(at)
        if mean.low is not None and mean.high is not None:
            low, high = up(max(up.low, mean.low)), up(min(up.high, mean.high))
            found.append(f'<path class="bar" d="M{x} {low}V{high}"/>')
        found.append(f'<path class="curve c0" d="M{x - 9:g} {up(mean.mean)}h18"/>')
    return found


def _across(points: Sequence[Point], names: Sequence[str], log: bool) -> Scale:
    if names:
        return Scale(-0.5, len(names) - 0.5, LEFT, WIDTH - RIGHT)
    xs = [point.x for point in points]
    if log and min(xs) > 0 and max(xs) / min(xs) > _LOG_RATIO:
        return Scale(min(xs) / 1.2, max(xs) * 1.2, LEFT, WIDTH - RIGHT, log=True)
    return Scale(*_span(xs), LEFT, WIDTH - RIGHT)


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 0.5
    return low - margin, high + margin


def _dots(points: Sequence[Point], across: Scale, up: Scale) -> list[str]:
    plain, found = [point for point in points if not point.marked and not point.ring], []
    if len(plain) > _TITLED:  # one path is small
        line = "".join(f"M{across(point.x):g} {up(point.y):g}h0" for point in plain)
        found.append(f'<path class="dots c0" d="{line}"/>')
        plain = []
    for point in [*plain, *(point for point in points if point.marked or point.ring)]:
        kind, radius = ("d1", 6) if point.marked else ("curve c1", 5) if point.ring else ("d0", 3.5)
        found.append(
            f'<circle class="{kind}" cx="{across(point.x):g}" cy="{up(point.y):g}" r="{radius}">'
            f"<title>{safe(point.name)}: {cell(point.y)}</title></circle>"
        )
    return found
