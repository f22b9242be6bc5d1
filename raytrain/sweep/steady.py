"""Ray Tune's schedulers, made to decide the same after lost processes, in resumed sweeps and without a score."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.tune.schedulers import TrialScheduler

TIME, SCORE = "trained", "score"
"""The names under which trials report to Tune after each validation."""
LEAST_REDUCTION = 2
"""Tune's HyperBandScheduler rounds the length of a rung down: with less, a rung may be no longer than the one before,
and its trials wait for ever."""


def steady(kind: type[TrialScheduler], tune: Any) -> Any:
    """Return a class of Tune's schedulers whose decisions do not depend on lost processes and resumed sweeps, and to
    which a validation without a score is worse than all others: Tune would rank it anywhere, or never stop its trial.

    After the loss of its process a trial reports all its validations again. HyperBand would move it to the newest
    bracket, or compare it before it is back, and the rule of the median would count the validations twice, as it does
    the last one of a trial that it stops. In a resumed sweep HyperBand would not stop what waits for trials that had
    ended before.

    Args:
        tune: the module `ray.tune.schedulers`.
    """

    if issubclass(kind, tune.HyperBandScheduler):
        return _keeping_brackets(kind)
    if issubclass(kind, tune.AsyncHyperBandScheduler):
        return _ranking_all(kind)
    return _hearing_once(kind) if issubclass(kind, tune.MedianStoppingRule) else kind


def _keeping_brackets(kind: type[TrialScheduler]) -> Any:
    class KeepingBrackets(kind):
        def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
            known: set[Any] = vars(self).setdefault("known", set())
            if trial not in known:
                known.add(trial)
                super().on_trial_add(tune_controller, trial)

        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            return super().on_trial_result(tune_controller, trial, _scored(result, self))

        def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
            if trial.status != trial.ERROR:
                super().on_trial_error(tune_controller, trial)
                return
            reports = vars(self)["_trial_info"][trial][0]._live_trials  # Tune starts it again, and it reports again
            if trial in reports:
                reports[trial] = None

        def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
            super().on_trial_remove(tune_controller, trial)
            bracket = vars(self)["_trial_info"][trial][0]
            if bracket.finished():
                bracket.cleanup_full(tune_controller)

        def _process_bracket(self, tune_controller: Any, bracket: Any) -> Any:
            try:
                return super()._process_bracket(tune_controller, bracket)  # type: ignore[misc]
            finally:
                bracket.is_being_processed = False  # Tune leaves it True, and then compares nothing more

    return KeepingBrackets


def _hearing_once(kind: type[TrialScheduler]) -> Any:
    class HearingOnce(kind):
        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            if self._heard(trial, result):
                return self.CONTINUE
            return super().on_trial_result(tune_controller, trial, _scored(result, self))

        def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
            if not self._heard(trial, result):
                super().on_trial_complete(tune_controller, trial, _scored(result, self))

        def _heard(self, trial: Any, result: dict[str, Any]) -> bool:
            known = vars(self)["_results"].get(trial)
            return bool(known) and result[TIME] <= known[-1][TIME]

    return HearingOnce


def _ranking_all(kind: type[TrialScheduler]) -> Any:
    worst = sys.float_info.max  # finite, since Tune interpolates between scores

    class RankingAll(kind):
        def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
            return super().on_trial_result(tune_controller, trial, _scored(result, self, worst))

        def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
            super().on_trial_complete(tune_controller, trial, _scored(result, self, worst))

    return RankingAll


def _scored(result: dict[str, Any], scheduler: Any, worst: float = math.inf) -> dict[str, Any]:
    """Return a report in which the worst score stands for one that is not a number."""
    if not math.isnan(result.get(SCORE, 0.0)):
        return result
    return {**result, SCORE: -worst if vars(scheduler)["_mode"] == "max" else worst}
