"""The content of a sweep's sweep.json, for reports. Any figure may be missing, and the file may be damaged or foreign:
values of a wrong type become None, and texts are made safe for terminals and pictures."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raytrain.data.folds import AXIS
from raytrain.sweep.front import pareto_front

ENDED_WELL = ("completed", "stopped")
"""Statuses of trials whose objective counts."""
WITHOUT_RESULT = ("infeasible", "diverged", "timed_out", "crashed", "failed")
"""Statuses of trials that ended in another way."""
WORDS = {"stopped": "stopped early", "timed_out": "timed out"}
"""What people read instead of a status."""
BREAKS = "over a limit"
"""What people read instead of the status of a trial that breaks a constraint."""
UNITS = {"samples_per_second": "samples/s", "peak_memory_bytes": "memory"}
"""What people read instead of a figure's name."""

_HUGE = 1e100
_VAGUE = ("name", "class", "strategy")


@dataclass(frozen=True)
class Axis:
    """An axis of the search."""

    path: str
    """The dotted path of the field."""
    name: str
    """The shortest end of the path that no other axis has."""
    levels: tuple[str, ...] | None = None
    """The texts of the values to choose from, numbers in ascending order; None: an axis of numbers."""
    low: float = 0.0
    high: float = 1.0
    log: bool = False


@dataclass(frozen=True)
class Objective:
    """What the search is for."""

    name: str
    highest_is_best: bool


@dataclass(frozen=True)
class Trial:
    """A trial as it is, or as it was left. Figures are finite or None."""

    number: int
    values: dict[str, Any]
    status: str
    objective: tuple[float | None, ...]
    epochs: float | None
    of_epochs: float | None
    steps: float | None
    of_steps: float | None
    val_accuracy: float | None
    val_loss: float | None
    samples_per_second: float | None
    seconds: float | None
    peak_memory_bytes: float | None
    attempts: float | None
    started: float | None
    ended: float | None
    error: str
    violates: tuple[str, ...] = ()
    """The constraints that it breaks, as the sweep has them."""
    configuration: float | None = None
    repeat: float | None = None
    """Which repeat of its configuration, where each has several."""
    host: str = ""
    """Where its last attempt ran, in a cluster of several nodes."""
    half: tuple[float | None, ...] = ()
    """Of the mean of several repeats: half the width of the confidence interval of each objective."""

    @classmethod
    def of(cls, record: dict[str, Any], place: int) -> Trial:
        """Read a record of sweep.json's `trials`.

        Args:
            place: the number of a trial that has none.
        """
        given, values, objective, broken = (record.get(key) for key in ("number", "values", "objective", "violates"))
        over = record.get("status") != "interrupted"  # it may still come to keep the constraints
        return cls(
            given if isinstance(given, int) and not isinstance(given, bool) else place,
            values if isinstance(values, dict) else {},
            str(record.get("status") or "pending"),
            tuple(map(number, objective)) if isinstance(objective, list | tuple) else (number(objective),),
            *(number(record.get(name)) for name in FIGURES),
            error=plain(str(record.get("error") or "")),
            violates=tuple(plain(str(one)) for one in broken) if isinstance(broken, list) and over else (),
            configuration=number(record.get("configuration")),
            repeat=number(record.get("repeat")),
            host=plain(str(record.get("host") or "")),
        )

    @property
    def goal(self) -> float | None:
        """The first objective."""
        return self.objective[0] if self.objective else None

    @property
    def word(self) -> str:
        """The status, for people."""
        return BREAKS if self.violates else plain(WORDS.get(self.status, self.status))

    @property
    def done(self) -> tuple[str, str]:
        """How far it is, such as 2/3, and in what: epochs, or steps where its length is a number of steps."""
        in_steps = self.of_steps is not None
        done, of = (self.steps, self.of_steps) if in_steps else (self.epochs, self.of_epochs)
        return f"{done or 0:.12g}" + (f"/{of:.12g}" if of else ""), "step" if in_steps else "epoch"

    @property
    def counts(self) -> bool:
        """Whether it has a result that others can be compared with."""
        return self.status in ENDED_WELL and self.goal is not None and not self.violates


FIGURES = (
    *("epochs", "of_epochs", "steps", "of_steps", "val_accuracy", "val_loss", "samples_per_second", "seconds"),
    *("peak_memory_bytes", "attempts", "started", "ended"),
)
"""The figures of a trial, as sweep.json names them."""


@dataclass(frozen=True)
class Spread:
    """An objective over the repeats of a configuration. Figures are finite or None."""

    values: tuple[float, ...]
    mean: float | None
    low: float | None
    high: float | None
    told_apart: bool | None
    """From the best configuration in this objective; None where that is not known, and of the best one itself."""
    group: int | None = None
    """The place of its group in the order of those that differ from each other, from 1 on; None where not tested."""


@dataclass(frozen=True)
class Configuration:
    """Trials that differ in their seeds or folds alone."""

    number: int
    trials: tuple[int, ...]
    values: dict[str, Any]
    whole: bool
    """Whether all repeats have ended."""
    spreads: tuple[Spread, ...]
    """One for each objective."""

    @classmethod
    def of(cls, row: dict[str, Any], place: int, objectives: int) -> Configuration:
        """Read a row of sweep.json's `configurations`."""
        given, values, trials = (row.get(key) for key in ("number", "values", "trials"))
        columns = [*_dicts(row.get("objectives")), *[{}] * objectives][:objectives]
        return cls(
            given if isinstance(given, int) and not isinstance(given, bool) else place,
            tuple(one for one in trials if isinstance(one, int)) if isinstance(trials, list) else (),
            values if isinstance(values, dict) else {},
            row.get("whole") is True,
            tuple(_spread(column) for column in columns),
        )


def _spread(column: dict[str, Any]) -> Spread:
    values, apart, group = (column.get(name) for name in ("values", "told_apart", "group"))
    found = tuple(number(value) for value in values) if isinstance(values, list) else ()
    mean, low, high = (number(column.get(name)) for name in ("mean", "low", "high"))
    known = tuple(value for value in found if value is not None)
    whole = isinstance(group, int) and not isinstance(group, bool)
    return Spread(known, mean, low, high, apart if isinstance(apart, bool) else None, group if whole else None)


Known = dict[int, tuple[dict[str, Any], Trial]]
"""Records and what was read of them, by their place."""


@dataclass(frozen=True)
class Results:
    """A sweep, as far as it has come."""

    status: str
    seconds: float | None
    axes: tuple[Axis, ...]
    objectives: tuple[Objective, ...]
    trials: tuple[Trial, ...]
    best: int | None
    """The number of the trial that is best in the first objective; None of folds, of which none is better."""
    front: tuple[int, ...]
    """The numbers of the trials that no other one beats in all objectives."""
    configurations: tuple[Configuration, ...] = ()
    """Where each has several trials: the best one first."""
    confidence: float = 0.95
    limits: tuple[str, ...] = ()
    """The constraints of the sweep."""
    by_fold: bool = False
    """Whether the trials of a configuration are those of a cross-validation."""
    each: str = "trial"
    """What each of `trials` is: a trial, or a configuration; see `sweep_figures.by_configuration`."""

    @classmethod
    def of(cls, answer: dict[str, Any], known: Known | None = None) -> Results:
        """Read what sweep.json holds.

        Args:
            known: keeps the trials from one call to the next: a record that is the same object is not read again.
        """
        records, goals = _dicts(answer.get("trials")), _dicts(answer.get("objectives"))
        sweep, groups = answer.get("sweep"), _dicts(answer.get("configurations"))
        limits = sweep.get("constraints") if isinstance(sweep, dict) else None
        known = {} if known is None else known
        for place, record in enumerate(records):
            if place not in known or known[place][0] is not record:
                known[place] = record, Trial.of(record, place)
        trials = tuple(known[place][1] for place in range(len(records)))
        objectives = tuple(
            Objective(plain(str(goal.get("name") or "objective")), goal.get("mode") != "min") for goal in goals
        ) or (Objective("objective", True),)
        found_best, found_front = _best(trials, objectives[0]), _front(trials, objectives)
        numbers = {trial.number for trial in trials}
        best, front = answer.get("best", found_best), answer.get("front", found_front)
        found = cls(
            plain(str(answer.get("status") or "unfinished")),
            number(answer.get("seconds")),
            _axes(_dicts(sweep.get("axes")) if isinstance(sweep, dict) else [], trials),
            objectives,
            trials,
            best if isinstance(best, int) and best in numbers else found_best,
            tuple(n for n in front if isinstance(n, int) and n in numbers) if isinstance(front, list) else found_front,
            tuple(Configuration.of(row, place, len(objectives)) for place, row in enumerate(groups)),
            (number(sweep.get("confidence")) if isinstance(sweep, dict) else None) or 0.95,
            tuple(plain(str(one)) for one in limits) if isinstance(limits, list) else (),
            isinstance(sweep, dict) and sweep.get("by_fold") is True,
        )
        return replace(found, best=None, front=()) if found.of_folds else found

    @property
    def of_folds(self) -> bool:
        """Whether the trials are the folds of a cross-validation."""
        return [axis.path for axis in self.axes] == [AXIS]

    @property
    def marked(self) -> set[int]:
        """The numbers of the trials to point at: the best one, or with several objectives the front."""
        if len(self.objectives) > 1:
            return set(self.front)
        return set() if self.best is None else {self.best}

    def ranked(self) -> list[Trial]:
        """Running trials, those with a result from the best one on, those without one, and those to come."""
        sign = -1.0 if self.objectives[0].highest_is_best else 1.0

        def key(trial: Trial) -> tuple[int, float, int]:
            if trial.status == "running":
                return 0, 0.0, trial.number
            if trial.counts and trial.goal is not None:
                return 1, sign * trial.goal, trial.number
            return (3 if trial.status == "pending" else 2), 0.0, trial.number

        return sorted(self.trials, key=key)

    def counted(self) -> dict[str, int]:
        """Return how many trials have each status, in the order of a trial's life."""
        order = ("running", "pending", *ENDED_WELL, *WITHOUT_RESULT)
        found: dict[str, int] = {}
        for trial in sorted(self.trials, key=lambda t: order.index(t.status) if t.status in order else len(order)):
            found[trial.word] = found.get(trial.word, 0) + 1
        return found


def number(value: Any) -> float | None:
    """Return a finite number that can be squared and drawn, or None."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < _HUGE:  # NaN is not less
        return None
    return value if abs(value) > 1 / _HUGE else 0


def plain(text: str) -> str:
    """One line of characters that all can be seen: a `?` for each that a terminal might obey."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def cut(words: str, limit: int) -> str:
    """Return the beginning of a text that is too long."""
    return words if len(words) <= limit else words[: limit - 1] + "…"


def apart(words: Iterable[str], limit: int) -> dict[str, str]:
    """Return the short form of each text, as `cut` has it; of those that would look alike, what follows their common
    beginning: `…=(1.0, 5.0))` of `Segmentation(class_weights=(1.0, 5.0))`."""
    short = {word: cut(word, limit) for word in words}
    alike: dict[str, list[str]] = {}
    for word, form in short.items():
        alike.setdefault(form, []).append(word)
    for group in alike.values():
        if len(group) > 1 and limit > 2:
            common = os.path.commonprefix(group)  # noqa: RUF071
            found = re.finditer(r"[(\[= ]", common)
            starts = [at for m in found if (at := m.end() if m[0] == " " else m.start())] or [len(common)]
            room = max(map(len, group)) - limit + 1
            start = next((at for at in starts if at >= room), starts[-1])
            rests = apart((word[start:] for word in group), limit - 1)
            short |= {word: "…" + rests[word[start:]].lstrip("…") for word in group}
    return short


def text(value: Any, digits: int = 12) -> str:
    """Return a value of an axis, as one would write it."""
    if isinstance(value, float):
        return f"{value:.{digits}g}".replace("e-0", "e-").replace("e+0", "e+")
    if isinstance(value, dict):
        name = str(value.get("class", "")).rpartition(":")[2]
        return f"{plain(name)}({', '.join(f'{plain(k)}={text(v)}' for k, v in value.items() if k != 'class')})"
    if isinstance(value, list | tuple):
        return f"[{', '.join(text(item) for item in value)}]"
    return plain(str(value))


def figure(name: str, value: float | None) -> str:
    """Return a figure with the digits and the unit that it is read with; nothing for None."""
    if value is None:
        return ""
    if name == "peak_memory_bytes":
        return f"{value / 2**20:,.0f} MiB"
    if name == "samples_per_second" or (abs(value) >= 1e4 and not name.startswith("val_")):
        return f"{value:,.0f}" if abs(value) < 1e12 else f"{value:.3g}"
    return f"{value:.1f}" if name == "seconds" else (f"{value:.4f}" if 1e-3 <= abs(value) < 1e6 else f"{value:.3g}")


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list | tuple) else []


def _axes(saved: list[dict[str, Any]], trials: Sequence[Trial]) -> tuple[Axis, ...]:
    """Return the sweep's axes, and what else its trials have values of."""
    described = {str(axis["path"]): axis for axis in saved if "path" in axis}
    paths = list(dict.fromkeys([*described, *(path for trial in trials for path in trial.values)]))
    return tuple(_axis(path, _short(path, paths), described.get(path, {}), trials) for path in paths)


def _axis(path: str, name: str, saved: dict[str, Any], trials: Sequence[Trial]) -> Axis:
    seen = [trial.values[path] for trial in trials if path in trial.values]
    found = [number(value) for value in (saved.get("low"), saved.get("high"), *seen)]
    numbers = [float(value) for value in found if value is not None]
    if len(numbers) == len(found):
        log = "Log" in str(saved.get("class", "")).rpartition(":")[2] or saved.get("log") is True
        return Axis(path, name, None, min(numbers), max(numbers), log and min(numbers) > 0)
    listed = saved.get("values")
    values = [*(_named(listed) if isinstance(listed, list) else []), *seen]
    if all(number(value) is not None for value in values):
        values.sort()
    return Axis(path, name, tuple(dict.fromkeys(map(text, values))))


def _named(values: list[Any]) -> list[Any]:
    """Return the values of an axis as trials have them: objects by the names of their classes, which trials write in
    full where two are of one class, so that these are left to the trials."""
    names = [str(value.get("class", "")).rpartition(":")[2] if isinstance(value, dict) else None for value in values]
    return [
        value if name is None else name
        for value, name in zip(values, names, strict=True)
        if name is None or (names.count(name) == 1 and name.isidentifier())
    ]


def _short(path: str, paths: Sequence[str]) -> str:
    parts = path.split(".")
    for count in range(1, len(parts) + 1):
        end = ".".join(parts[-count:])
        alone = sum(other == end or other.endswith(f".{end}") for other in paths) == 1
        if alone and (end not in _VAGUE or count == len(parts)):
            return plain(end)
    return plain(path)


def _best(trials: Sequence[Trial], objective: Objective) -> int | None:
    found = [(trial.goal, -trial.number) for trial in trials if trial.counts and trial.goal is not None]
    if not found:
        return None
    sign = 1.0 if objective.highest_is_best else -1.0
    return -max(found, key=lambda pair: (sign * pair[0], pair[1]))[1]


def _front(trials: Sequence[Trial], objectives: Sequence[Objective]) -> tuple[int, ...]:
    fit = [trial for trial in trials if trial.counts and len(trial.objective) == len(objectives)]
    modes = ["max" if objective.highest_is_best else "min" for objective in objectives]
    return tuple(fit[i].number for i in pareto_front([trial.objective for trial in fit], modes))
