"""A sweep on disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from raytrain import errors
from raytrain.checkpoint import location
from raytrain.files import is_url, needed_json
from raytrain.run.run import Run
from raytrain.sweep import at_url, record


class SweepRun:
    """A sweep on disk: `sweep.json`, `trials.csv`, `best.json`, and `trials/0000`, each of which is a run.

    Args:
        path: the sweep's directory, or its URL; `path` is then the directory on this machine that has its files.

    Raises:
        UserError: there is none.
    """

    def __init__(self, path: Path | str):
        self.path = (at_url.opened(str(path)) or location.mirror(str(path))) if is_url(path) else Path(path)
        self.where = location.url_of(self.path) or str(self.path)
        if not os.path.isfile(self.path / "sweep.json"):
            raise errors.not_a_sweep(path)

    def __repr__(self) -> str:
        return f"SweepRun({self.where!r})"

    @property
    def answer(self) -> dict[str, Any]:
        """All of `sweep.json`: `status`, `best` (a trial's number), `front`, `trials` with their figures."""
        return needed_json(self.path / "sweep.json", f"{errors.command('sweep', self.path)} writes it again")

    @property
    def trials(self) -> list[dict[str, Any]]:
        """The trials' values, what became of them, and their figures."""
        return self.answer["trials"]

    @property
    def configurations(self) -> list[dict[str, Any]]:
        """With repeats, the configurations, the best first: `number`, `values`, `trials` (their numbers), `whole`
        (whether all have ended) and `objectives`, of which each has `name`, the `values` of the repeats, `n`, `mean`,
        and `low` and `high` of its confidence interval. Empty where each configuration has one trial."""
        return self.answer.get("configurations", [])

    def table(self) -> pa.Table:
        """Return the trials as a table, a row each.

        Returns:
            `trial` (its number), `status`, `error`, `path` of its run; `config`, a struct of the axes' values;
            `result`, a struct of the objectives and figures; `curve`, a list of its validations, each a struct of the
            figures that `metrics.jsonl` has; `violates`, a list of the constraints that it breaks; with repeats
            `configuration` and `repeat`, two numbers. What a trial lacks is null. Values of an axis that are not all
            numbers, all booleans or all strings are strings, of objects and lists in JSON.
        """
        answer = self.answer
        trials = answer["trials"]
        runs = [record.folder(self.path, one["number"]) for one in trials]
        axes = list(dict.fromkeys(path for one in trials for path in one.get("values", {})))
        names = [goal["name"] for goal in answer["objectives"]]
        figures = [name for name in _FIGURES if name not in names]
        config = {path: [one.get("values", {}).get(path) for one in trials] for path in axes}
        result = {name: [one["objective"][place] for one in trials] for place, name in enumerate(names)}
        result |= {name: [one.get(name) for one in trials] for name in figures}
        curves = [record.validations(run) for run in runs]
        columns = {
            "trial": pa.array([one["number"] for one in trials], pa.int64()),
            "status": pa.array([one["status"] for one in trials], pa.string()),
            "config": _struct(config, len(trials)),
            "result": _struct(result, len(trials)),
            "curve": pa.array([[_numbers(row) for row in rows] for rows in curves]),
            "path": pa.array([self.run_at(one["number"]) for one in trials], pa.string()),
            "error": pa.array([one.get("error") for one in trials], pa.string()),
            "violates": pa.array([one.get("violates") for one in trials], pa.list_(pa.string())),
            "configuration": pa.array([one.get("configuration") for one in trials], pa.int64()),
            "repeat": pa.array([one.get("repeat") for one in trials], pa.int64()),
        }
        return pa.table(columns)

    @property
    def front(self) -> list[Run]:
        """The runs of the trials that no other one beats in all objectives."""
        return [Run(self.run_at(number)) for number in self.answer["front"]]

    @property
    def best(self) -> Run | None:
        """The best trial's run; None if no trial has a result."""
        number = self.answer["best"]
        return None if number is None else Run(self.run_at(number))

    def run_at(self, number: int) -> str:
        """Return the directory or the URL of a trial's run."""
        return location.join(self.where, record.folder(Path(), number).as_posix())


_FIGURES = (
    *("epochs", "steps", "val_accuracy", "val_loss", "samples_per_second", "seconds", "peak_memory_bytes"),
    *("attempts", "started", "ended"),
)


def _struct(columns: dict[str, list[Any]], rows: int) -> pa.Array:
    """Return columns of values, null where there is none, as one column of structs."""
    found = [_column(values) for values in columns.values()]
    if not found:
        return pa.array([{}] * rows, pa.struct([]))
    return pa.StructArray.from_arrays(found, names=list(columns))


def _column(values: list[Any]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return pa.array([None if value is None else float(value) for value in values])
    if len(kinds) <= 1 and not kinds & {list, dict}:
        return pa.array(values)
    return pa.array([one if one is None or isinstance(one, str) else json.dumps(one) for one in values], pa.string())


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row's figures, with one type each."""
    whole = {name: value for name, value in row.items() if name in ("epoch", "step")}
    return whole | {n: float(v) for n, v in row.items() if n not in whole and type(v) in (int, float)}
