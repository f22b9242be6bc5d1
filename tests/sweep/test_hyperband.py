"""HyperBand stops the same trials at the same times, whatever is lost meanwhile."""

from __future__ import annotations

import random
from typing import Any

import pytest
from ray.tune import schedulers
from ray.tune.experiment import Trial

from raytrain import HyperBand, TuneScheduler
from raytrain.sweep.steady import SCORE, TIME

LENGTH = 40


class Controller:
    """Runs trials as Tune's does, in an order of its own.

    Args:
        curves: each trial's score at each time.
        ended: when trials have ended before; they report up to then, and are done.
    """

    def __init__(self, scheduler: Any, curves: list[list[float]], ended: dict[int, int], seed: int):
        self.rule, self.curves, self.ended = scheduler.build(schedulers, (), LENGTH, 0), curves, ended
        assert self.rule.set_search_properties(SCORE, "min")
        self.draw = random.Random(seed)
        self.trials = [Trial("trainable", stub=True) for _ in curves]
        self.times = {trial: 0 for trial in self.trials}
        for trial in self.trials:
            self.rule.on_trial_add(self, trial)

    def stop_trial(self, trial: Trial) -> None:
        if trial.status not in (Trial.TERMINATED, Trial.ERROR):
            self.rule.on_trial_remove(self, trial)
            trial.status = Trial.TERMINATED

    def lose(self, trial: Trial) -> None:
        """Its process is lost, and Tune starts it again."""
        trial.status = Trial.ERROR
        self.rule.on_trial_error(self, trial)
        trial.status = Trial.PENDING
        self.rule.on_trial_add(self, trial)
        self.times[trial] = 0

    def run(self, reports: float = float("inf"), losses: int = 0) -> dict[int, int]:
        """Run trials for so many reports; return when those that have ended did."""
        while reports > 0:
            live = [trial for trial in self.trials if trial.status == Trial.RUNNING]
            if len(live) < 2 and (trial := self.rule.choose_trial_to_run(self)) is not None:
                trial.status = Trial.RUNNING
                continue
            if not live:
                left = [trial for trial in self.trials if trial.status != Trial.TERMINATED]
                assert not left, f"{len(left)} trials wait for ever"
                break
            trial = self.draw.choice(live)
            if losses and self.draw.random() < 0.02:
                losses -= 1
                self.lose(trial)
                continue
            reports -= 1
            self.report(trial)
        return {n: self.times[trial] for n, trial in enumerate(self.trials) if trial.status == Trial.TERMINATED}

    def report(self, trial: Trial) -> None:
        self.times[trial] += 1
        number, time = self.trials.index(trial), self.times[trial]
        if time == self.ended.get(number, LENGTH):
            self.stop_trial(trial)
            return
        decision = self.rule.on_trial_result(self, trial, {TIME: time, SCORE: self.curves[number][time - 1]})
        if decision == "STOP":
            self.stop_trial(trial)
        elif decision == "PAUSE":
            trial.status = Trial.PAUSED


def halving(max_t: int) -> schedulers.HyperBandScheduler:
    return schedulers.HyperBandScheduler(time_attr=TIME, max_t=max_t, reduction_factor=3)


@pytest.mark.parametrize("scheduler", [HyperBand(), TuneScheduler(halving)])
@pytest.mark.parametrize("count", [8, 20])
def test_the_same_trials_are_stopped_after_losses_and_resumes(scheduler: Any, count: int) -> None:
    for seed in range(60):
        draw = random.Random(seed)
        curves = [[draw.random() for _ in range(LENGTH)] for _ in range(count)]
        whole = Controller(scheduler, curves, {}, seed).run()
        assert len(whole) == count and min(whole.values()) < LENGTH
        ended: dict[int, int] = {}
        for part in range(4):  # the driver is killed three times
            controller = Controller(scheduler, curves, ended, 100 * seed + part)
            ended = controller.run(draw.randint(1, 20 * count) if part < 3 else float("inf"), losses=2)
            assert ended.items() <= whole.items()
            if part < 3 and ended:  # the record of one was not written any more
                ended.pop(draw.choice([*ended]))
        assert ended == whole
