"""Schedulers of Ray Tune decide the same after a stop as without it, and take a missing score for the worst."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune import schedulers
from ray.tune.experiment import Trial

from raytrain import ASHA, HyperBand, MedianStopping, TuneScheduler, UserError
from raytrain.sweep.steady import SCORE, TIME

CONTROLLER: Any = SimpleNamespace(get_live_trials=list, stop_trial=lambda trial: None)


def made(scheduler: Any, mode: str, trials: int, length: int = 9) -> tuple[Any, list[Trial]]:
    rule, found = scheduler.build(schedulers, (), length, 0), [Trial("trainable", stub=True) for _ in range(trials)]
    assert rule.set_search_properties(SCORE, mode)
    for trial in found:
        rule.on_trial_add(CONTROLLER, trial)
        trial.status = Trial.RUNNING
    return rule, found


def report(time: float, score: float) -> dict[str, float]:
    return {TIME: time, SCORE: score}


def test_median_counts_the_last_report_of_a_stopped_trial_once() -> None:
    rule, (first, second) = made(MedianStopping(samples=1), "min", 2)
    for time, score in ((1, 4.0), (2, 8.0)):
        rule.on_trial_result(CONTROLLER, first, report(time, score))
    rule.on_trial_complete(CONTROLLER, first, report(2, 8.0))  # Tune does where it stops one
    assert rule.on_trial_result(CONTROLLER, second, report(2, 6.5)) == "STOP", (
        "6.5 is worse than 6, the mean of 4 and 8"
    )


def test_median_counts_the_last_report_of_a_completed_trial() -> None:
    rule, (first, second) = made(MedianStopping(samples=1), "min", 2)
    rule.on_trial_result(CONTROLLER, first, report(1, 4.0))
    rule.on_trial_complete(CONTROLLER, first, report(2, 8.0))
    assert rule.on_trial_result(CONTROLLER, second, report(2, 5.5)) == "CONTINUE", "better than 6"


@pytest.mark.parametrize("mode", ["max", "min"])
def test_median_forgets_a_validation_without_a_score(mode: str) -> None:
    """Python's max and min of values of which the first is NaN are NaN, whatever follows."""
    sign = 1 if mode == "max" else -1
    rule, (first, second) = made(MedianStopping(grace_epochs=2, samples=1), mode, 2)
    for time in (1, 2):
        rule.on_trial_result(CONTROLLER, first, report(time, sign * 0.5))
    assert rule.on_trial_result(CONTROLLER, second, report(1, math.nan)) == "CONTINUE"
    assert rule.on_trial_result(CONTROLLER, second, report(2, sign * 0.9)) == "CONTINUE"


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize("place", [0, 1, 2, 3, 4])
def test_hyperband_takes_a_missing_score_for_the_worst(mode: str, place: int) -> None:
    sign = 1 if mode == "max" else -1
    rule, trials = made(
        HyperBand(), mode, 8
    )  # three fill the first bracket, five the second, which has rungs of 3 and 9
    scores = [sign * score for score in (0.9, 0.5, 0.1, 0.3)]
    scores.insert(place, math.nan)
    stopped: list[int] = []
    controller: Any = SimpleNamespace(stop_trial=lambda trial: stopped.append(trials.index(trial)))
    for number, score in enumerate(scores, 3):
        if rule.on_trial_result(controller, trials[number], report(3, score)) == "STOP":
            stopped.append(number)
        trials[number].status = Trial.PAUSED
    best = sorted(range(5), key=lambda n: -math.inf if math.isnan(scores[n]) else sign * scores[n])[-2:]
    assert sorted(stopped) == [n + 3 for n in range(5) if n not in best]


@pytest.mark.parametrize("mode", ["max", "min"])
def test_asha_takes_a_missing_score_for_the_worst(mode: str) -> None:
    sign = 1 if mode == "max" else -1
    rule, trials = made(ASHA(), mode, 4)
    said = [
        rule.on_trial_result(CONTROLLER, trial, report(1, sign * score))
        for trial, score in zip(trials, (math.nan, 0.2, math.nan, 0.9), strict=True)
    ]
    assert said == ["CONTINUE", "CONTINUE", "STOP", "CONTINUE"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: HyperBand(reduction_factor=1.5),
        lambda: TuneScheduler(schedulers.HyperBandScheduler, reduction_factor=1.5)._scheduler(9),
    ],
)
def test_hyperband_refuses_rungs_that_may_not_grow(make: Any) -> None:
    """With 1.5 a rung of one epoch is followed by another of one epoch, in which trials wait for ever."""
    with pytest.raises(UserError, match=r"reduction_factor = 1\.5 is out of range.* at least 2"):
        make()
