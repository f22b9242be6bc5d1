"""Few CPUs: workers and Ray Data's tasks share what the nodes have, or the run says what is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers import nodes

from raytrain import Run

STREAMED = ("--data.mode", "streaming", "--batch_size", "64", "--epochs", "2")
OTHER_JOB = """
import ray, sys
ray.init(address=sys.argv[1], log_to_driver=False, logging_level=50)
@ray.remote(num_cpus=float(sys.argv[2]))
class Holder:
    def hold(self): return True
holders = [Holder.remote() for _ in range(int(sys.argv[3]))]
ray.get([holder.hold.remote() for holder in holders])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def without_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")


def train(experiments: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "raytrain.cli", "train", str(experiments / "digits.py"), *STREAMED, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cpus", "workers", "each"),
    [((1,), "1", 0.5), ((2, 2), "4", 0.75)],
)
def test_streaming_run_completes_without_a_whole_free_cpu(
    cpus: tuple[int, ...], workers: str, each: float, tmp_path: Path, experiments: Path
) -> None:
    with nodes.started(*cpus) as cluster:
        arguments = (
            "--scaling.workers",
            workers,
            "--address",
            cluster.address,
            "--out",
            str(tmp_path),
            "--name",
            "run",
        )
        said, _ = train(experiments, *arguments).communicate(timeout=240)
    assert "completed" in said and f"of {each:g} CPU" in said, said
    assert Run(tmp_path / "run").summary["steps"] == 46


@pytest.mark.slow
def test_run_says_that_another_job_holds_its_cpus(tmp_path: Path, experiments: Path) -> None:
    with nodes.started(2) as cluster:
        address = cluster.address
        process = train(experiments, "--epochs", "4000", "--address", address, "--out", str(tmp_path), "--name", "run")
        metrics, notes = tmp_path / "run" / "metrics.jsonl", tmp_path / "run" / "logs" / "notes.log"
        try:
            _wait_for(lambda: metrics.is_file() and metrics.read_text().count("\n") > 50)
            other = subprocess.Popen(
                [sys.executable, "-c", OTHER_JOB, address, "1", "1"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            assert other.stdout and other.stdout.readline() == "held\n"
            _wait_for(lambda: notes.is_file() and notes.read_text().endswith("\n"))
            said = notes.read_text()
            assert said.startswith("Ray Data has read no samples for 30 s: "), said
            assert "has 2 CPUs, 1 held by this run's workers, 1 held by tasks that read or by other jobs" in said
            stalled = metrics.read_text().count("\n")
            other.communicate()
            _wait_for(lambda: metrics.read_text().count("\n") > stalled + 20)
        finally:
            process.terminate()
            shown, _ = process.communicate(timeout=60)
        assert process.returncode == 143 and "Ray Data has read no samples" in shown, shown
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "interrupted"


def _wait_for(condition: Any, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.1)


def test_a_run_that_leaves_ray_data_no_cpu_is_refused(tmp_path: Path, experiments: Path) -> None:
    process = train(experiments, "--scaling.workers", str(len(os.sched_getaffinity(0))),
                    "--scaling.cpus_per_worker", "1", "--out", str(tmp_path / "runs"))  # fmt: skip
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 2 and "leave no CPU of this machine" in said and said.count("\n") == 1, said
    assert not (tmp_path / "runs").exists()
