"""The configurations of a sweep with repeats, for people: means with their intervals, and what cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from raytrain.report.html import pages, safe, scroll
from raytrain.report.scatter import Point, scatter
from raytrain.report.sweep_table import Column, laid_out, title_of
from raytrain.report.trials import Axis, Configuration, Results, Spread, cut, figure, number, text

_MOST_NAMED, _MOST_TEXT = 8, 60
_APART = {True: "yes", False: "no", None: ""}


def grid(results: Results, rows: Sequence[Configuration], width: int) -> tuple[list[Text], list[str]]:
    """Return a line for the titles and one for each configuration, none wider than `width`; and the titles of the
    columns left out."""
    best = results.configurations[0].number
    columns = [Column("config", [f"{'*' if one.number == best else ''}{one.number}" for one in rows], keep=5000)]
    for place, axis in enumerate(_varied(results)):
        cells = [_value(one, axis.path) for one in rows]
        numbers = all(number(one.values.get(axis.path, 0)) is not None for one in rows)
        columns.append(Column(axis.name, cells, not numbers, 2000 - place))
    columns.append(Column("n", [str(len(one.spreads[0].values)) for one in rows], keep=100))
    for place, objective in enumerate(results.objectives):
        name, spreads = title_of(objective.name), [one.spreads[place] for one in rows]
        means = [interval(objective.name, one) for one in spreads]
        columns.append(Column(name, means, keep=1000 - place if place else 5000, whole=True))
        columns.append(
            Column("differs", [_APART[one.told_apart] for one in spreads], keep=50 - place if place else 1500)
        )
    styles = ["bold green" if one.number == best else "" if one.spreads[0].values else "red" for one in rows]
    return laid_out(columns, styles, width)


def interval(name: str, spread: Spread) -> str:
    """Return a mean with half the width of its interval; nothing without values."""
    if spread.mean is None:
        return ""
    mean = figure(name, spread.mean)
    return mean if spread.high is None else f"{mean} ± {figure(name, spread.high - spread.mean)}"


def verdicts(results: Results) -> list[str]:
    """Return what can be said of the best configuration in each objective; nothing of a sweep without repeats."""
    places = range(len(results.objectives))
    said = [line for place in places for line in (_verdict(results, place), _order(results, place))]
    if not any(said):
        return []
    level = f"{100 * results.confidence:g}%"
    head = f"means with {level} confidence intervals; the statements of an objective hold together in {level} of sweeps"
    return [head, *filter(None, said)]


def best_in(results: Results, place: int) -> Configuration | None:
    """Return the configuration with the best mean of an objective, by its place; one of which all repeats have ended,
    if there is any."""
    sign = -1.0 if results.objectives[place].highest_is_best else 1.0
    known = [(one, mean) for one in results.configurations if (mean := one.spreads[place].mean) is not None]
    return min(known, key=lambda pair: (not pair[0].whole, sign * pair[1]))[0] if known else None


def _verdict(results: Results, place: int) -> str:
    name, best = title_of(results.objectives[place].name), best_in(results, place)
    if best is None:
        return ""
    others = [one for one in results.configurations if one is not best and one.spreads[place].values]
    alike = [one.number for one in others if one.spreads[place].told_apart is False]
    untold = [one.number for one in others if one.spreads[place].told_apart is None]
    said = f"{name}: configuration {best.number} is the best"
    if not others:
        return said
    if not alike and not untold:
        return f"{said}, and differs from each of the {len(others)} others"
    parts = [f"cannot be told apart from {_listed(alike)}"] if alike else []
    parts += [f"has too few repeats to be compared with {_listed(untold)}"] if untold else []
    return f"{said}; it {', and '.join(parts)}"


def _order(results: Results, place: int) -> str:
    """Return the groups of configurations that all differ from those of the other groups; nothing of a single one."""
    members: dict[int, list[int]] = {}
    for one in results.configurations:
        if (group := one.spreads[place].group) is not None:
            members.setdefault(group, []).append(one.number)
    found = [numbers for _, numbers in sorted(members.items())]
    if len(found) < 2:
        return ""
    more = f", and {len(found) - _MOST_NAMED} more groups" if len(found) > _MOST_NAMED else ""
    shown = ", then ".join(_listed(group) for group in found[:_MOST_NAMED])
    return f"{title_of(results.objectives[place].name)}, in groups that all differ: {shown}{more}"


def _listed(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _MOST_NAMED} more" if len(numbers) > _MOST_NAMED else ""
    return " and ".join(", ".join(map(str, sorted(numbers)[:_MOST_NAMED])).rsplit(", ", 0 if more else 1)) + more


def section(results: Results, most: int, size: int) -> str:
    """Return the HTML of the configurations: the verdicts, the spread of the repeats, and a table of at most so many,
    in parts of `size`; nothing of a sweep without repeats."""
    rows, body = results.configurations[:most], []
    if not rows:
        return ""
    for one in rows:
        cells = [cell for place, o in enumerate(results.objectives) for cell in _cells(o.name, one.spreads[place])]
        values = (_value(one, axis.path) or "-" for axis in _varied(results))
        body.append((str(one.number), *values, str(len(one.spreads[0].values)), *cells))
    names = [t for o in results.objectives for t in (title_of(o.name), "interval", "differs from the best", "group")]
    left = len(results.configurations) - len(rows)
    caption = f"Configurations, the best first{f' ({left:,} more are in sweep.json)' if left else ''}"
    heads = ("configuration", *(axis.name for axis in _varied(results)), "repeats", *names)
    lines = "\n".join(verdicts(results))
    return scroll("Comparison", f"<pre>{safe(lines)}</pre>") + _spreads(results) + pages(caption, heads, body, size)


def _cells(name: str, spread: Spread) -> tuple[str, ...]:
    ends = "" if spread.low is None else f"{figure(name, spread.low)} to {figure(name, spread.high)}"
    return figure(name, spread.mean), ends, _APART[spread.told_apart], str(spread.group or "")


def _spreads(results: Results) -> str:
    """Return a chart for each objective, with a point for each repeat."""
    charts = ""
    for place, objective in enumerate(results.objectives):
        best = best_in(results, place)
        points = [
            Point(one.number, value, f"configuration {one.number}", one is best)
            for one in results.configurations
            for value in one.spreads[place].values
        ]
        title, note = f"{objective.name} of all repeats", "A point for each repeat; large: the best configuration."
        charts += scatter(title, "configuration", objective.name, points, what="which", note=note)
    return f'<div class="charts">{charts}</div>' if charts else ""


def _varied(results: Results) -> list[Axis]:
    """Return the axes of which configurations have different values."""
    return [axis for axis in results.axes if len({_value(one, axis.path) for one in results.configurations}) > 1]


def _value(one: Configuration, path: str) -> str:
    return cut(text(one.values[path], digits=3), _MOST_TEXT) if path in one.values else ""
