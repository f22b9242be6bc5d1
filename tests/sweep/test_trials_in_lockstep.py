"""Trials of a population that wait for each other, by a stand-in for Tune's controller."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial

from raytrain import PBT, Uniform
from raytrain.sweep.lockstep import Lockstep
from raytrain.sweep.population import Move, Population
from raytrain.sweep.steady import SCORE, TIME
from raytrain.sweep.trial import STATUS, TAKE

AXES = (Uniform("optimizer.lr", 0.0, 1.0),)


class OfTune:
    """A trial of Tune's."""

    def __init__(self, number: int, status: str = Trial.RUNNING):
        self.number, self.status, self.config = number, status, {"optimizer.lr": 0.1 * number}
        self.is_saving = False
        self.latest_checkpoint_result: object = None

    def __str__(self) -> str:
        return f"trial_{self.number:04d}"

    def set_config(self, config: dict[str, Any]) -> None:
        self.config = config


class Controller:
    """Notes what it is to do; a save is done once `saved` says so."""

    def __init__(self, *trials: OfTune):
        self.trials, self.asked = trials, list[tuple[str, int]]()

    def get_trials(self) -> tuple[OfTune, ...]:
        return self.trials

    def pause_trial(self, trial: OfTune, should_checkpoint: bool = True) -> None:
        self.asked.append(("pause", trial.number))
        trial.status = Trial.PAUSED

    def _schedule_trial_save(self, trial: OfTune) -> None:
        self.asked.append(("save", trial.number))
        trial.is_saving = True

    def _schedule_trial_train(self, trial: OfTune) -> None:
        self.asked.append(("train", trial.number))

    def saved(self) -> None:
        for trial in self.trials:
            if trial.is_saving:
                trial.is_saving, trial.latest_checkpoint_result = False, object()


class Sweep:
    """A population with its scheduler."""

    def __init__(self, path: Path, *statuses: str, moves: dict[int, Move] | None = None):
        values = {n: {"optimizer.lr": 0.1 * n} for n in range(len(statuses))}
        self.population = Population(path, PBT(every_epochs=2), AXES, 0, 2, "max", values)
        self.controller, self.leaving, self.publishes = Controller(*map(OfTune, range(9), statuses)), False, True
        self.scheduler = Lockstep()
        self.scheduler.begin(self.population, values, moves or {}, lambda: self.leaving, lambda: self.publishes)

    def report(self, number: int, time: float, score: float) -> str:
        result = {TIME: time, "step": int(10 * time), SCORE: score}
        return self.scheduler.on_trial_result(self.controller, self.trial(number), result)

    def trial(self, number: int) -> Any:
        return self.controller.trials[number]

    def ask(self) -> int | None:
        found: Any = self.scheduler.choose_trial_to_run(self.controller)
        return None if found is None else found.number


def test_all_wait_and_then_the_worst_takes_the_weights_of_the_best(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, *[Trial.RUNNING] * 3)
    assert sweep.report(0, 1.0, 0.9) == "CONTINUE"
    assert [sweep.report(n, 2.0, score) for n, score in ((2, 0.5), (0, 0.1))] == ["NOOP", "NOOP"]
    assert sweep.ask() is None and not sweep.controller.asked
    assert sweep.report(1, 2.0, 0.9) == "NOOP"
    assert sweep.ask() is None and sweep.controller.asked == [("save", 0), ("save", 1)]
    assert sweep.ask() is None and sweep.population.next == 1, "their weights are not kept yet"
    sweep.controller.saved()
    sweep.publishes = False
    assert sweep.ask() is None and sweep.population.next == 1, "nor is the comparison where all can read it"
    sweep.publishes = True
    assert sweep.ask() == 0 and sweep.controller.asked[2:] == [("pause", 0), ("train", 1), ("train", 2)]
    move = sweep.trial(0).config[TAKE]
    assert (move.trial, move.donor, move.step, move.pool) == (0, 1, 20, "0001_step_00000020")
    assert sweep.trial(0).config["optimizer.lr"] == move.values["optimizer.lr"] and TAKE not in sweep.trial(2).config
    assert Population(tmp_path, PBT(every_epochs=2), AXES, 0, 2, "max", sweep.population.values).due == 4.0
    assert sweep.report(1, 3.0, 0.9) == "CONTINUE" and sweep.report(1, 4.0, 0.9) == "PAUSE", "trial 0 lacks room"


def test_a_trial_that_waits_gives_its_room_to_one_that_has_none(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, Trial.RUNNING, Trial.RUNNING, Trial.PENDING)
    assert sweep.report(0, 2.0, 0.5) == "PAUSE"
    sweep.trial(0).status = Trial.PAUSED
    assert sweep.ask() == 2
    sweep.trial(2).status = Trial.RUNNING
    assert sweep.report(1, 2.0, 0.5) == "NOOP" and sweep.ask() is None
    sweep.trial(2).status = Trial.ERROR  # its process is lost, and Tune begins it again
    sweep.scheduler.on_trial_error(sweep.controller, sweep.trial(2))
    sweep.trial(2).status = Trial.PENDING
    assert sweep.ask() == 2 and sweep.controller.asked == [("pause", 1)]


def test_a_trial_that_ends_is_waited_for_no_longer(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, *[Trial.RUNNING] * 4)
    for number in (0, 1):
        sweep.report(number, 2.0, 0.1 * number)
    sweep.trial(3).status = Trial.TERMINATED
    sweep.scheduler.on_trial_complete(sweep.controller, sweep.trial(3), {STATUS: "diverged"})
    sweep.ask()
    assert not sweep.controller.asked
    sweep.scheduler.on_trial_error(sweep.controller, sweep.trial(2))  # while it runs: the end
    sweep.trial(2).status = Trial.ERROR
    sweep.ask()
    sweep.controller.saved()
    sweep.ask()
    assert [*sweep.population.made[0].reports] == [0, 1] and sweep.population.next == 2


def test_a_lost_process_of_one_that_waits_reports_again(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, Trial.RUNNING, Trial.RUNNING)
    sweep.report(0, 2.0, 0.5)
    sweep.trial(0).status = Trial.ERROR
    sweep.scheduler.on_trial_error(sweep.controller, sweep.trial(0))
    sweep.trial(0).status = Trial.RUNNING
    sweep.report(1, 2.0, 0.1)
    sweep.ask()
    assert not sweep.controller.asked, "trial 0 is under way"
    assert sweep.report(0, 1.0, 0.4) == "CONTINUE" and sweep.report(0, 2.0, 0.5) == "NOOP"
    sweep.ask()
    assert sweep.controller.asked == [("save", 0), ("save", 1)]


def test_a_sweep_that_is_to_end_compares_nothing_and_pauses_those_that_wait(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, *[Trial.RUNNING] * 3)
    sweep.report(0, 2.0, 0.5)
    sweep.scheduler.on_trial_complete(sweep.controller, sweep.trial(2), {STATUS: "interrupted"})
    sweep.report(1, 2.0, 0.6)
    sweep.ask()
    assert not sweep.controller.asked, "trial 2 has not ended"
    sweep.leaving = True
    assert sweep.ask() is None and sweep.controller.asked == [("pause", 0), ("pause", 1)]
    assert not sweep.population.made


def test_a_move_that_a_kill_has_left_is_made_first(tmp_path: Path) -> None:
    move = Move(1, 1, 0, 20, {"optimizer.lr": 0.7})
    sweep = Sweep(tmp_path, Trial.PENDING, Trial.PENDING, moves={1: move})
    for number in (0, 1, 1):
        sweep.scheduler.on_trial_add(sweep.controller, sweep.trial(number))
    assert sweep.trial(1).config == {"optimizer.lr": 0.7, TAKE: move} and TAKE not in sweep.trial(0).config


def test_tune_keeps_no_copy_of_the_sweep(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path, Trial.RUNNING)
    with (tmp_path / "lock").open("w") as held:
        sweep.scheduler.publish = lambda: held.writable()
        assert not vars(pickle.loads(pickle.dumps(sweep.scheduler)))
