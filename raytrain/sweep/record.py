"""The record of each trial beside its run: trial.json, with its values, its outcome and its figures."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from pathlib import Path
from typing import Any

from raytrain import config
from raytrain.data import Augment, Folds
from raytrain.experiment import Experiment
from raytrain.files import file_size, known_json, write_atomically
from raytrain.run.metrics_log import VALIDATED, read_metrics, seconds_at
from raytrain.sweep.constraint import Constraint
from raytrain.sweep.objective import Objective

ENDED = ("completed", "stopped", "infeasible", "diverged", "timed_out", "crashed", "failed")
"""The final statuses of a trial. The others are `pending`, `running`, `paused` and `interrupted`."""

FILE = "trial.json"
"""In a trial's directory."""
LOCK = "trial.lock"
"""Is held while a trial's record changes."""
STUCK = "stuck.log"
"""Among a trial's logs: where its loop was when it finished no step in time."""


def folder(sweep: Path, number: int) -> Path:
    """Return the run directory of a trial."""
    return sweep / "trials" / f"{number:04d}"


def read(run: Path) -> dict[str, Any]:
    """Return a trial's record; an empty one where the trial was not begun, or its record is damaged."""
    return known_json(run / FILE)


def update(run: Path, **changes: Any) -> dict[str, Any]:
    """Change fields of a trial's record; one that has ended stays as it is."""
    with open(run / LOCK, "a") as guard:  # the driver writes too, and the actor that had the trial before
        fcntl.flock(guard, fcntl.LOCK_EX)
        found = read(run)
        if found.get("status") in ENDED:
            return found
        found |= changes
        write_atomically(run / FILE, json.dumps(found, indent=2))
        return found


def reads(experiment: Experiment) -> str:
    """Return what decides which images are read, as text: trials for which it is the same share them."""
    data = experiment.data.absolute()
    # Not a source with another `augment`: a mixture would refuse one that is not its sources'.
    values: dict[str, Any] = config.to_dict(data) | {"class": type(data).__qualname__}
    values["augment"] = config.to_dict(Augment())
    # Sweeps of older versions have these texts as keys, without the fields that were added since.
    if data.folds == Folds():
        del values["folds"]
    added = {"whole": (False,), "interpolation": ("auto",), "decode": ("auto", "cpu"), "image": ("",), "suffix": ("",)}
    added |= {"fit": ("auto", "cut"), "missing_mask": (None,)}
    for name, defaults in added.items():
        if name in values and values[name] in defaults:
            del values[name]
    for name in ("verify", "cache_size"):  # how changes are noticed and what is kept, not what is read
        values.pop(name, None)
    for name in ("operations", "progressive"):
        del values["augment"][name]
    return json.dumps(values, sort_keys=True)


def validations(run: Path) -> list[dict[str, Any]]:
    """Return the rows of a trial's metrics that have a validation's: those of epochs and those inside epochs."""
    with contextlib.suppress(ValueError):
        return read_metrics(run / "metrics.jsonl", kinds=VALIDATED)[0]
    return []


class Validations:
    """The rows of `validations`, for a process that looks at a run that goes on: it reads what has been added since."""

    def __init__(self, run: Path):
        self._path, self._rows, self._end = run / "metrics.jsonl", list[dict[str, Any]](), 0
        self._of: object = None

    def rows(self, attempt: object = None) -> list[dict[str, Any]]:
        """Return all rows. Where the file was cut or replaced, or another attempt has written to it, it is read anew.

        Args:
            attempt: what changes with each attempt.
        """
        mark = _mark(self._path)
        inode, size = mark[:2] if mark else (0, 0)
        if self._of != (inode, attempt) or size < self._end:
            self._of, self._rows, self._end = (inode, attempt), [], 0
        if size > self._end:
            with contextlib.suppress(ValueError):
                new, self._end = read_metrics(self._path, self._end, kinds=VALIDATED)
                self._rows += new
        return self._rows


def _mark(path: Path) -> tuple[int, int, int] | None:
    """Return a file's inode, size and time of change; None where there is none. Opening it lets NFS ask its server."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(file)
    finally:
        os.close(file)
    return found.st_ino, found.st_size, found.st_mtime_ns


class Figures:
    """`figures` of trials, for a process that asks for them all the time: files that have not changed are not read
    again, and of the metrics of a trial under way what is new. Threads may share it.

    Args:
        objectives, base, limits: as those of `figures`.
    """

    def __init__(self, objectives: tuple[Objective, ...], base: Experiment, limits: tuple[Constraint, ...] = ()):
        self._given = objectives, base, limits
        self._known: dict[Path, tuple[list[Any], dict[str, Any], Validations]] = {}
        self._lock = threading.Lock()

    def of(self, run: Path) -> dict[str, Any]:
        """Return a trial's; the same object while nothing has changed, unless the trial has ended."""
        with self._lock:
            marks = [_mark(run / name) for name in (FILE, "metrics.jsonl", "summary.json")]
            before, found, log = self._known.get(run) or ([], {}, Validations(run))
            if before != marks:
                found = figures(run, *self._given, log)
                self._known[run] = marks, found, log
            if found.get("status") in ENDED:
                del self._known[run]
            return found


def figures(
    run: Path,
    objectives: tuple[Objective, ...],
    base: Experiment,
    limits: tuple[Constraint, ...] = (),
    log: Validations | None = None,
) -> dict[str, Any]:
    """Return a trial's record with the figures of its run, as `sweep.json` lists it; of a trial that has ended and
    breaks constraints, with their texts as `violates`.

    Args:
        base: the sweep's experiment, whose `epochs` or `steps` are those of a whole trial where no axis sets them.
        limits: the sweep's constraints.
        log: takes part of the metrics of a trial that is running or paused; else they are read whole.
    """
    found = read(run)
    if log is not None and found.get("status") in ("running", "paused"):
        rows = log.rows((found.get("attempts"), found.get("pid"), len(found.get("taken", ()))))
    else:
        rows = validations(run)
    summary = known_json(run / "summary.json")
    if found.get("peak_memory_bytes"):
        summary["peak_memory_bytes"] = found["peak_memory_bytes"]
    usable = found.get("status") in ("completed", "stopped", "running", "paused", "interrupted")
    own = rows
    if found.get("taken"):  # leave out what it has from another trial
        last = found["taken"][-1]
        unit = "step" if "step" in last else "epoch"  # of older versions, at the end of an epoch
        own = [row for row in rows if row[unit] > last[unit]]
    best, values = _best(own, objectives[0]), found.get("values", {})
    of_steps = values.get("steps", base.steps)
    over = usable and found["status"] in (*ENDED, "interrupted")
    broken = [limit.text for limit in limits if over and not limit.holds(best, own, summary)]
    return found | {
        **({"violates": broken} if broken else {}),
        "objective": [objective.of(own, summary) if usable else None for objective in objectives],
        "epochs": sum(row["kind"] == "epoch" for row in rows),
        "of_epochs": values.get("epochs", base.epochs) if of_steps is None else None,
        "steps": summary.get("steps") or (rows[-1].get("step", 0) if rows else 0),
        "of_steps": of_steps,
        "val_accuracy": best.get("val_accuracy"),
        "val_loss": best.get("val_loss"),
        "samples_per_second": summary.get("samples_per_second")
        or (rows[-1].get("samples_per_second") if rows else None),
        "seconds": summary.get("seconds") or (seconds_at(rows)[-1] if rows else None) or None,
        "peak_memory_bytes": summary.get("peak_memory_bytes"),
    }


def _best(rows: list[dict[str, Any]], objective: Objective) -> dict[str, Any]:
    """Return the row of the best validation: by the objective where it is a metric, else by accuracy, else by loss."""
    by = objective
    if not by.every_epoch:
        accuracy = any(row.get("val_accuracy") is not None for row in rows)
        by = Objective("", "val_accuracy", "max") if accuracy else Objective("", "val_loss", "min")
    found: dict[str, Any] = {}
    for row in rows:
        if not found or by.better(row.get(by.figure), found.get(by.figure)):
            found = row
    return found


def was_stuck(run: Path) -> bool:
    """Return whether the last attempt's process ended because the loop was stuck."""
    return file_size(run / "logs" / STUCK) > 0
