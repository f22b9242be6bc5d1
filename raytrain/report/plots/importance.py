"""Which axes mattered: a bar for the share of each in the variance of what the trials reached."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from raytrain.report.importance import LEAST_TRIALS, Explained, Share, column, explained
from raytrain.report.plots import canvas
from raytrain.report.plots.canvas import BLUE, GREY, INK, LIGHT, safe
from raytrain.report.trials import Objective, Results, Trial, plain

_SAMPLED = (
    "Main effect of each axis (omega squared, numbers in groups of equal size); "
    "| what chance alone would exceed once in 20 times."
)
_FACTORIAL = (
    "Analysis of variance of a full factorial (omega squared); | what noise alone would exceed once in 20 times (F)."
)
_FOREST = (
    "Functional analysis of variance of a random forest (fANOVA), as far as the forest predicts trials that it has not "
    "seen; | what an axis without effect exceeds once in 20 times."
)
_SAID = {"factorial": _FACTORIAL, "forest": _FOREST, "groups": _SAMPLED}
_MOST_PAIRS = 5


def draw(results: Results) -> Figure | None:
    """Return the picture, a panel for each of the first three objectives; None where there is nothing to say of any
    axis."""
    trials = [trial for trial in results.trials if trial.counts]
    if len(trials) < 2 or not results.axes:
        return None
    goals = results.objectives[:3]
    known = [_known(results, trials, place) for place in range(len(goals))]
    pairs = _pairs([found for found, _ in known])
    figure = canvas.new_figure(3.4 + 3.8 * len(goals), 1.9 + 0.36 * (len(results.axes) + len(pairs) + 1))
    plots = figure.subplots(1, len(goals), sharey=True, squeeze=False)[0]
    first = known[0][0].shares
    order = sorted(range(len(first)), key=lambda i: -(share.share if (share := first[i]) else -1.0))
    for plot, goal, (found, values) in zip(plots, goals, known, strict=True):
        _bars(plot, [*(found.shares[i] for i in order), *(found.pairs.get(pair) for pair in pairs)], goal, values)
    if not any(plot.patches for plot in plots):
        return None
    rows = [
        *(safe(canvas.end(plain(results.axes[i].path), 38)) for i in order),
        *(safe(canvas.end(f"{results.axes[a].name} × {results.axes[b].name}", 38)) for a, b in pairs),  # noqa: RUF001
        "the rest: noise" if all(found.pairs for found, _ in known) else "the rest: interactions, noise",
    ]
    plots[0].set_yticks(range(len(rows)))
    plots[0].set_yticklabels(rows, size=9)
    plots[0].invert_yaxis()
    said = " ".join(dict.fromkeys(_SAID[found.how] for found, _ in known))
    canvas.note(figure, said + _stopped(trials), 16 * figure.get_figwidth())
    figure.suptitle("Which axes matter", x=0.01, ha="left", weight="bold", size=11)
    return figure


def _known(results: Results, trials: Sequence[Trial], place: int) -> tuple[Explained, np.ndarray]:
    """Return what the axes explain of an objective, and its values."""
    known = [trial for trial in trials if place < len(trial.objective) and trial.objective[place] is not None]
    values = np.array([trial.objective[place] for trial in known], dtype=np.float64)
    return explained([column(axis, known) for axis in results.axes], values), values


def _pairs(found: Sequence[Explained]) -> list[tuple[int, int]]:
    """Return the interactions beyond chance in any objective, the largest ones first."""
    largest: dict[tuple[int, int], float] = {}
    for one in found:
        for pair, share in one.pairs.items():
            if share.share > share.chance:
                largest[pair] = max(share.share, largest.get(pair, 0.0))
    return sorted(largest, key=lambda pair: -largest[pair])[:_MOST_PAIRS]


def _stopped(trials: Sequence[Trial]) -> str:
    count = sum(trial.status == "stopped" for trial in trials)
    were = "1 trial was" if count == 1 else f"{count} trials were"
    return f" {were} stopped early, and what was reached by then counts." if count else ""


def _bars(plot: Axes, shares: Sequence[Share | None], goal: Objective, values: np.ndarray) -> None:
    rows = len(shares) + 1
    known = [share for share in shares if share is not None]
    plot.set_title(safe(f"{goal.name}, {len(values)} trials"), size=10)
    plot.set_ylim(-0.6, rows - 0.4)
    plot.spines[["top", "right", "left"]].set_visible(False)
    plot.tick_params(axis="y", length=0)
    plot.set_xlabel("share of the variance")
    if not known:
        why = (
            f"{len(values)} trials with a result are too few\nto say which axis matters (at least {LEAST_TRIALS})"
            if len(values) < LEAST_TRIALS
            else "all trials reached the same"
            if len(np.unique(values)) < 2
            else "too few trials for each value\nto say which axis matters"
        )
        plot.text(0.5, 0.5, why, transform=plot.transAxes, ha="center", va="center", color=INK, size=10)
        plot.set(xticks=[], yticks=[], xlabel="")
        plot.spines["bottom"].set_visible(False)
        return
    rest = max(0.0, 1.0 - sum(share.share for share in known))
    widest = max(rest, *(max(share.share, share.chance) for share in known))
    for row, share in enumerate([*shares, None]):
        if row < rows - 1 and share is None:
            plot.text(0.0, row, " too few trials for each of its values", va="center", size=8, color=GREY)
            continue
        width = rest if share is None else share.share
        beyond = share is not None and share.share > share.chance
        plot.barh(row, width, height=0.62, color=BLUE if beyond else LIGHT)
        end = width if share is None else max(width, share.chance)
        label = f"{100 * width:.0f}%" + ("" if share is None or beyond else "  not beyond chance")
        plot.text(end + 0.015 * widest, row, f" {label}", va="center", size=8, color=INK if beyond else "#666666")
        if share is not None:
            plot.plot([share.chance] * 2, [row - 0.36, row + 0.36], color=INK, linewidth=1.4)
    plot.set_xlim(0, min(1.0, widest) * 1.3)
    plot.xaxis.set_major_locator(MaxNLocator(4))
    plot.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f}%" if value <= 1.0 else "")
