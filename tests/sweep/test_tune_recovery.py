"""What Tune counts as a trial's failure."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    OutOfMemoryError,
    RayActorError,
    RayTaskError,
)
from ray.tune import schedulers
from ray.tune.experiment import Trial

from raytrain import MedianStopping, TuneScheduler
from raytrain.driver.endings import HostLost, RunFailed
from raytrain.driver.failures import end_of_actor
from raytrain.driver.ray_internals import tune_recovery
from raytrain.sweep.steady import SCORE, TIME
from raytrain.sweep.tuning import _lost_its_host


@pytest.fixture(autouse=True)
def spared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "handle_error", Trial.handle_error)
    monkeypatch.setattr(Trial, "local_path", None)  # it has no folder for the error's text
    tune_recovery.spare_lost_hosts(_lost_its_host)


def of_worker(error: type[RunFailed]) -> RayTaskError:
    cause = error("rank 1 is gone", Path("run"), 1, lost=True)
    return RayTaskError("step", "traceback", pickle.loads(pickle.dumps(cause)))


def died(why: str) -> ActorDiedError:
    error = ActorDiedError()
    error.error_msg = why
    return error


UNREACHABLE = ActorUnavailableError("connection reset by peer", None)
NODE = died("The actor died because its node has died. Node Id: 1f")


@pytest.mark.parametrize("error", [UNREACHABLE, NODE, of_worker(HostLost)])
def test_lost_hosts_are_no_failures_up_to_ten(error: Any) -> None:
    trial = Trial("trainable", stub=True)
    for _ in range(10):
        trial.handle_error(error)
        assert trial.should_recover() and trial.num_failures == 0
    trial.handle_error(error)
    assert not trial.should_recover(), "it may be the trial that brings down its hosts"


@pytest.mark.parametrize("error", [died("Worker unexpectedly exits"), of_worker(RunFailed), None])
def test_lost_processes_are_failures(error: Any) -> None:
    trial = Trial("trainable", stub=True)
    trial.handle_error(error)
    assert trial.num_failures == 1


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UNREACHABLE, "its host was lost"),
        (died("The actor is dead because its worker process has died. Advice."), "its process died: it was killed, or"),
        (of_worker(RunFailed), "rank 1 is gone"),
        (RayActorError(error_msg="no\nreason known"), "its process died: RayActorError: reason known"),
    ],
)
def test_end_of_a_process_is_told_in_a_line(error: Exception, said: str) -> None:
    assert end_of_actor(error).startswith(said)


def test_any_loss_of_a_process_is_that_of_an_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's error of a process that it ends for want of memory is none of an actor."""
    seen: list[Exception] = []
    monkeypatch.setattr(RayActorManager, "_actor_task_failed", lambda self, task, error: seen.append(error))
    tune_recovery.recover_from_all()
    manager = RayActorManager.__new__(RayActorManager)
    for error in (OutOfMemoryError("1 worker was killed"), UNREACHABLE, of_worker(RunFailed)):
        manager._actor_task_failed(tracked_actor_task=None, exception=error)  # type: ignore[arg-type]
    assert isinstance(seen[0], RayActorError) and "OutOfMemory" in str(seen[0])
    assert seen[1] is UNREACHABLE and isinstance(seen[2], RayTaskError)


def test_error_of_a_trial_is_there_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trial, "local_path", str(tmp_path))
    trial = Trial("trainable", stub=True)
    trial.handle_error(UNREACHABLE)
    assert str(tune_recovery.error_of(trial)) == str(UNREACHABLE)
    (tmp_path / "error.pkl").write_bytes(b"no pickle")
    assert isinstance(tune_recovery.error_of(trial), Exception)


def median_rule(samples: int) -> schedulers.MedianStoppingRule:
    return schedulers.MedianStoppingRule(time_attr=TIME, grace_period=1, min_samples_required=samples)


@pytest.mark.parametrize("scheduler", [MedianStopping(samples=1), TuneScheduler(median_rule, samples=1)])
def test_a_trial_that_reports_again_counts_once_in_the_median(scheduler: Any) -> None:

    def decision(heard: list[tuple[Trial, int, float]]) -> str:
        """Of the last report."""
        rule = scheduler.build(schedulers, (), 4, 0)
        assert rule.set_search_properties(SCORE, "min")
        controller: Any = SimpleNamespace(get_live_trials=list)
        return [rule.on_trial_result(controller, one, {TIME: time, SCORE: score}) for one, time, score in heard][-1]

    first, second = Trial("trainable", stub=True), Trial("trainable", stub=True)
    reports = [(first, 1, 4.0), (first, 2, 3.0), (first, 3, 2.0)]
    later = [(second, 1, 3.6), (second, 2, 3.6)]
    assert decision([*reports, *later]) == "STOP", "3.6 is worse than 3.5, the mean of 4 and 3"
    for lost in (1, 2, 3):
        assert decision([*reports[:lost], *reports, *later]) == "STOP"
    assert decision([*reports[:1], *reports, (second, 1, 3.6), (second, 2, 3.4)]) == "CONTINUE"
