"""A rank whose code never returns: it is named, ended, and the run goes on from its checkpoint, bit-equal."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import raytrain
from raytrain import CNN, DDP, SGD, Batch, Checkpoint, Classification, Digits, Experiment, Scaling
from raytrain.driver.endings import RunFailed


def deadlock() -> None:
    threading.Event().wait()


@dataclass(frozen=True)
class HangsOnce(Classification):
    """Hangs on the last rank in its 30th pass, if the marker is not there yet, after it has been made."""

    marker: str = ""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        _PASSES.append(0)
        if (
            len(_PASSES) == 30
            and (not dist.is_initialized() or dist.get_rank() == 1)
            and not os.path.exists(self.marker)
        ):
            Path(self.marker).touch()
            deadlock()
        return super().loss(model, batch)


_PASSES: list[int] = []

BASE = Experiment(
    model=CNN(channels=(8,)),
    data=Digits(),
    optimizer=SGD(lr=0.05, momentum=0.9),
    scaling=Scaling(workers=2, threads_per_worker=1, hang_seconds=6),
    checkpoint=Checkpoint(every_steps=10),
    epochs=2,
)


def rows(run: Path) -> list[dict]:
    from helpers.times import without_times  # here, for workers run this file too, without the folder of the tests

    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [without_times(row) for row in found]


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_run_whose_rank_hangs_names_it_and_goes_on_bit_equal(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    hung = raytrain.train(replace(BASE, task=HangsOnce(marker=str(marker))), out=str(tmp_path), name="hung", quiet=True)
    assert marker.exists(), "the rank has hung"
    whole = raytrain.train(
        replace(BASE, task=HangsOnce(marker=str(marker))), out=str(tmp_path), name="whole", quiet=True
    )
    assert rows(hung.path) == rows(whole.path)
    weights = [(run.checkpoint("last") / "model.safetensors").read_bytes() for run in (hung, whole)]
    assert weights[0] == weights[1]
    (event,) = [json.loads(line) for line in (hung.path / "logs" / "workers.jsonl").read_text().splitlines()]
    assert event["event"] == "lost" and event["checkpoint"] == "step_00000023"
    assert event["why"].startswith("rank 1 hung after step 29: no progress for ")
    line = deadlock.__code__.co_firstlineno + 1
    assert "while in a forward pass" in event["why"] and f"test_hung_run.py:{line}, in deadlock" in event["why"]
    assert "in loss" in (hung.path / "logs" / "rank_1.log").read_text(), "the stack is in the rank's log"


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_collective_that_takes_too_long_restarts_the_run_bit_equal(tmp_path: Path) -> None:
    scaling = replace(BASE.scaling, hang_seconds=0, collective_seconds=4)
    value = replace(BASE, task=HangsOnce(marker=str(tmp_path / "marker")), scaling=scaling)
    value = replace(value, parallel=DDP(reduction="torch"))
    late, whole = (raytrain.train(value, out=str(tmp_path), name=name, quiet=True) for name in ("late", "whole"))
    assert rows(late.path) == rows(whole.path)
    (event,) = [json.loads(line) for line in (late.path / "logs" / "workers.jsonl").read_text().splitlines()]
    assert event["event"] == "lost" and event["why"] == "rank 0 waited 4 s for another rank in a collective"


@pytest.mark.usefixtures("cluster")
def test_hanging_training_in_the_driver_raises(tmp_path: Path) -> None:
    _PASSES.clear()
    e = replace(BASE, task=HangsOnce(marker=str(tmp_path / "marker")), scaling=replace(BASE.scaling, workers=0))
    with pytest.raises(
        RunFailed,  # the plan has made passes in this process too
        match=r"rank 0 hung after step 2\d: .* in a forward pass .*test_hung_run.py:\d+, in deadlock",
    ):
        raytrain.train(e, out=str(tmp_path), name="run", quiet=True)
    run = raytrain.Run(tmp_path / "run")
    assert run.summary["status"] == "failed" and run.summary["retry"] and run.checkpoint("last").name == "step_00000023"
    assert raytrain.resume(run, quiet=True).summary["status"] == "completed"


DEAF = """
import os, signal, sys, threading
from dataclasses import dataclass
from raytrain import CNN, Classification, Checkpoint, Digits, Experiment, Scaling
PASSES = []
@dataclass(frozen=True)
class Deaf(Classification):
    def loss(self, model, batch):
        PASSES.append(0)
        if len(PASSES) == 20:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # as in a library's call that nothing interrupts
            threading.Event().wait()
        return super().loss(model, batch)
experiment = Experiment(model=CNN(channels=(8,)), data=Digits(), task=Deaf(), checkpoint=Checkpoint(every_steps=10),
                        scaling=Scaling(workers=0, hang_seconds=3))
"""


@pytest.mark.slow
def test_training_in_the_driver_without_signals_ends(tmp_path: Path) -> None:
    (tmp_path / "deaf.py").write_text(DEAF)
    command = [sys.executable, "-m", "raytrain.cli", "train", str(tmp_path / "deaf.py"), "--out", str(tmp_path)]
    process = subprocess.Popen([*command, "--name", "run"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "run" / "checkpoints").glob("step_*/manifest.json")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    from helpers.processes import tree  # here, for workers run this file too, without the folder of the tests

    processes = tree(process.pid)
    _, complaint = process.communicate(timeout=120)
    assert process.returncode == 1, complaint
    assert complaint.startswith("error: the run failed: rank 0 hung after step ") and complaint.count("\n") == 1
    assert "deaf.py:12, in loss" in complaint and f"raytrain resume {tmp_path / 'run'}" in complaint
    deadline = time.monotonic() + 100  # Ray's agents may outlive their node by a minute
    while (left := running(processes)) and time.monotonic() < deadline:
        time.sleep(0.5)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, "Ray's processes end with the driver"


def running(processes: list[int]) -> dict[int, str]:
    """Return the command lines of those that run; a process that nobody has waited for has none."""
    found = {}
    for pid in processes:
        with contextlib.suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return {pid: line for pid, line in found.items() if line}
