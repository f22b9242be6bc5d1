"""The user's Tune callbacks in a running sweep: each is told everything once, and none can end the sweep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ray import tune

from raytrain import errors
from raytrain.sweep import record
from raytrain.sweep.steady import TIME
from raytrain.sweep.trial import VALUES, number_of
from raytrain.sweep.trials import Trials
from raytrain.sweep.tune_callback import Told
from raytrain.user_code import places


def forwarded(trials: Trials, say: Callable[[str], None]) -> list[tune.Callback]:
    """Return callbacks for Tune that pass its events to those of the sweep.

    Args:
        say: is called with a note for the user, from Tune's thread.

    Raises:
        UserError: one cannot be made.
    """
    mine = trials.sweep.callbacks
    told = Told(trials.path, len(mine))
    return [_Forward(one.build(), place, trials, told, say) for place, one in enumerate(mine)]


class _Forward(tune.Callback):
    """Passes Tune's events to one callback of the user's.

    Args:
        inner: it.
        place: its place among the sweep's callbacks.
        told: what all of them know from earlier commands.
        say: is called with a note for the user, from Tune's thread.
    """

    def __init__(self, inner: Any, place: int, trials: Trials, told: Told, say: Callable[[str], None]):
        self.inner, self.place, self.trials, self.told, self.say = inner, place, trials, told, say

    def __reduce__(self) -> tuple[type, tuple[()]]:
        """Tune pickles its callbacks for its own restoration, which raytrain does not use."""
        return object, ()

    def setup(self, stop: Any = None, num_samples: Any = None, total_num_samples: Any = None, **info: Any) -> None:
        self._call("setup", stop=stop, num_samples=num_samples, total_num_samples=total_num_samples, **info)

    def on_step_begin(self, iteration: int, trials: list, **info: Any) -> None:
        self._call("on_step_begin", iteration, trials, **info)

    def on_step_end(self, iteration: int, trials: list, **info: Any) -> None:
        self._call("on_step_end", iteration, trials, **info)

    def on_trial_start(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self._of_trial("on_trial_start", iteration, trials, trial, **info)

    def on_trial_restore(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self._of_trial("on_trial_restore", iteration, trials, trial, **info)

    def on_trial_save(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self._of_trial("on_trial_save", iteration, trials, trial, **info)

    def on_trial_recover(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self._of_trial("on_trial_recover", iteration, trials, trial, **info)

    def on_checkpoint(self, iteration: int, trials: list, trial: Any, checkpoint: Any, **info: Any) -> None:
        self._of_trial("on_checkpoint", iteration, trials, trial, checkpoint, **info)

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict[str, Any], **info: Any) -> None:
        number, trained = number_of(str(trial)), result.get(TIME, 0.0)
        if trained > self._known(number)["trained"]:
            self._of_trial("on_trial_result", iteration, trials, trial, {**result}, **info)
            self.told.note(number, self.place, trained=trained)

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self._end("on_trial_complete", iteration, trials, trial, **info)

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self._end("on_trial_error", iteration, trials, trial, **info)

    def on_experiment_end(self, trials: list, **info: Any) -> None:
        self._call("on_experiment_end", trials, **info)

    def _end(self, event: str, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        """Pass an end on, unless the trial was only interrupted."""
        number = number_of(str(trial))
        found = record.read(record.folder(self.trials.path, number))
        if found.get("status") in record.ENDED and not self._known(number)["ended"]:
            self._of_trial(event, iteration, trials, trial, **info)
            self.told.note(number, self.place, ended=True)

    def _of_trial(self, event: str, iteration: int, trials: list, trial: Any, *more: Any, **info: Any) -> None:
        if self.trials.sweep.scheduler.mutates:  # a population's values are in Tune's config without names
            axes = [axis.path for axis in self.trials.sweep.axes]
            trial.config[VALUES] = self.trials.labels({path: trial.config[path] for path in axes})
        if not self._known(number_of(str(trial)))["ended"]:
            self._call(event, iteration, trials, trial, *more, **info)

    def _known(self, number: int) -> dict[str, Any]:
        return self.told.of(number)[self.place]

    def _call(self, event: str, *arguments: Any, **named: Any) -> None:
        if self.inner is None:
            return
        try:
            getattr(self.inner, event)(*arguments, **named)
        except Exception as error:
            kind, line = type(self.inner).__name__, places.line_of(error)
            self.inner = None
            said = errors.one_line(f"{type(error).__name__}: {error}", 300)
            self.say(f"the callback {kind} failed in {event} and is left out: {said}{f' ({line})' if line else ''}")
