"""PBT and PB2 after a kill, without Ray: what Tune's scheduler is told of the validations that come again."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy

from raytrain import PBT, Uniform
from raytrain.sweep.schedulers import AGAIN, TIME


class Compares:
    CONTINUE = "CONTINUE"

    def __init__(self, **settings: Any):
        self.told: list[tuple[str, float]] = []
        self.drawn: list[tuple[float, float]] = []

    def on_trial_result(self, tune_controller: Any, trial: str, result: dict[str, Any]) -> str:
        self.told.append((trial, result[TIME]))
        self.drawn.append((random.random(), numpy.random.uniform()))
        return "PAUSE"


def test_validations_of_before_a_kill_are_compared_with_none() -> None:
    tune = SimpleNamespace(PopulationBasedTraining=Compares)
    scheduler: Any = PBT(every_epochs=4).build(tune, (Uniform("optimizer.lr", 0.0, 1.0),), 12, 0)

    def report(trial: str, time: float, **more: Any) -> str:
        return scheduler.on_trial_result(None, trial, {TIME: time, **more})

    assert {report("a", time, **{AGAIN: True}) for time in range(1, 10)} == {"CONTINUE"}
    assert report("b", 1) == "PAUSE", "it was not under way"
    assert [report("a", time) for time in (10, 11, 12, 13)] == ["CONTINUE", "CONTINUE", "PAUSE", "PAUSE"]
    assert scheduler.told == [("b", 1), ("a", 12), ("a", 13)]


def test_draws_follow_from_the_seed_the_trial_and_the_time_alone() -> None:
    tune, axes = SimpleNamespace(PopulationBasedTraining=Compares), (Uniform("optimizer.lr", 0.0, 1.0),)
    made: list[Any] = [PBT(every_epochs=4).build(tune, axes, 12, seed) for seed in (0, 0, 1)]
    first, other, seeded = made
    random.seed(5)
    numpy.random.seed(5)
    for scheduler, trials in ((first, "ab"), (other, "ba"), (seeded, "ab")):
        for trial in trials:
            scheduler.on_trial_result(None, trial, {TIME: 4})
    assert other.drawn == first.drawn[::-1] and len({*first.drawn, *seeded.drawn}) == 4
    left = random.random(), numpy.random.uniform()
    random.seed(5)
    numpy.random.seed(5)
    assert left == (random.random(), numpy.random.uniform()), "the process's own generators go on as they were"
