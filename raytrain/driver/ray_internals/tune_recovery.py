"""Let Ray Tune start a trial again whose process ended before its first step, or whose host was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import cloudpickle
from ray.exceptions import RayActorError, RayTaskError

from raytrain.driver.ray_internals.versions import replace

_HOSTS = 10
"""Hosts that a trial may lose without a failure: more than chance takes. A trial that brings down its hosts ends."""


def recover_next_trials() -> None:
    """Let a trial go on whose process ended while it took the trial over from another one. Tune hears of such an end
    twice, from the actor and from its task. The first time it starts the trial again, the second time it finds a trial
    that does not run and ends it, whatever `max_failures` is."""

    def made(failed: Callable[..., None]) -> Callable[..., None]:
        def actor_failed(self: Any, tracked_actor: Any, exception: Exception) -> None:
            trial = self._actor_to_trial[tracked_actor]
            if trial in self._resetting_trials:  # leave it to the task's failure, as with a trial that runs
                self._resetting_trials.discard(trial)
                self._set_trial_status(trial, "RUNNING")
                self._unstage_trial_with_resources(trial)
            failed(self, tracked_actor, exception)

        return actor_failed

    replace("ray.tune.execution.tune_controller", "TuneController", "_actor_failed", made)


def recover_from_all() -> None:
    """Let every loss of a trial's process be the loss of its actor. Tune knows the errors of actors and of their tasks,
    and the sweep itself would end with any other of Ray's, such as that of a process that Ray ends when the memory of
    its node runs out."""

    def made(failed: Callable[..., None]) -> Callable[..., None]:
        def actor_task_failed(self: Any, tracked_actor_task: Any, exception: Exception) -> None:  # given by these names
            if not isinstance(exception, RayActorError | RayTaskError):
                exception = RayActorError(error_msg=f"{type(exception).__name__}: {exception}")
            failed(self, tracked_actor_task, exception)

        return actor_task_failed

    replace("ray.air.execution._internal.actor_manager", "RayActorManager", "_actor_task_failed", made)


def spare_lost_hosts(lost: Callable[[Any], bool]) -> None:
    """Do not count it as a trial's failure when its host was lost.

    Args:
        lost: whether an error of a trial means that.
    """
    hosts = Counter[str]()

    def made(handle: Callable[..., None]) -> Callable[..., None]:
        def handle_error(self: Any, exc: Any = None) -> None:
            before = self.run_metadata.num_failures
            handle(self, exc)
            if self.run_metadata.num_failures > before and lost(exc) and hosts[self.trial_id] < _HOSTS:
                hosts[self.trial_id] += 1
                self.run_metadata.num_failures = before

        return handle_error

    replace("ray.tune.experiment.trial", "Trial", "handle_error", made)


def error_of(trial: Any) -> BaseException:
    """Return the last error of a trial. Tune's own way to it looks where the error's file will be copied to later."""
    try:
        error = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    except Exception as unreadable:  # of the user's classes too
        return unreadable
    return error if isinstance(error, BaseException) else RuntimeError(str(error))
