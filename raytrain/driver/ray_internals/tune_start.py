"""Start Ray Tune without importing every tracker that is installed, and its actors once, with a Python at any path."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.air._internal import usage

from raytrain.driver.ray_internals.versions import private, replace


def count_no_callbacks() -> None:
    """Keep Tune from counting its user's callbacks for Ray's usage statistics: to compare them with its own loggers it
    imports mlflow, wandb, comet and aim, where they are installed, which takes seconds at the start of each sweep."""
    usage.tag_callbacks = _none


def _none(callbacks: Sequence[object] | None) -> bool:
    """Nothing was counted."""
    return False


def quote_python() -> None:
    """Let trials start where the path of Python has a space. Tune gives them a runtime environment, in which Ray hands
    the path to a shell as it is, and the trials would wait for ever."""
    known = private("ray.tune.execution.class_cache", "_ActorClassCache", "DEFAULT_ENV_VARS", "ENV_VARS_TO_PROPAGATE")
    quoted = shlex.quote(sys.executable)
    if known is None or quoted == sys.executable:
        return

    def get(cache: Any, trainable: type) -> Any:
        if trainable not in cache._cache:
            passed = {name: os.environ[name] for name in known.ENV_VARS_TO_PROPAGATE if name in os.environ}
            environment = {"env_vars": known.DEFAULT_ENV_VARS | passed, "py_executable": quoted}
            cache._cache[trainable] = ray.remote(runtime_env=environment)(trainable)
        return cache._cache[trainable]

    known._ActorClassCache.get = get


def let_actors_start() -> None:
    """Let an actor that is starting keep its trial where another trial waits for one. Tune gives the trial to the next
    actor that is free, and ends the one that was starting: trials shorter than a start would all run in one process."""

    def made(reuse: Callable[..., bool]) -> Callable[..., bool]:
        def maybe_reuse_cached_actor(self: Any, trial: Any) -> bool:
            starting = self._actor_manager.is_actor_started
            actors = self._trial_to_actor
            if trial in actors and trial not in self._resetting_trials and starting(actors[trial]):
                others = self._resources_to_pending_trials[trial.placement_group_factory]
                if any(one not in actors or not starting(actors[one]) for one in others):
                    return False
            return reuse(self, trial)

        return maybe_reuse_cached_actor

    replace("ray.tune.execution.tune_controller", "TuneController", "_maybe_reuse_cached_actor", made)
