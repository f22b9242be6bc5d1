"""A run at a URL whose processes are all killed, on a machine that is then forgotten: another one goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from helpers.killed_runs import command, rows, wait_for_step, weights
from helpers.processes import tree

from raytrain import Run
from raytrain.checkpoint import location
from raytrain.checkpoint.storage import Storage

ARGUMENTS = ["--epochs", "10", "--checkpoint.every_steps", "7", "--scaling.workers", "2"]


@pytest.mark.slow
def test_killed_run_at_a_url_resumes_bit_for_bit(s3: str, tmp_path: Path, experiments: Path) -> None:
    train = command("train", str(experiments / "digits.py"), *ARGUMENTS)
    subprocess.run([*train, "--out", str(tmp_path), "--name", "whole"], check=True, capture_output=True, timeout=300)
    url, out = f"{s3}/runs/cut", f"{s3}/runs"
    mirrors = [location.mirror(url, kind) for kind in ("runs", "workers")]
    process = subprocess.Popen([*train, "--out", out, "--name", "cut"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for_step(mirrors[0], 30, process)
    for pid in reversed(tree(process.pid)):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    assert Storage(url).committed() and "summary.json" not in Storage(url).names()
    for mirror in mirrors:
        shutil.rmtree(mirror)
    done = subprocess.run(command("resume", url), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f"the run is at {url}" in done.stdout and f"raytrain evaluate {url}" in done.stdout
    run = Run(url)
    assert rows(run.path) == rows(tmp_path / "whole") and weights(run.path) == weights(tmp_path / "whole")
    assert run.summary["status"] == "completed" and not (run.path / "logs" / "rank_0.json").exists()


@pytest.mark.slow
def test_failed_rank_is_named_over_storage(s3: str, tmp_path: Path) -> None:
    file = tmp_path / "fails.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom raytrain import *\n\n"
        "@dataclass(frozen=True)\nclass Fails(Classification):\n"
        "    def loss(self, model, batch):\n        if len(batch) == 64:\n            raise KeyError('of the user')\n"
        "        return super().loss(model, batch)\n\n"
        "experiment = Experiment(model=CNN(), data=Digits(), task=Fails(), scaling=Scaling(workers=1))\n"
    )
    done = subprocess.run(
        command("train", str(file), "--out", f"{s3}/runs", "--name", "fails"),
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1 and "error: the run failed: rank 0: KeyError: 'of the user'" in done.stderr
    assert "Traceback" not in done.stderr and Run(f"{s3}/runs/fails").summary["status"] == "failed"
    assert "report.html" in Storage(f"{s3}/runs/fails").names()
