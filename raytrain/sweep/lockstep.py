"""Ray Tune's scheduler for a population: before each comparison all trials wait for each other.

A trial that waits keeps its process if no other one needs its room. Else it pauses, and any process may go on with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from raytrain.run import experiment_file
from raytrain.sweep import record
from raytrain.sweep.population import FILE, Comparison, Move, Population, Report
from raytrain.sweep.reserved import room_for
from raytrain.sweep.schedulers import PBT, trained
from raytrain.sweep.steady import SCORE, TIME
from raytrain.sweep.trial import NUMBER, ROOM, STATUS, TAKE, number_of
from raytrain.sweep.trials import Trials

_STAGED = 16
"""Trials that Tune looks for room for at once."""
_LEAVE_SECONDS = 10.0
"""A trial that was interrupted counts as ended after so long, if the sweep goes on."""


class Lockstep(FIFOScheduler):
    """Compares all trials at once. `begin` comes before Tune's first call.

    Attributes:
        live: the trials that have not ended, by number.
        here: what those that wait for the next comparison have reported.
    """

    def begin(
        self,
        population: Population,
        live: Iterable[int],
        moves: Mapping[int, Move],
        leaving: Callable[[], bool],
        publish: Callable[[], bool],
    ) -> None:
        """Take the trials.

        Args:
            live: their numbers.
            moves: those that a killed command has left to be done, by the trials' numbers.
            leaving: returns whether the sweep is to end.
            publish: is called when a comparison is in its file, until it returns True: before any trial knows of it.
        """
        self.population, self.live, self.moves = population, {*live}, {**moves}
        self.leaving, self.publish = leaving, publish
        self.here: dict[int, Report] = {}
        self.saving: dict[int, Any] = {}
        self.interrupted: dict[int, float] = {}
        self.comparison: Comparison | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune writes a copy that nobody reads, and what is here holds open files."""
        return {}

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take whatever the sweep compares by."""
        self._metric = metric
        return True

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Tell a trial what it has to take before it goes on."""
        if (move := self.moves.pop(number_of(str(trial)), None)) is not None:
            trial.set_config({**trial.config, **move.values, TAKE: move})

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        """Let a trial train on up to the next comparison, and wait there."""
        number = number_of(str(trial))
        if number not in self.live or result[TIME] < self.population.due:
            return TrialScheduler.CONTINUE
        self.here[number] = Report(result[TIME], int(result["step"]), result[SCORE])
        wanted = self.leaving() or self._lacks_room(_by_number(tune_controller))
        return TrialScheduler.PAUSE if wanted else TrialScheduler.NOOP

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        """Forget what a trial has reported whose process was lost: it comes again, unless the trial has ended."""
        self._left(number_of(str(trial)), ended=trial.status != Trial.ERROR)  # which it has where Tune starts it again

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Wait no longer for a trial that has ended."""
        number, interrupted = number_of(str(trial)), result.get(STATUS) == "interrupted"
        if interrupted:  # Tune hears of it before the driver's request to stop is known here
            self.interrupted[number] = time.monotonic()
        self._left(number, ended=not interrupted)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        """Wait no longer for it."""
        self._left(number_of(str(trial)), ended=True)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Compare the trials if all of them wait, and return one that may go on; Tune asks many times a second."""
        trials = _by_number(tune_controller)
        held = [
            n
            for n in sorted(self.here)
            if n in trials and trials[n].status == Trial.RUNNING and not trials[n].is_saving
        ]
        if self.leaving():
            _pause(tune_controller, (trials[n] for n in held))
            return None
        for number in [n for n, since in self.interrupted.items() if time.monotonic() - since > _LEAVE_SECONDS]:
            del self.interrupted[number]
            self.live.discard(number)
        if self.live and self.live <= self.here.keys():
            self._compare(tune_controller, trials, held)
        elif held and self._lacks_room(trials):
            _pause(tune_controller, (trials[n] for n in held))
        may = [n for n in sorted(trials) if trials[n].status == Trial.PAUSED and n not in self.here]
        staged = [n for n in sorted(trials) if trials[n].status == Trial.PENDING]
        return trials[may[0]] if may and len(staged) < _STAGED else trials[staged[0]] if staged else None

    def debug_string(self) -> str:
        """Return what Tune's own table says of it."""
        return f"{len(self.here)} of {len(self.live)} trials wait for each other"

    def _left(self, number: int, ended: bool) -> None:
        self.here.pop(number, None)
        self.saving.pop(number, None)
        self.comparison = None
        if ended:
            self.live.discard(number)

    def _lacks_room(self, trials: dict[int, Trial]) -> bool:
        """Return whether a trial that is not here yet has no process."""
        away = [n for n in self.live if n not in self.here]
        return any(n not in trials or trials[n].status in (Trial.PENDING, Trial.PAUSED) for n in away)

    def _compare(self, controller: Any, trials: dict[int, Trial], held: list[int]) -> None:
        """Decide once all are here, and let all go on once the weights that are given away are kept."""
        if any(trials[n].is_saving for n in self.here):
            return
        found = self.comparison = self.comparison or self.population.compared(self.here)
        part = {n for move in found.moves for n in (move.trial, move.donor)}
        for number in (n for n in held if n in part):  # what is saved is no more in use by its process
            if number not in self.saving:
                self.saving[number] = trials[number].latest_checkpoint_result
                controller._schedule_trial_save(trials[number])
        if any(trials[n].is_saving or trials[n].latest_checkpoint_result is old for n, old in self.saving.items()):
            return
        self.population.write(found)
        if not self.publish():
            return
        self.population.add(found)
        self.here, self.saving, self.comparison = {}, {}, None
        takers = {move.trial: move for move in found.moves}
        for number, move in takers.items():
            trials[number].set_config({**trials[number].config, **move.values, TAKE: move})
            if number in held:
                controller.pause_trial(trials[number], should_checkpoint=False)
        for number in (n for n in held if n not in takers):
            controller._schedule_trial_train(trials[number])


def space_of(trials: Trials, values: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Return all trials that were proposed as Tune's space."""
    rooms = {number: room_for(trials.scalings[number], trials.away is not None) for number in values}
    space: dict[str, Any] = {
        NUMBER: tune.grid_search(list(values)),
        ROOM: tune.sample_from(lambda spec: rooms[spec["config"][NUMBER]]),
    }
    for axis in trials.sweep.axes:
        space[axis.path] = tune.sample_from(lambda spec, path=axis.path: values[spec["config"][NUMBER]][path])
    return space


def begin(scheduler: Any, trials: Trials, shelf: dict[str, Any], values: dict[int, dict[str, Any]]) -> None:
    """Tell the scheduler of the trials, and of the comparisons of earlier commands.

    Args:
        scheduler: the `Lockstep`.
        shelf: the data, by the part of the experiment that decides what is read.
        values: of the trials, as they were proposed.
    """
    s, kept = trials.sweep, {number: record.folder(trials.path, number) for number in values}
    found = {number: record.read(folder) for number, folder in kept.items()}
    reached = 0.0
    if not (trials.path / FILE).exists():  # of an older version, if it has begun
        for folder in kept.values():
            one = experiment_file.load(folder / "experiment.json")[0]
            steps = shelf[record.reads(one)].steps_per_epoch(one)
            rows = record.validations(folder)
            reached = max(reached, trained(rows[-1] if rows else None, steps, s.scheduler.unit_steps))
    assert isinstance(s.scheduler, PBT)
    every, mode, seed = s.scheduler.every_epochs, trials.objectives[0].mode, s.experiment.seed
    known = Population(trials.path, s.scheduler, s.axes, seed, every, mode, values, reached)
    known.save()
    moves = {number: move for number, move in known.moves().items() if not move.taken_by(found.get(number, {}))}
    live = [number for number, one in found.items() if one.get("status") not in record.ENDED]
    publish = trials.away.publish if trials.away else lambda: True
    scheduler.begin(known, live, moves, lambda: trials.leaving, publish)


def _by_number(controller: Any) -> dict[int, Trial]:
    return {number_of(str(trial)): trial for trial in controller.get_trials()}


def _pause(controller: Any, trials: Iterable[Trial]) -> None:
    """Pause trials that have a process and nothing to do."""
    for trial in trials:
        controller.pause_trial(trial)
