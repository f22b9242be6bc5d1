"""Commands that are killed, and what is compared of their runs."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.times import without_times
from raytrain import Run


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "raytrain.cli", *arguments]


def rows(run: Path) -> list[dict]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [without_times(row) for row in found]


def weights(run: Path) -> str:
    return hashlib.sha256((Run(run).checkpoint("last") / "model.safetensors").read_bytes()).hexdigest()


def wait_for_step(run: Path, step: int, process: subprocess.Popen, within_epoch: int = 1) -> None:
    """Waits until that step is done; with `within_epoch`, its steps, until one is that does not end an epoch."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if (run / "metrics.jsonl").is_file() and any(
            row["step"] >= step and (within_epoch == 1 or row["step"] % within_epoch) for row in rows_so_far(run)[-1:]
        ):
            return
        time.sleep(0.05)
    pytest.fail(f"the run did not come to step {step}: {process.communicate()}")


def rows_so_far(run: Path) -> list[dict]:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]
