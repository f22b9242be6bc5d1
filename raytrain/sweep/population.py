"""The comparisons of a population of trials: which trials take the weights of others, and the values they go on with.

A comparison follows from the seed, its number and what all trials reported at it, never from the order in which they
came. It is in the sweep's directory before any trial knows of it, so that a killed sweep goes on with the same one.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from raytrain.checkpoint import layout
from raytrain.files import known_json, write_atomically
from raytrain.sweep.space import Axis
from raytrain.user_code import json_types

FILE = "comparisons.json"
"""In the sweep's directory."""
_FACTORS = (0.8, 1.2)


@dataclass(frozen=True)
class Report:
    """What a trial reports at a comparison.

    Attributes:
        time: in units of the scheduler.
        step: the optimizer step.
        score: by the sweep's objective; NaN where it has none.
    """

    time: float
    step: int
    score: float


@dataclass(frozen=True)
class Move:
    """A trial takes the weights of another one.

    Attributes:
        number: the comparison's.
        trial, donor: the trials' numbers.
        step: the optimizer step of the weights.
        values: those of the axes from there on, by path.
    """

    number: int
    trial: int
    donor: int
    step: int
    values: dict[str, Any]

    def taken_by(self, found: Mapping[str, Any]) -> bool:
        """Return whether a trial's record says that it has taken them."""
        return any(one.get("comparison") == self.number for one in found.get("taken", ()))

    @property
    def pool(self) -> str:
        """The folder in the sweep's `pool` that has the weights."""
        return pool_of(self.donor, self.step)


@dataclass(frozen=True)
class Comparison:
    """A comparison that was made.

    Attributes:
        reports: of all trials that took part, by number.
        values: of these trials before it.
        moves: what came of it, by the numbers of the trials that take weights.
    """

    number: int
    reports: dict[int, Report]
    values: dict[int, dict[str, Any]]
    moves: tuple[Move, ...]


@dataclass(frozen=True)
class Taker:
    """A trial that takes weights, and what its values follow from.

    Attributes:
        made: all comparisons so far; the last one has the moves that are decided by now.
        trial, donor: the trials' numbers.
        values: the donor's.
        words: what is drawn follows from these.
        better: 1 where higher scores are better, -1 where lower ones are.
    """

    axes: tuple[Axis, ...]
    made: list[Comparison]
    trial: int
    donor: int
    values: Mapping[str, Any]
    words: str
    better: int


class Explores(Protocol):
    """Chooses values for a trial that takes weights."""

    @property
    def quantile(self) -> float:
        """The share of the population that takes weights, and that gives them."""
        ...

    def explored(self, taker: Taker) -> dict[str, Any]:
        """Return the values."""
        ...


def pool_of(trial: int, step: int) -> str:
    """Return the name of the folder in a sweep's `pool` with a trial's checkpoint after a step."""
    return f"{trial:04d}_{layout.name_of(step)}"


def pairs(scores: Mapping[int, float], quantile: float, better: int, words: str) -> list[tuple[int, int]]:
    """Return who takes weights, by number, and of whom: those of the lower quantile take them of one of the upper
    quantile each. Of equal trials the one with the lower number counts as better; trials without a score do neither.

    Args:
        scores: by the trials' numbers.
        better: 1 where higher scores are better, -1 where lower ones are.
        words: what is drawn follows from these and the trial's number.
    """
    ranked = sorted((n for n, score in scores.items() if not math.isnan(score)), key=lambda n: (-better * scores[n], n))
    count = min(math.ceil(len(ranked) * quantile), len(ranked) // 2)
    donors = ranked[:count]
    takers = sorted(ranked[len(ranked) - count :])
    return [(taker, random.Random(f"{words} {taker} donor").choice(donors)) for taker in takers]


def perturbed(axes: Iterable[Axis], values: Mapping[str, Any], resample: float, words: str) -> dict[str, Any]:
    """Return values that differ a little: each is drawn anew, or becomes a neighbour in its list, or 0.8 or 1.2 times
    what it was.

    Args:
        resample: the chance that a value is drawn anew.
        words: what is drawn follows from these.
    """
    found, draws = dict[str, Any](), random.Random(words)
    for axis in axes:
        value, listed = values[axis.path], axis.finite
        anew = draws.random() < resample
        if listed is not None and (anew or value not in listed):
            found[axis.path] = draws.choice(listed)
        elif listed is not None:
            place = listed.index(value) + draws.choice((-1, 1))
            found[axis.path] = listed[min(max(place, 0), len(listed) - 1)]
        elif anew or isinstance(value, bool) or not isinstance(value, int | float):
            found[axis.path] = axis.draw(draws.random())
        else:
            changed = value * draws.choice(_FACTORS)
            found[axis.path] = axis.clip(round(changed) if isinstance(value, int) else changed)
    return found


class Population:
    """The trials of a sweep that are compared with each other.

    Args:
        path: the sweep's directory.
        explores: chooses values.
        every: units of time between two comparisons.
        mode: of the objective, max or min.
        values: of the trials, by number, as they were proposed.
        reached: the most units of time that a trial has trained; used where the sweep has no comparisons yet.
    """

    def __init__(
        self,
        path: Path,
        explores: Explores,
        axes: tuple[Axis, ...],
        seed: int,
        every: int,
        mode: str,
        values: Mapping[int, Mapping[str, Any]],
        reached: float = 0.0,
    ):
        self.file, self.explores, self.axes, self.seed, self.every = path / FILE, explores, axes, seed, every
        self.better = 1 if mode == "max" else -1
        self.values = {number: dict(one) for number, one in values.items()}
        self.made: list[Comparison] = []
        found = known_json(self.file)
        self.first = int(found.get("first", 0)) or 1 + int(reached // every)
        for one in found.get("comparisons", ()):
            self.add(self._read(one))

    @property
    def next(self) -> int:
        """The number of the next comparison: the first one that no trial has passed."""
        if not self.made:
            return self.first
        last = self.made[-1]
        return max(last.number, *(int(one.time // self.every) for one in last.reports.values())) + 1

    @property
    def due(self) -> float:
        """The time of the next comparison."""
        return float(self.next * self.every)

    def compared(self, reports: Mapping[int, Report]) -> Comparison:
        """Return the next comparison.

        Args:
            reports: of all trials that are under way.
        """
        number, ordered = self.next, dict(sorted(reports.items()))
        words, values = f"{self.seed} {number}", {n: self.values[n] for n in ordered}
        found = Comparison(number, ordered, values, ())
        scores = {n: one.score for n, one in ordered.items()}
        for trial, donor in pairs(scores, self.explores.quantile, self.better, words):
            made, own = [*self.made, found], f"{words} {trial} values"
            taker = Taker(self.axes, made, trial, donor, self.values[donor], own, self.better)
            move = Move(number, trial, donor, ordered[donor].step, self.explores.explored(taker))
            found = Comparison(number, ordered, values, (*found.moves, move))
        return found

    def write(self, comparison: Comparison) -> None:
        """Write the file with one more comparison, which from then on is what a resumed sweep goes on with."""
        write_atomically(self.file, self._text([*self.made, comparison]))

    def save(self) -> None:
        """Write the file: from then on a sweep that is resumed knows its first comparison."""
        write_atomically(self.file, self._text(self.made))

    def moves(self) -> dict[int, Move]:
        """Return the last move of each trial that has moved."""
        return {move.trial: move for one in self.made for move in one.moves}

    def add(self, comparison: Comparison) -> None:
        """Add a comparison to those that were made."""
        self.made.append(comparison)
        for move in comparison.moves:
            self.values[move.trial] = move.values

    def _text(self, made: Iterable[Comparison]) -> str:
        lines = ",\n    ".join(json.dumps(self._said(one)) for one in made)
        held = f"\n    {lines}\n  " if lines else ""
        return f'{{\n  "first": {self.first},\n  "comparisons": [{held}]\n}}\n'

    def _said(self, one: Comparison) -> dict[str, Any]:
        """Return a comparison as the file has it: a value of a list by its place."""
        reports = {
            n: {"time": at.time, "step": at.step, "score": None if math.isnan(at.score) else at.score}
            for n, at in one.reports.items()
        }
        moves = [
            {"trial": move.trial, "from": move.donor, "step": move.step, "values": self._places(move.values)}
            for move in one.moves
        ]
        values = {n: self._places(known) for n, known in one.values.items()}
        return {"number": one.number, "reports": reports, "values": values, "moves": moves}

    def _read(self, one: Mapping[str, Any]) -> Comparison:
        number = one["number"]
        reports = {
            int(n): Report(at["time"], at["step"], math.nan if at["score"] is None else at["score"])
            for n, at in one["reports"].items()
        }
        moves = tuple(
            Move(number, move["trial"], move["from"], move["step"], self._of_places(move["values"]))
            for move in one["moves"]
        )
        return Comparison(number, reports, {int(n): self._of_places(v) for n, v in one["values"].items()}, moves)

    def _places(self, values: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for axis in self.axes:
            value, listed = values[axis.path], axis.finite
            found[axis.path] = value if listed is None else listed.index(value) if value in listed else 0
        return found

    def _of_places(self, values: Mapping[str, Any]) -> dict[str, Any]:
        listed = {axis.path: axis.finite for axis in self.axes}
        return {
            path: json_types.tuples(one) if (known := listed[path]) is None else known[one]
            for path, one in values.items()
        }
