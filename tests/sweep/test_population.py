"""PBT and PB2 after a kill, without Ray: what Tune's scheduler is told of the validations that come again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from raytrain import PBT, Uniform
from raytrain.sweep.schedulers import AGAIN, TIME


class Compares:
    CONTINUE = "CONTINUE"

    def __init__(self, **settings: Any):
        self.told: list[tuple[str, float]] = []

    def on_trial_result(self, tune_controller: Any, trial: str, result: dict[str, Any]) -> str:
        self.told.append((trial, result[TIME]))
        return "PAUSE"


def test_validations_of_before_a_kill_are_compared_with_none() -> None:
    tune = SimpleNamespace(PopulationBasedTraining=Compares)
    scheduler: Any = PBT(every_epochs=4).build(tune, (Uniform("optimizer.lr", 0.0, 1.0),), 12)

    def report(trial: str, time: float, **more: Any) -> str:
        return scheduler.on_trial_result(None, trial, {TIME: time, **more})

    assert {report("a", time, **{AGAIN: True}) for time in range(1, 10)} == {"CONTINUE"}
    assert report("b", 1) == "PAUSE", "it was not under way"
    assert [report("a", time) for time in (10, 11, 12, 13)] == ["CONTINUE", "CONTINUE", "PAUSE", "PAUSE"]
    assert scheduler.told == [("b", 1), ("a", 12), ("a", 13)]
