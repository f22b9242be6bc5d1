"""Start Ray Tune without importing every tracker that is installed, and its actors with a Python at any path."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

import ray
from ray.air._internal import usage

from raytrain.driver.ray_internals.versions import private


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
