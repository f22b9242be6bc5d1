"""Tune's actor for trials. It stays when a trial ends, and takes the next one with torch loaded."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
from pathlib import Path
from typing import Any

import ray
from ray import tune

from raytrain import config
from raytrain.checkpoint import layout
from raytrain.driver.ray_internals import compiler
from raytrain.experiment import Experiment
from raytrain.optim.stages import switched
from raytrain.parallel.deterministic import fix_workspace
from raytrain.run import experiment_file
from raytrain.run.lock import WRITER_LOCK, Lock
from raytrain.sweep import record
from raytrain.sweep.attempt import Attempt, Data, Ended, Limits
from raytrain.sweep.objective import Objective
from raytrain.sweep.on_nodes import Node
from raytrain.sweep.pool import adopt, keep
from raytrain.sweep.population import Move
from raytrain.sweep.schedulers import trained
from raytrain.sweep.space import apply
from raytrain.sweep.steady import SCORE, TIME

NUMBER = "trial"
"""The trial's number in Tune's configuration, beside the values of its axes."""
ROOM = "room"
"""What the trial reserves, in Tune's configuration: as `reserved.room_for` returns it."""
VALUES = "values"
"""The labels of the axes' values, in Tune's configuration, for the callbacks of users."""
TAKE = "take"
"""What the trial takes before it trains on, in Tune's configuration: a `population.Move`."""
STATUS = "status"
"""The outcome of a trial, in its last report."""


def name_of(trial: Any) -> str:
    """Return a trial's name in Tune, which identifies it: PBT may replace its configuration by another trial's."""
    return f"trial_{trial.config[NUMBER]:04d}"


def number_of(name: str) -> int:
    """Return the number in a trial's name."""
    return int(name.rpartition("_")[2])


class Trial(tune.Trainable):
    """Trains one trial after the other in one process; Tune asks for a validation at a time."""

    move: Move | None = None
    over = False

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        """Return what the trial of a configuration reserves."""
        return tune.PlacementGroupFactory(**config[ROOM])

    def setup(  # type: ignore[override]
        self,
        config: dict[str, Any],
        folder: str,
        objective: Objective,
        shelf: dict[str, Data],
        limits: Limits,
        unit: int | None,
        unit_epochs: int,
        away: tuple[str, Any] | None,
    ) -> None:
        """Begin the first trial.

        Args:
            config: Tune's configuration.
            folder: the sweep's directory.
            objective: what schedulers compare by.
            shelf: the data, by the part of the experiment that decides what is read.
            limits: what a trial may take.
            unit, unit_epochs: the scheduler's `unit_steps` and `unit_epochs`.
            away: the URL and the desk of a sweep whose directory is on the driver's node alone.
        """
        self.node = None if away is None else Node(*away)
        self.folder = self.node.folder if self.node else Path(folder)
        self.named = sum(node["Alive"] for node in ray.nodes()) > 1
        self.objective, self.shelf, self.limits = objective, shelf, limits
        self.unit, self.unit_epochs = unit, unit_epochs
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """End the trial and begin another one."""
        self._end()
        if not gc.get_freeze_count():
            gc.freeze()  # the modules: to look through them again would take half a second of each trial
        if self.attempt.spoiled:
            os._exit(1)  # Tune begins the next trial again in a new process
        self._begin(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Train up to the next validation.

        Returns:
            The time that is trained by then, the objective, the validation's figures, and at the end what became of the
            trial.
        """
        self._hold()
        row, status = self.attempt.next()
        self.over = status is not None
        if self.node and status is not None:
            self.node.finish()
        if row is not None:
            self.rows.append(row)
        score, last = self.objective.now(self.rows), self.rows[-1] if self.rows else None
        found = {
            **{name: value for name, value in (row or {}).items() if isinstance(value, int | float)},
            TIME: trained(last, self.steps_per_epoch, self.unit, self.unit_epochs),
            SCORE: float("nan") if score is None else score,
        }
        return found if status is None else found | {"done": True, STATUS: status}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Keep the checkpoint of the last validation, for this trial after a pause or for another trial, and end the
        attempt: this process or any other one goes on with a new one."""
        path = self.attempt.settle() if isinstance(self.attempt, Attempt) else None
        if path is None:
            return {}
        pool = self.folder / "pool" / f"{self.number:04d}_{path.name}"
        if not pool.is_dir():
            keep(self.run, path, pool)
            for old in sorted(pool.parent.glob(f"{self.number:04d}_*"))[:-2]:
                shutil.rmtree(old, ignore_errors=True)
        if self.node:
            self.node.share(pool)
        if not self.over:
            self.attempt.stop()
            self.attempt = self._attempt()
            self.attempt.skip = len(self.rows)
        # The checkpoint may be newer than what Tune has heard, in a sweep that was resumed.
        return {"pool": pool.name, "taken": self._taken(), "heard": len(self.rows)}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Load what this trial kept before a pause."""
        if not checkpoint or isinstance(self.attempt, Ended):
            return
        self._hold()
        pool = self.folder / "pool" / checkpoint["pool"]
        if self.node:
            self.node.shared(pool)
        if not pool.is_dir() or checkpoint["taken"] != self._taken():
            return  # its process died since, and its own checkpoint is as new or newer, or of another trial's past
        if self.attempt.begun:
            self.attempt.stop()
        newest = layout.newest(self.run / "checkpoints")
        if newest is None or newest.name != pool.name.partition("_")[2]:
            with self.node.quiet() if self.node else contextlib.nullcontext():
                adopt(self.run, pool)
        self._anew(record.validations(pool)[: checkpoint["heard"]])

    def _taken(self) -> int:
        """Return how often the trial has taken weights."""
        return len(record.read(self.run).get("taken", ()))

    def _anew(self, rows: list[dict[str, Any]]) -> None:
        """Begin another attempt, after validations that Tune need not hear."""
        self.attempt, self.rows = self._attempt(), rows
        self.attempt.skip = len(rows)

    def _take(self, move: Move) -> None:
        """Go on from another trial's checkpoint with the values that the scheduler has chosen: the experiment then says
        what that trial trained with up to here. Where the checkpoint is gone, the experiment trains up to here."""
        with Lock(self.run, WRITER_LOCK, wait=60):  # a process of a killed command may still do the same
            found = record.read(self.run)
            if move.taken_by(found):
                return
            pool = self.folder / "pool" / move.pool
            if self.node:
                self.node.shared(pool)
            recipe = (pool / "experiment.json" if pool.is_dir() else self._recipe(move.donor)).read_text()
            theirs = config.from_dict(Experiment, json.loads(recipe), pool)
            own = apply(experiment_file.load(self.run / "experiment.json")[0], move.values)
            if self.objective.every_epoch:
                own = config.replace(own, "task.monitor", self.objective.name)  # as in `Sweep.trial`; a task may be new
            with self.node.quiet() if self.node else contextlib.nullcontext():
                adopt(self.run, pool if pool.is_dir() else None, switched(theirs, move.step, own, move.values))
            epochs, rest = divmod(move.step, self.steps_per_epoch)
            epoch, values = move.step / self.steps_per_epoch if rest else epochs, config.plain(move.values)
            taken = {"from": move.donor, "epoch": epoch, "step": move.step, "values": values, "pool": move.pool}
            taken["comparison"] = move.number
            record.update(self.run, taken=[*found.get("taken", []), taken], values=found.get("values", {}) | values)
        self._anew(record.validations(self.run))

    def _recipe(self, donor: int) -> Path:
        """Return the file with a trial's experiment, which that trial cannot change before this one has taken it."""
        return self.node.recipe(donor) if self.node else record.folder(self.folder, donor) / "experiment.json"

    def cleanup(self) -> None:
        """End the trial."""
        self._end()
        if self.node:
            self.node.close()

    def _end(self) -> None:
        self.attempt.stop()
        if self.node:
            self.node.finish()

    def _begin(self, given: dict[str, Any]) -> None:
        self.number, self.rows, self.over = number_of(self.trial_name), [], False
        self.attempt: Attempt | Ended
        self.move = given.get(TAKE)
        self.run = record.folder(self.folder, self.number)
        if self.node:
            self.node.begin(self.number)
        found, value = record.read(self.run), experiment_file.load(self.run / "experiment.json")[0]
        self.steps_per_epoch = self.shelf[record.reads(value)].steps_per_epoch(value)
        if found.get("status") in record.ENDED:  # before the sweep was interrupted, or before a scheduler chose it
            self.attempt = Ended(self.run, found["status"])
            return
        # Values that a scheduler has changed come with the weights of another trial, in `_take`.
        if any(path.partition(".")[0] in ("parallel", "deterministic") for path in found.get("values", {})):
            # A later trial of this process may need it.
            fix_workspace()
        if not (value.compile or value.parallel.sharded):
            compiler.defer_compiler()
        self.attempt = self._attempt()

    def _hold(self) -> None:
        """Take the trial from whoever had it, on this node or another, with its checkpoints, and then what it takes of
        another trial."""
        if self.node and isinstance(self.attempt, Attempt) and self.node.take():
            self.attempt = self._attempt()
        move, self.move = self.move, None
        if move is not None and isinstance(self.attempt, Attempt):
            self._take(move)

    def _attempt(self) -> Attempt:
        value = experiment_file.load(self.run / "experiment.json")[0]
        value = apply(value, record.read(self.run).get("planned", {}))
        return Attempt(self.run, value, self.shelf[record.reads(value)], self.limits, self.named)
