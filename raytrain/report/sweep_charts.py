"""The plots of a sweep as inline SVG: its history and front, its values from axis to axis, and what mattered."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from raytrain.report.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Scale, grid, short
from raytrain.report.coordinates import ABSENT, fraction, goal_axis, height_of, said
from raytrain.report.html import details, safe, scroll, table
from raytrain.report.importance import Explained, Share, column, explained
from raytrain.report.scatter import Point, scatter
from raytrain.report.sweep_figures import (
    Learning,
    Slice,
    by_configuration,
    front_of,
    half_of,
    history,
    planes,
    points,
    reached,
    slices,
    steps,
)
from raytrain.report.trials import Axis, Results, Spread, Trial, apart, cut, figure, text
from raytrain.sweep.compare import Mean

_MOST_AXES, _MOST_PAIRS, _MOST_CURVES, _CURVE_POINTS = 12, 5, 300, 12_000
_SHADES, _LEAST_WIDE, _LEAST_UNIT, _TALL = 8, 1100, 116, 330
_HOW = {
    "factorial": "analysis of variance of a full factorial",
    "forest": "functional analysis of variance of a random forest",
    "groups": "main effects between groups of trials",
}
_KINDS = {"completed": 0, "stopped": 4, "running": 2}


def in_mebibytes(results: Results) -> Results:
    """Return results whose objectives count memory in MiB."""
    memory = [goal.name == "peak_memory_bytes" for goal in results.objectives]
    if not any(memory):
        return results

    def scaled(trial: Trial) -> Trial:
        pairs = zip(trial.objective, memory, strict=False)
        return replace(trial, objective=tuple(x / 2**20 if x is not None and small else x for x, small in pairs))

    names = ["memory, MiB" if small else goal.name for goal, small in zip(results.objectives, memory, strict=True)]
    goals = tuple(replace(goal, name=name) for goal, name in zip(results.objectives, names, strict=True))
    configurations = tuple(
        replace(one, spreads=tuple(_mebibytes(s) if small else s for s, small in zip(one.spreads, memory, strict=True)))
        for one in results.configurations
    )
    trials = tuple(map(scaled, results.trials))
    return replace(results, objectives=goals, trials=trials, configurations=configurations)


def _mebibytes(spread: Spread) -> Spread:
    ends = (None if value is None else value / 2**20 for value in (spread.mean, spread.low, spread.high))
    mean, low, high = ends
    return replace(spread, values=tuple(value / 2**20 for value in spread.values), mean=mean, low=low, high=high)


def objectives(results: Results, learning: Learning) -> str:
    """Return the history of each objective, each pair of them, and the learning curves by how trials ended."""
    found, each = "", by_configuration(results)
    for place, goal in enumerate(each.objectives):
        ended = history(each, place)
        dots = [Point(one.at, one.value, _name(each, one.trial), one.trial.number in each.marked) for one in ended]
        bars = [bar for one in ended for bar in _bar(one.at, one.trial, place)]
        note = f"Line: the best so far; the {'highest' if goal.highest_is_best else 'lowest'} is the best."
        title, x = f"{goal.name} as {each.each}s ended", f"{each.each}s that have ended"
        note += _means_said(each)
        found += scatter(title, x, goal.name, dots, steps=steps(ended), what="which", note=note, bars=bars)
    found += "".join(_plane(each, places) for places in planes(each))
    return found + "".join(_curves(results, learning, metric) for metric in learning.metrics)


def parameters(results: Results) -> str:
    """Return the importance of the axes, and each objective along each of them."""
    found = "".join(_importance(results, place) for place in range(len(results.objectives)))
    results = by_configuration(results)
    for place, goal in enumerate(results.objectives):
        for axis in results.axes[:_MOST_AXES]:
            known, means = points(results, axis, place), slices(results, axis, place)
            if len({at for _, at, _ in known}) < 2:
                continue
            dots = [
                Point(at, value, _name(results, trial), trial.number in results.marked) for trial, at, value in known
            ]
            found += scatter(
                *(f"{goal.name} by {axis.name}", axis.name, goal.name, dots),
                names=axis.levels or (),
                log=axis.log,
                bars=[(one.at, one.mean) for one in means],
                note=f"Bars: means with {100 * results.confidence:g}% confidence intervals, cut at the chart's edge.",
                data=_means(axis, goal.name, means, results.each),
            )
    return found


def _name(results: Results, trial: Trial) -> str:
    return f"{results.each} {trial.number}"


def _bar(at: float, trial: Trial, place: int) -> list[tuple[float, Mean]]:
    """Return the interval of a configuration's mean; nothing of a trial."""
    value, half = reached(trial, place), half_of(trial, place)
    return [] if value is None or half is None else [(at, Mean(2, value, value - half, value + half))]


def _means_said(results: Results) -> str:
    level = f"{100 * results.confidence:g}%"
    return f" Points: means of configurations, with {level} confidence intervals." if results.each != "trial" else ""


def _means(axis: Axis, goal: str, means: Sequence[Slice], each: str) -> str:
    rows = []
    for one in means:
        of = axis.levels[int(one.at)] if axis.levels is not None else text(one.low, 4)
        of += f" to {text(one.high, 4)}" if axis.levels is None and one.low < one.high else ""
        rows.append((of, one.mean.n, one.mean.mean, one.mean.low, one.mean.high))
    return table(f"{goal} by {axis.name}", (axis.name, f"{each}s", "mean", "low", "high"), rows)


def _plane(results: Results, places: tuple[int, int]) -> str:
    """Return two objectives over each other, with the trials that no other one dominates in their plane."""
    up, across = (results.objectives[place] for place in places)
    trials = [trial for trial in results.trials if None not in (reached(trial, place) for place in places)]
    front = front_of(results, places, trials)
    dots, bars = list[Point](), list[tuple[float, Mean]]()
    for place, trial in enumerate(trials):
        y, x = (reached(trial, one) or 0.0 for one in places)
        on_front = trial.number in results.front
        dots.append(Point(x, y, _name(results, trial), on_front and place in front, on_front and place not in front))
        bars += _bar(x, trial, places[0])
    corners = list[tuple[float, float]]()
    for one in sorted((dots[place] for place in front), key=lambda point: (point.x, point.y)):
        if corners:
            corners.append((corners[-1][0], one.y) if across.highest_is_best else (one.x, corners[-1][1]))
        corners.append((one.x, one.y))
    note = "Large: the Pareto front; line: what no trial dominates in this plane."
    note += " Rings: on the front, but dominated in this plane." if len(results.objectives) > 2 else ""
    title, note = f"{up.name} and {across.name}", note + _means_said(results)
    return scatter(title, across.name, up.name, dots, steps=corners, what="which", note=note, bars=bars)


def _curves(results: Results, learning: Learning, metric: str) -> str:
    """Return a curve for each trial, with a mark at its end."""
    rank = {trial.number: place for place, trial in enumerate(results.ranked())}
    found = sorted(learning.curves(metric, learning.unit), key=lambda one: rank[one[0].number])
    left, found = max(0, len(found) - _MOST_CURVES), found[:_MOST_CURVES]
    if len(found) < 2:
        return ""
    ends = [value for _, curve in found for _, value in curve]
    log = "loss" in metric and min(ends) > 0 and max(ends) / min(ends) > 30
    margin = (max(ends) - min(ends)) * 0.05 or abs(max(ends)) * 0.05 or 0.5
    span = (min(ends) / 1.1, max(ends) * 1.1) if log else (min(ends) - margin, max(ends) + margin)
    across = Scale(0.0, max(curve[-1][0] for _, curve in found) or 1.0, LEFT, WIDTH - RIGHT)
    up = Scale(*span, HEIGHT - BOTTOM, TOP, log=log)
    drawn = grid(across, up, f"{learning.unit}s", f"{metric}{' (log scale)' if log else ''}")
    most, kinds = max(2, _CURVE_POINTS // len(found)), dict[str, int]()
    for trial, curve in reversed(found):  # the best ones above the others
        best = trial.number == results.best
        colour = 1 if best else _KINDS.get(trial.status, 5)
        kinds[f"best: trial {trial.number} ({trial.word})" if best else trial.word] = colour
        thinned = [*curve[:: math.ceil(len(curve) / most)], curve[-1]]
        places = [(across(x), up(y)) for x, y in thinned]
        line, (left_, top) = "L".join(f"{x:g} {y:g}" for x, y in places), places[-1]
        drawn.append(f'<path class="curve c{colour}{"" if best else " thin"}" d="M{line}"/>')
        mark = f'<circle class="d{colour}" cx="{left_:g}" cy="{top:g}" r="{6 if best else 3.5}">'
        end = f"<title>{_name(results, trial)}, {safe(trial.word)}: {figure(metric, curve[-1][1])}</title>"
        if trial.status == "stopped":
            mark = f'<path class="d{colour}" d="M{left_ - 5:g} {top - 4:g}h10l-5 9z">{end}</path>'
        drawn.append(mark if trial.status == "stopped" else f"{mark}{end}</circle>")
    legend = "".join(
        f'<li><svg viewBox="0 0 32 12" aria-hidden="true"><path class="curve c{colour}" d="M0 6H32"/></svg>'
        f"{safe(word)}</li>"
        for word, colour in sorted(kinds.items(), key=lambda kind: kind[1])
    )
    notes = ["Triangles: stopped by the scheduler."] if any(trial.status == "stopped" for trial, _ in found) else []
    notes += [f"The best {len(found):,}; {left:,} more are in the trials' metrics.jsonl."] if left else []
    below = f'<p class="muted">{" ".join(notes)}</p>' if notes else ""
    label = f"{metric} of {len(found):,} trials by {learning.unit}s"
    return (
        f"<figure><h3>{safe(metric)} of each trial, and how it ended</h3>"
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{safe(label)}">{"".join(drawn)}</svg>'
        f'<ul class="legend">{legend}</ul>{below}</figure>\n'
    )


def coordinates(results: Results) -> str:
    """Return a line for each trial with a result, from its values to what it reached; nothing of fewer than two."""
    results = by_configuration(results)
    trials = sorted((trial for trial in results.trials if trial.counts), key=lambda trial: trial.goal or 0.0)
    if len(trials) < 2 or not results.axes:
        return ""
    if not results.objectives[0].highest_is_best:
        trials.reverse()
    goals = [goal_axis(goal, place, trials) for place, goal in enumerate(results.objectives)]
    axes = [*results.axes[:_MOST_AXES], *goals]
    unit = max(_LEAST_UNIT, _LEAST_WIDE / len(axes))
    width, up = unit * len(axes) + 24, Scale(0.0, 1.0, _TALL - 50, 46)
    drawn = list[str]()
    for place, trial in enumerate(trials):
        heights = [height_of(axis, trial) for axis in axes[: -len(goals)]]
        heights += [fraction(axis, reached(trial, n)) for n, axis in enumerate(goals)]
        known = [(unit * (n + 0.62), up(height)) for n, height in enumerate(heights) if not math.isnan(height)]
        best = trial.number == results.best
        shade = "c1" if best else f"s{_SHADES * place // len(trials)}"
        line = "L".join(f"{x:g} {y:g}" for x, y in known)
        said_ = f"{_name(results, trial)}: {figure(results.objectives[0].name, trial.goal)}"
        drawn.append(f'<path class="curve {shade}" d="M{line}"><title>{safe(said_)}</title></path>')
    for place, axis in enumerate(axes):
        absent = place < len(axes) - len(goals) and any(axis.path not in trial.values for trial in trials)
        drawn += _vertical(axis, unit * (place + 0.62), up, absent)
    label = f"Parallel coordinates of {len(trials):,} {results.each}s: {', '.join(axis.name for axis in axes)}"
    svg = f'<svg viewBox="0 0 {width:g} {_TALL}" role="img" aria-label="{safe(label)}" style="min-width:{width:g}px">'
    goal, lines = results.objectives[0].name, "".join(drawn)
    note = f"The stronger a line, the better its place by {goal}; thick: the best {results.each}."
    note += " The numbers are in the table."
    return (
        f"<figure><h3>From values to what was reached</h3>{scroll('Parallel coordinates', f'{svg}{lines}</svg>')}"
        f'<p class="muted">{safe(note)}</p></figure>\n'
    )


def _vertical(axis: Axis, x: float, up: Scale, absent: bool) -> list[str]:
    found = [f'<path class="upright" d="M{x:g} {up(0)}V{up(1)}"/>']
    found.append(f'<text x="{x:g}" y="24" text-anchor="middle" class="name">{safe(cut(axis.name, 18))}</text>')
    if axis.levels is not None:
        step = math.ceil(len(axis.levels) / 14)
        room = max(1, len(axis.levels) - 1)
        ticks = [(n / room if len(axis.levels) > 1 else 0.5, axis.levels[n]) for n in range(0, len(axis.levels), step)]
    elif axis.high - axis.low <= 1e-9 * max(abs(axis.low), abs(axis.high)):
        ticks = [(0.5, said(axis, axis.low))]
    else:
        values = Scale(axis.low, axis.high, 0.0, 1.0, axis.log).ticks(6)
        values = values if len(values) > 1 else [axis.low, axis.high]
        ticks = [(fraction(axis, value), said(axis, value)) for value in values]
    ticks += [(ABSENT, "absent")] if absent else []
    short = apart([words for _, words in ticks], 11)
    return found + [
        f'<path class="upright" d="M{x - 4:g} {up(at)}H{x:g}"/>'
        f'<text x="{x - 7:g}" y="{up(at) + 4:g}" text-anchor="end" class="over">{safe(short[words])}</text>'
        for at, words in ticks
    ]


def _importance(results: Results, place: int) -> str:
    """Return a bar for the share of each axis; nothing where there is nothing to say of any."""
    known = [trial for trial in results.trials if reached(trial, place) is not None]
    values = np.array([reached(trial, place) for trial in known], dtype=np.float64)
    found = explained([column(axis, known) for axis in results.axes], values)
    named = [(axis.name, share) for axis, share in zip(results.axes, found.shares, strict=True) if share is not None]
    if not named:
        return ""
    named = sorted(named, key=lambda one: -one[1].share)[: _MOST_AXES + 8]
    named += _interactions(results, found)
    rest = max(0.0, 1 - math.fsum(share.share for _, share in named))
    rows = [*named, ("the rest", Share(rest, 0.0))]
    tall = 26 * len(rows) + 34
    across, drawn = Scale(0.0, max(0.2, *(max(one.share, one.chance) for _, one in rows)), 150, WIDTH - 56), []
    for value in across.ticks(4):
        drawn.append(f'<path class="grid" d="M{across(value)} 4V{tall - 26}"/>')
        drawn.append(f'<text x="{across(value)}" y="{tall - 8}" text-anchor="middle">{short(100 * value)}%</text>')
    for row, (name, one) in enumerate(rows):
        top, own = 26 * row + 6, row < len(named)
        kind = "d0" if own and one.share > one.chance else "faint"
        end = max(across(one.share), across(one.chance))
        drawn.append(f'<text x="142" y="{top + 14}" text-anchor="end">{safe(cut(name, 21))}</text>')
        drawn.append(f'<rect class="{kind}" x="150" y="{top}" width="{across(one.share) - 150:g}" height="18"/>')
        drawn.append(f'<text x="{end + 6:g}" y="{top + 14}">{100 * one.share:.0f}%</text>')
        if own:
            drawn.append(f'<path class="upright" d="M{across(one.chance)} {top - 2}v22"/>')
    goal = results.objectives[place].name
    note = f"Share of the variance ({_HOW[found.how]}); upright lines: what chance exceeds once in twenty times."
    data = table(goal, ("axis", "share", "by chance"), [(name, one.share, one.chance) for name, one in named])
    label = f"Importance for {goal}: {', '.join(f'{name} {100 * one.share:.0f}%' for name, one in named)}"
    return (
        f"<figure><h3>{safe(f'Which axes matter for {goal}')}</h3>"
        f'<svg viewBox="0 0 {WIDTH} {tall}" role="img" aria-label="{safe(label)}">{"".join(drawn)}</svg>'
        f'<p class="muted">{note}</p>{details("Data", data)}</figure>\n'
    )


def _interactions(results: Results, found: Explained) -> list[tuple[str, Share]]:
    """Return the interactions beyond chance, the largest ones first."""
    pairs = [(pair, share) for pair, share in found.pairs.items() if share.share > share.chance]
    pairs.sort(key=lambda one: -one[1].share)
    names = [axis.name for axis in results.axes]
    return [(f"{names[a]} × {names[b]}", share) for (a, b), share in pairs[:_MOST_PAIRS]]  # noqa: RUF001
