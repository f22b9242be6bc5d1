"""What Tune counts as a trial's failure."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
from ray.tune.experiment import Trial

from raytrain.driver.endings import HostLost, RunFailed
from raytrain.driver.failures import run_failure
from raytrain.driver.ray_internals import tune_recovery
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


@pytest.mark.parametrize(("error", "kind"), [(UNREACHABLE, HostLost), (NODE, HostLost), (died("killed"), RunFailed)])
def test_run_names_the_loss_of_its_host(tmp_path: Path, error: Exception, kind: type[RunFailed]) -> None:
    lost = RuntimeError("workers were lost")
    lost.worker_failures = {0: error}  # type: ignore[attr-defined]
    found = run_failure(lost, tmp_path)
    assert type(found) is kind and found.lost and found.rank == 0
