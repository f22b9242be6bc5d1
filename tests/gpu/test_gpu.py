"""On a GPU: the command trains there by itself, in every precision, with the curve that a CPU gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from raytrain import Run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
DIGITS = Path(__file__).parents[2] / "experiments" / "digits.py"


def train(folder: Path, name: str, *flags: str) -> Run:
    command = [sys.executable, "-m", "raytrain.cli", "train", str(DIGITS), "--out", str(folder), "--name", name]
    command += ["--scaling.workers", "1", "--epochs", "3", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    return Run(folder / name)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_a_worker_trains_on_the_gpu_as_on_the_cpu(tmp_path: Path, precision: str) -> None:
    gpu = train(tmp_path, "gpu", "--precision", precision, "--data.augment.flip", "0.5")
    cpu = train(tmp_path, "cpu", "--scaling.gpus_per_worker", "0", "--data.augment.flip", "0.5")
    assert gpu.summary["device"] == "cuda" and cpu.summary["device"] == "cpu"
    there, here = (run.metrics()["train_loss"].to_pylist() for run in (gpu, cpu))
    assert there == pytest.approx(here, rel=0.02 if precision == "fp32" else 0.1)


def test_auto_tries_all_precisions_of_the_gpu(tmp_path: Path) -> None:
    run = train(tmp_path, "auto", "--precision", "auto")
    times = run.summary["precision_milliseconds"]
    assert set(times) - {"tf32", "bf16"} == {"fp32", "fp16"} and times[run.summary["precision"]] <= times["fp32"]
