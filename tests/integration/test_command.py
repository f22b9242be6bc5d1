"""The command from its start to its end, where its output or a rank fails it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raytrain import Run

COMMAND = [sys.executable, "-m", "raytrain.cli"]


def files(run: Path) -> set[str]:
    return {str(path.relative_to(run)) for path in run.rglob("*") if not path.is_dir()}


@pytest.mark.slow
def test_training_completes_after_a_broken_pipe(tmp_path: Path, experiments: Path) -> None:
    """As in `raytrain train ... | head`."""
    read, write = os.pipe()
    os.close(read)
    train = [*COMMAND, "train", str(experiments / "digits.py"), "--epochs", "2", "--out", tmp_path, "--name", "run"]
    train += ["--scaling.workers", "1"]
    done = subprocess.run(train, stdout=write, stderr=subprocess.PIPE, text=True, timeout=300)
    os.close(write)
    assert done.stderr == "note: standard output is gone (Broken pipe); the command goes on\n"
    assert done.returncode == 0 and Run(tmp_path / "run").summary["status"] == "completed"
    left = files(tmp_path / "run")
    assert not [name for name in left if name.startswith("logs")]
    assert len([name for name in left if not name.startswith("checkpoints")]) <= 11, left


def test_a_failed_training_keeps_the_logs_that_tell_why(tmp_path: Path) -> None:
    file = tmp_path / "fails.py"
    file.write_text(
        "from raytrain import *\nfrom dataclasses import dataclass\nfrom torch import distributed, nn\n"
        "class Net(nn.Sequential):\n"
        "    def forward(self, images):\n"
        "        if distributed.is_initialized():\n"
        "            print('a word before the end', flush=True)\n"
        "            raise ValueError('many\\nlines \\x1b[31mof text')\n"
        "        return super().forward(images)\n"
        "@dataclass(frozen=True)\nclass Own(Model):\n"
        "    def build(self, sample, classes):\n"
        "        return Net(nn.Flatten(), nn.Linear(64, classes))\n"
        "experiment = Experiment(Own(), Digits(), scaling=Scaling(workers=2))\n"
    )
    train = [*COMMAND, "train", str(file), "--out", tmp_path, "--name", "run"]
    done = subprocess.run(train, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "ValueError: many lines of text" in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and f"{file}" not in done.stdout
    logs = {name for name in files(tmp_path / "run") if name.startswith("logs/")}
    assert {"logs/rank_0.log", "logs/ray/raylet.out"} <= logs
    assert all((tmp_path / "run" / name).stat().st_size for name in logs)
    assert not [name for name in logs if "place_" in name or "events" in name or "train-" in name]
