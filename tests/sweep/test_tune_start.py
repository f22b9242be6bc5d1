"""The actors of Tune start with any path of Python, and Tune starts no Ray."""

from __future__ import annotations

import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.execution import class_cache
from ray.tune.execution.tune_controller import TuneController

from raytrain.driver.ray_internals.tune_start import let_actors_start, quote_python


class Trainable:
    pass


def environment_of_actor() -> dict[str, object]:
    return class_cache._ActorClassCache().get(Trainable)._default_options["runtime_env"]


@pytest.mark.parametrize("path", ["/opt/my env/bin/python", "/opt/it's/bin/python"])
def test_path_of_python_that_a_shell_would_cut_is_quoted(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(class_cache._ActorClassCache, "get", class_cache._ActorClassCache.get)
    before = environment_of_actor()
    monkeypatch.setattr(sys, "executable", path)
    quote_python()
    found = environment_of_actor()
    assert shlex.split(str(found["py_executable"])) == [path]
    assert found["env_vars"] == before["env_vars"], "what Tune passes on itself"


def test_plain_path_of_python_is_left_to_tune(monkeypatch: pytest.MonkeyPatch) -> None:
    own = class_cache._ActorClassCache.get
    monkeypatch.setattr(sys, "executable", "/opt/env/bin/python3.11")
    quote_python()
    assert class_cache._ActorClassCache.get is own and "py_executable" not in environment_of_actor()


@dataclass(frozen=True)
class Waiting:
    number: int
    placement_group_factory: str = "a CPU"


def test_an_actor_that_starts_keeps_its_trial_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tune would end that actor: trials shorter than the start of an actor would follow each other in one."""
    monkeypatch.setattr(TuneController, "_maybe_reuse_cached_actor", lambda self, trial: True)
    let_actors_start()
    first, second = Waiting(1), Waiting(2)
    actors, waiting = {first: "of first"}, {first}
    controller: Any = SimpleNamespace(
        _trial_to_actor=actors,
        _resetting_trials=set(),
        _resources_to_pending_trials={"a CPU": waiting},
        _actor_manager=SimpleNamespace(is_actor_started={"of first"}.__contains__),
    )

    def reused(trial: Waiting) -> bool:
        return TuneController._maybe_reuse_cached_actor(controller, trial)  # type: ignore[arg-type]

    assert reused(first), "no other trial waits"
    waiting.add(second)
    assert not reused(first) and reused(second)
    actors[second] = "of second"
    assert not reused(first) and reused(second), "the actor of the second waits for a CPU"
    controller._resetting_trials.add(first)
    assert reused(first), "it has one that is free"


def test_tune_neither_starts_nor_joins_a_ray_when_that_of_the_sweep_is_gone() -> None:
    script = """
        import ray
        from raytrain.driver import session
        from raytrain.sweep import driver

        session._settle()
        driver._settle()
        from ray import tune

        ray.init = lambda *arguments, **named: print("started")
        try:
            tune.Tuner(lambda config: None).fit()
        except Exception as error:
            print(type(error).__name__)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert said.stdout.split() == ["RaySystemError"], said
