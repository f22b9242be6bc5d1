"""What the plots of a sweep show, in numbers: its history, and the objectives by the values of an axis."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from raytrain.report.importance import column, grouped
from raytrain.report.trials import ENDED_WELL, FIGURES, WITHOUT_RESULT, Axis, Configuration, Results, Trial, number
from raytrain.run.metrics_log import VALIDATED, read_metrics, seconds_at
from raytrain.sweep.compare import Mean, mean_of
from raytrain.sweep.front import pareto_front


def by_configuration(results: Results) -> Results:
    """Return results with the configurations in place of their repeats, by number, with their means and intervals;
    without repeats the results themselves."""
    if not results.configurations:
        return results
    known = {trial.number: trial for trial in results.trials}
    found, best, front = list[Trial](), None, list[int]()
    for one in sorted(results.configurations, key=lambda one: one.number):
        if repeats := [known[number] for number in one.trials if number in known]:
            found.append(_averaged(one, repeats))
            best = one.number if results.best in one.trials else best
            front += [one.number] if {*one.trials} & {*results.front} else []
    each = "configuration"
    return replace(results, trials=tuple(found), best=best, front=tuple(front), configurations=(), each=each)


def _averaged(one: Configuration, repeats: Sequence[Trial]) -> Trial:
    """Return a configuration as if it were a trial: the means of its objectives and figures, and the end of the last
    repeat. Without a mean it has the status of a repeat that failed."""

    def mean(name: str) -> float | None:
        seen = [value for trial in repeats if (value := getattr(trial, name)) is not None]
        return statistics.fmean(seen) if len(seen) == len(repeats) else None

    broken = tuple(dict.fromkeys(text for trial in repeats for text in trial.violates))
    means = tuple(spread.mean for spread in one.spreads)
    bad = next((trial for trial in repeats if trial.status not in ENDED_WELL), repeats[0])
    good = bool(means) and means[0] is not None
    ends = [trial.ended for trial in repeats if trial.ended is not None]
    figures: dict[str, Any] = {name: mean(name) for name in FIGURES}
    figures["ended"] = max(ends) if len(ends) == len(repeats) else None
    return Trial(
        one.number,
        one.values,
        "completed" if good else bad.status,
        means,
        **figures,
        error="" if good else bad.error,
        violates=() if good else broken,
        half=tuple(None if s.mean is None or s.high is None else s.high - s.mean for s in one.spreads),
    )


@dataclass(frozen=True)
class Ended:
    """A trial in the order in which the trials ended."""

    at: int
    """How many trials had ended with it, those without a result included."""
    trial: Trial
    value: float
    best: float
    """The best value so far."""


def history(results: Results, place: int) -> list[Ended]:
    """Return the trials that have a value of an objective, in the order in which they ended; where the time of an end
    is not known, in the order of their numbers."""
    over = [trial for trial in results.trials if trial.status in (*ENDED_WELL, *WITHOUT_RESULT)]
    timed = all(trial.ended is not None for trial in over)
    over.sort(key=lambda trial: (trial.ended or 0.0 if timed else 0.0, trial.number))
    pick = max if results.objectives[place].highest_is_best else min
    found = list[Ended]()
    for at, trial in enumerate(over, 1):
        value = reached(trial, place)
        if value is not None:
            found.append(Ended(at, trial, value, pick(value, found[-1].best) if found else value))
    return found


def steps(ended: Sequence[Ended]) -> list[tuple[float, float]]:
    """Return the corners of the line of the best value so far."""
    found = [(float(one.at), one.best) for one in ended]
    between = [corner for (_, old), new in itertools.pairwise(found) for corner in ((new[0], old), new)]
    return [*found[:1], *between]


def reached(trial: Trial, place: int) -> float | None:
    """Return an objective of a trial; None of a trial that does not count."""
    return trial.objective[place] if trial.counts and place < len(trial.objective) else None


def half_of(trial: Trial, place: int) -> float | None:
    """Return half the width of the confidence interval of an objective of a configuration; None of a trial."""
    return trial.half[place] if place < len(trial.half) else None


@dataclass(frozen=True)
class Slice:
    """An objective over the trials with the same value of an axis, or with values between the same quantiles."""

    at: float
    """The place on the axis: the number of the choice, or the median of the values."""
    low: float
    high: float
    """The least and the largest value; the number of the choice."""
    mean: Mean


def placed(axis: Axis, trials: Sequence[Trial]) -> list[float | None]:
    """Return where trials are on an axis: the number of their choice, or their value; None of those without it."""
    values = column(axis, trials)
    if axis.levels is None:
        return [number(value) for value in values]
    return [float(axis.levels.index(value)) if isinstance(value, str) else None for value in values]


def points(results: Results, axis: Axis, place: int) -> list[tuple[Trial, float, float]]:
    """Return the trials that have a value of an axis and of an objective, with both."""
    pairs = zip(results.trials, placed(axis, results.trials), strict=True)
    found = [(trial, at, reached(trial, place)) for trial, at in pairs if at is not None]
    return [(trial, at, value) for trial, at, value in found if value is not None]


def slices(results: Results, axis: Axis, place: int) -> list[Slice]:
    """Return the means of an objective along an axis, with the sweep's confidence intervals: for each choice, for each
    of few numbers, or for groups of equal size of many."""
    known = points(results, axis, place)
    if not known:
        return []
    members: dict[int, list[tuple[float, float]]] = {}
    places = [at for _, at, _ in known]
    groups = grouped(places) if axis.levels is None else places  # choices stay apart, however few trials each has
    for group, (_, at, value) in zip(groups, known, strict=True):
        members.setdefault(int(group), []).append((at, value))
    found = []
    for one in members.values():
        at = sorted(at for at, _ in one)
        mean = mean_of([value for _, value in one], results.confidence)
        found.append(Slice(statistics.median(at), at[0], at[-1], mean))
    return sorted(found, key=lambda one: one.at)


def planes(results: Results) -> list[tuple[int, int]]:
    """Return the pairs of objectives, by their places."""
    return list(itertools.combinations(range(len(results.objectives)), 2))


def front_of(results: Results, places: tuple[int, int], trials: Sequence[Trial]) -> list[int]:
    """Return the places of the trials that no other one beats in two of the objectives, whatever they are in others."""
    modes = ["max" if results.objectives[place].highest_is_best else "min" for place in places]
    return pareto_front([tuple(reached(trial, place) for place in places) for trial in trials], modes)


Curve = list[tuple[float, float]]


@dataclass(frozen=True)
class Learning:
    """The validations of a sweep's trials, and what can be drawn of them."""

    metrics: tuple[str, ...]
    """The objectives that are metrics of a validation; without any the accuracy, or else the loss."""
    unit: str
    """What all validations count: epochs, or steps."""
    rows: tuple[tuple[Trial, list[dict[str, Any]]], ...]

    @classmethod
    def read(cls, results: Results, path: Path) -> Learning:
        """Read the validations of all trials; a damaged file counts as empty.

        Args:
            path: the sweep's directory.
        """
        rows = [(trial, _validations(path / "trials" / f"{trial.number:04d}")) for trial in results.trials]
        seen = [row for _, found in rows for row in found]

        def known(name: str) -> bool:
            return any(number(row.get(name)) is not None for row in seen)

        metrics = [goal.name for goal in results.objectives if goal.name.startswith("val_") and known(goal.name)]
        metrics = metrics or ["val_accuracy" if known("val_accuracy") else "val_loss"]
        unit = "epoch" if all(row["kind"] == "epoch" for row in seen) else "step"
        return cls(tuple(metrics), unit, tuple(rows))

    def curves(self, metric: str, across: str) -> list[tuple[Trial, Curve]]:
        """Return the trials with a curve: pairs of a place and the metric.

        Args:
            across: `seconds` of training and validation, or the name of another figure of a row.
        """
        found = []
        for trial, rows in self.rows:
            at = seconds_at(rows) if across == "seconds" else [row.get(across) for row in rows]
            pairs = [(number(x), number(row.get(metric))) for x, row in zip(at, rows, strict=True)]
            curve = [(x, y) for x, y in pairs if x is not None and y is not None]
            if curve:
                found.append((trial, curve))
        return found


def _validations(run: Path) -> list[dict[str, Any]]:
    try:
        rows = read_metrics(run / "metrics.jsonl")[0]
    except (OSError, ValueError, RecursionError):
        return []
    return [row for row in rows if isinstance(row, dict) and row.get("kind") in VALIDATED]
