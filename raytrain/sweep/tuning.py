"""Ray Tune's part of a sweep: read the data for all trials, run the trials, and watch them."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.exceptions import RayTaskError
from ray.tune import schedulers
from ray.tune.search import Searcher

from raytrain.checkpoint import location
from raytrain.data.reader import Part
from raytrain.driver import failures, reading
from raytrain.driver.endings import HostLost
from raytrain.driver.interrupts import Interrupts
from raytrain.driver.ray_internals import ray_train, tune_recovery, tune_start
from raytrain.driver.room import why_no_room
from raytrain.driver.sizing import reading_threads
from raytrain.driver.skipped import write_skipped
from raytrain.loggers import Logger
from raytrain.sweep import desk, fold_data, fold_groups, lockstep, record, trial
from raytrain.sweep.attempt import Data
from raytrain.sweep.callbacks import forwarded
from raytrain.sweep.repeats import in_turn
from raytrain.sweep.reserved import Most, room_for
from raytrain.sweep.search import NoValues
from raytrain.sweep.sweep_plan import SweepPlan
from raytrain.sweep.trial import number_of
from raytrain.sweep.trial_loggers import TrialLoggers
from raytrain.sweep.trials import Trials
from raytrain.sweep.tune_callback import Told

_LEAVE_SECONDS = 5.0
"""Seconds for trials to write a checkpoint after a signal; the sweep's end takes some seconds more."""
_WRITING = 0.05
"""The share of the time that the driver may spend writing sweep.json, which grows with the sweep. The records of the
trials are the state; sweep.json repeats them for readers."""
_ROOM_SECONDS = 30.0
"""Seconds without a running trial after which the sweep says what it waits for."""


def read(planned: SweepPlan, path: Path, observer: Logger) -> dict[str, Any]:
    """Read the data of each variant into the object store, once for all trials; folds share one copy.

    Args:
        path: the sweep's directory, for the list of skipped samples.
        observer: told where other runs hold the CPUs that reading waits for.

    Returns:
        The data of each variant, by its key.
    """
    shelf, skipped, waits = {}, {}, partial(reading.wait_for_blocks, observer)
    of_task = any(axis.path.partition(".")[0] == "task" for axis in planned.sweep.axes)
    floors = {key: None if of_task else one.baseline.scores or None for key, one in planned.variants.items()}
    for keys in fold_groups.groups(planned.variants):
        shared = fold_data.read({key: planned.variants[key] for key in keys}, waits)
        if shared is None:
            continue
        arrays = ray.put(shared.arrays)
        for key, parts in shared.parts.items():
            images = {split: ray.put(Part(arrays, rows)) for split, (_, rows) in parts.items()}
            indices = ray.put({split: index for split, (index, _) in parts.items()})
            shelf[key] = Data(indices, images, baseline=floors[key])
        skipped |= {"train": shared.bad} if shared.bad else {}
    for key, variant in planned.variants.items():
        if key in shelf:
            continue
        data, mode, scaling = variant.experiment.data, variant.mode, planned.base.experiment.scaling
        found, images, bad = reading.read(data, variant.indices, mode, waits=waits)
        threads, tasks = reading_threads(data, mode, scaling, planned.share), 0
        if mode == "streaming" and not threads:
            tasks = max(1, int(planned.share.cpus / (planned.share.runs * scaling.ranks)))
        shelf[key] = Data(ray.put(found), images, threads, tasks, floors[key])
        skipped |= {split: samples for split, samples in bad.items() if samples}
    write_skipped(path, skipped)
    return shelf


def run(
    trials: Trials,
    shelf: dict[str, Any],
    loggers: TrialLoggers,
    observer: Logger,
    interrupts: Interrupts,
    save: Callable[[], None],
) -> str:
    """Run Tune in a side thread, and watch the trials until they end.

    Args:
        shelf: the data, as `read` returns it.
        loggers: the loggers of the experiment, for each trial.
        save: writes the sweep's files when trials have ended.

    Returns:
        How the sweep ended: completed, interrupted or out_of_time.
    """
    outcome, notes = list[BaseException | None](), list[str]()
    tuner = _tuner(trials, shelf, notes)
    if tuner is None:
        return "completed"
    thread = threading.Thread(target=lambda: outcome.append(_fit(tuner)), daemon=True, name="ray-tune")
    thread.start()
    interrupts.says = False  # spare the table
    deadline = over = None  # the budget is for training: the first trial that this command runs starts its clock
    leave_by, before = float("inf"), len(trials.ended)
    waiting, saving = _Waiting(trials, observer), _Saving(trials, save)
    while thread.is_alive():
        thread.join(0.5)
        _say(notes, observer)
        records = trials.records()
        saving.look()
        if trials.sweep.experiment.loggers:
            loggers.update(records)
        observer.trials(records, trials.modes(), time.time() - trials.began, trials.count)
        if deadline is None and (len(trials.ended) > before or any(one["status"] == "running" for one in records)):
            deadline = time.monotonic() + (trials.sweep.budget_seconds or float("inf"))
        over = over or (deadline is not None and time.monotonic() > deadline)
        if (interrupts.signal or over) and not trials.leaving:
            trials.leaving = True
            how = "press Ctrl-C again to stop at once" if interrupts.signal else "the budget is spent"
            observer.status(f"stopping after a step, with checkpoints; {how}")
        if trials.leaving:
            _ask_to_stop(trials, records)
        waiting.look(records)
        if interrupts.signal:
            leave_by = min(leave_by, time.monotonic() + _LEAVE_SECONDS)
        if time.monotonic() > leave_by:
            trials.give_up()
            break
    _say(notes, observer)
    records = trials.let_go(trials.records())
    if trials.sweep.experiment.loggers:
        loggers.update(records)
    whole = len(trials.ended) == trials.count  # also if a request to stop came too late
    if not whole and not interrupts.signal and outcome[0] is not None:
        raise outcome[0]
    cut_short = "interrupted" if interrupts.signal else "out_of_time" if over else None
    return "completed" if whole else cut_short or "completed"


def _say(notes: list[str], observer: Logger) -> None:
    while notes:
        observer.note(notes.pop(0))


def _ask_to_stop(trials: Trials, records: list[dict[str, Any]]) -> None:
    for one in records:
        if one["status"] == "running":
            (record.folder(trials.path, one["number"]) / "stop").touch()


class _Saving:
    """Saves the sweep's files when trials have ended, for `_WRITING` of the time."""

    def __init__(self, trials: Trials, save: Callable[[], None]):
        self.trials, self.save = trials, save
        self.saved, self.due = len(trials.ended), 0.0

    def look(self) -> None:
        """Save the files if there is something new."""
        began = time.monotonic()
        if len(self.trials.ended) > self.saved and began > self.due:
            self.saved = len(self.trials.ended)
            self.save()
            self.due = time.monotonic() + (time.monotonic() - began) / _WRITING


class _Waiting:
    """Reports why no trial has been running for a while, if trials are left."""

    def __init__(self, trials: Trials, observer: Logger):
        self.trials, self.observer = trials, observer
        self.since, self.told = time.monotonic(), False

    def look(self, records: list[dict[str, Any]]) -> None:
        """Look at the trials' records."""
        waits = [
            one["number"]
            for one in records
            if one["number"] in self.trials.scalings and one["number"] not in self.trials.ended
        ]
        if self.trials.leaving or not waits or any(one["status"] == "running" for one in records):
            self.since = time.monotonic()
            if self.told and not self.trials.leaving:
                self.observer.status("")
            self.told = False
        elif not self.told and time.monotonic() - self.since > _ROOM_SECONDS:
            self.told = True
            self.observer.status(f"waiting for trial {waits[0]}: {why_no_room(self.trials.scalings[waits[0]])}")


class _Proposed(Searcher):
    """Gives Tune the trials' numbers; their values are in their directories by then.

    Args:
        most: returns how many may run at once.
    """

    def __init__(self, trials: Trials, waiting: list[int], most: Callable[[], int]):
        super().__init__()
        self.trials, self.waiting, self.most = trials, waiting, most
        self.live: set[str] = set()

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        if len(self.live) >= self.most():
            return None
        while self.waiting and not self.trials.leaving:
            try:
                values = self.trials.propose(self.waiting[0])
            except NoValues as none:
                if none.later:
                    return None
                break
            number = self.waiting.pop(0)
            if values is not None:
                self.live.add(trial_id)
                return {
                    trial.NUMBER: number,
                    trial.ROOM: room_for(self.trials.scalings[number], self.trials.away is not None),
                    trial.VALUES: self.trials.names(number),
                }
        return Searcher.FINISHED  # type: ignore[return-value]

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        """Make room for another trial. `_Watch` tells the search: by now a trial that was stopped, or whose process
        died, has no outcome yet."""
        self.live.discard(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """The directories are the state."""

    def restore(self, checkpoint_path: str) -> None:
        """The directories are the state."""


class _Watch(tune.Callback):
    """Records how a trial ended, where the trial could not do so itself, and tells the search."""

    def __init__(self, trials: Trials):
        self.trials = trials

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
        self._ended(trial, None)

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **_: Any) -> None:
        self._ended(trial, tune_recovery.error_of(trial))

    def _ended(self, trial: Any, error: Any) -> None:
        number = number_of(str(trial))
        if error is not None and self.trials.away:
            self.trials.away.collect(number)
        self.trials.ended_by_tune(number, error, "" if error is None else failures.end_of_actor(error))
        self.trials.tell(number)


class _Stop(tune.Stopper):
    """Ends the sweep when it was asked to."""

    def __init__(self, trials: Trials):
        self.trials = trials

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.trials.leaving and (self.trials.hurried or self.trials.still())


def _tuner(trials: Trials, shelf: dict[str, Any], notes: list[str]) -> tune.Tuner | None:
    """Return Tune's tuner for the trials that have not ended; None where there are none.

    Args:
        notes: takes what the user's callbacks make worth saying.
    """
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    tune_start.count_no_callbacks()
    tune_start.quote_python()
    tune_start.let_actors_start()
    tune_recovery.recover_next_trials()
    tune_recovery.recover_from_all()
    tune_recovery.spare_lost_hosts(_lost_its_host)
    s = trials.sweep
    scheduler = s.scheduler.build(schedulers, s.axes, trials.planned.length, s.experiment.seed)
    trials.replay()
    notes += [trials.search.note] if trials.search.note else []
    told, callbacks = Told(trials.path, len(s.callbacks)), forwarded(trials, notes.append)
    order = in_turn(s.count, s.repeats, s.rounds)
    waiting = [n for n in order if scheduler is not None or n not in trials.ended or told.behind(n)]
    if not waiting:
        return None
    # Where trials wait for each other, Tune must have all at once: only their reservations hold them back.
    together = s.scheduler.together and (max(trials.planned.widths) == 1 or ray_train.shares_groups())
    most = Most(trials.planned, together)
    space: dict[str, Any] = {}
    proposed: dict[str, Any] = {"search_alg": _Proposed(trials, waiting, most), "num_samples": len(waiting)}
    if together and not s.search.learns:  # of a searcher Tune otherwise asks for the next trial when one has started
        proposed["max_concurrent_trials"] = s.count
    if s.scheduler.mutates:  # Tune takes no search beside such a scheduler: the whole population is there at once
        values = {number: one for number in waiting if (one := trials.propose(number)) is not None}
        space, proposed = lockstep.space_of(trials, values), {"max_concurrent_trials": s.count}
        lockstep.begin(scheduler, trials, shelf, values)
    metric: dict[str, Any] = {} if scheduler is None else {"metric": trial.SCORE, "mode": trials.objectives[0].mode}
    away, kept = _away(trials)
    return tune.Tuner(
        _trainable(trials, shelf, away),
        param_space=space,
        tune_config=tune.TuneConfig(
            **proposed,
            scheduler=scheduler,
            reuse_actors=True,
            trial_name_creator=trial.name_of,
            trial_dirname_creator=trial.name_of,
            **metric,
        ),
        run_config=tune.RunConfig(
            name="tune",
            storage_path=kept,
            # Tune would save a trial before it stops it, and start it again if its process is lost meanwhile, without
            # the decision to stop it.
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            stop=_Stop(trials),
            failure_config=tune.FailureConfig(max_failures=s.retries),
            callbacks=[_Watch(trials), *callbacks],
            verbose=0,
            progress_reporter=tune.CLIReporter(),  # Tune's own choice for a notebook displays an empty output
        ),
    )


def _away(trials: Trials) -> tuple[tuple[str, Any] | None, str]:
    """Return the URL and the desk of a sweep whose directory is on this node alone, and where Tune keeps what trials
    save: at a pause for themselves, or for others."""
    uploads = trials.away
    if uploads is None:
        return None, str((trials.path / "logs").absolute())
    there = desk.open_desk(trials.path)
    uploads.collect = partial(desk.collect, trials.path, uploads.where)
    uploads.notes = partial(desk.said, there)
    if trials.sweep.scheduler.together:
        return (uploads.where, there), location.join(uploads.where, "logs")
    return (uploads.where, there), str(trials.path / "logs")


def _trainable(trials: Trials, shelf: dict[str, Any], away: tuple[str, Any] | None) -> Any:
    """Return the class of Tune's actors, with what all trials have in common.

    Args:
        away: the URL and the desk of a sweep whose directory is on this node alone.
    """
    scaling, gib = trials.planned.base.experiment.scaling, trials.sweep.memory_gib
    share = min(1.0, scaling.gpus_per_worker or 1.0)
    limits = trial.Limits(None if gib is None else int(gib * 2**30), trials.sweep.timeout_seconds, share)
    folder = str(trials.path.absolute())
    s = trials.sweep.scheduler
    units = {"unit": s.unit_steps, "unit_epochs": s.unit_epochs}
    return tune.with_parameters(
        trial.Trial, folder=folder, objective=trials.objectives[0], shelf=shelf, limits=limits, away=away, **units
    )


def _lost_its_host(error: Any) -> bool:
    """Return whether Tune's error of a trial says that a host of it was lost."""
    if isinstance(error, RayTaskError):
        return isinstance(error.cause, HostLost)
    return failures.of_host(error)


def _fit(tuner: Any) -> BaseException | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Tune and what its schedulers use, such as PB2's Gaussian process
            tuner.fit()
    except BaseException as error:
        return error
    return None
