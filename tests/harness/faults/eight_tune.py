"""Eight trials that a searcher of Ray Tune proposes, one at a time, so that it is told results in one order."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from eight import sweep as complete
from ray.tune import Callback
from ray.tune.search.optuna import OptunaSearch

from raytrain import Choice, LogUniform, Scaling, TuneCallback, TuneSearch


class Heard(Callback):
    """Writes down, beside the folders of Tune's trials, each one's validations and its end."""

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict, **info: Any) -> None:
        self._say(trial, f"{result['trained']:g}")

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self._say(trial, "ended")

    def _say(self, trial: Any, text: str) -> None:
        folder = Path(trial.storage.experiment_fs_path)  # a trial's own folder is a copy, which a kill takes along
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{trial}.txt").open("a") as file:
            file.write(f"{text}\n")


sweep = replace(
    complete,
    experiment=replace(complete.experiment, scaling=Scaling(threads_per_worker=1)),
    axes=(Choice("batch_size", (32, 64)), LogUniform("optimizer.lr", 0.005, 0.2)),
    search=TuneSearch(OptunaSearch, seed=4),
    callbacks=(TuneCallback(Heard),),
    concurrent=1,
)
