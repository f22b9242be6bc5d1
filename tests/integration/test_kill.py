"""SIGKILL of the whole process tree in the middle of an epoch, then `raytrain resume`: nothing is lost."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import tree

from raytrain import Run

ARGUMENTS = ["--epochs", "30", "--checkpoint.every_steps", "7", "--data.augment.flip", "0.5"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "raytrain.cli", *arguments]


def rows(run: Path) -> list[dict]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in ("seconds", "samples_per_second")} for row in found]


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


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_a_killed_and_resumed_run_is_the_uninterrupted_one_bit_for_bit(
    tmp_path: Path, experiments: Path, precision: str
) -> None:
    train = command("train", str(experiments / "digits.py"), *ARGUMENTS, "--precision", precision,
                    "--out", str(tmp_path))  # fmt: skip
    subprocess.run([*train, "--name", "whole"], check=True, capture_output=True, timeout=300)
    process = subprocess.Popen([*train, "--name", "cut"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    wait_for_step(cut, 100, process, within_epoch=23)
    for pid in tree(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    done = max(row["step"] for row in rows_so_far(cut))
    assert done < 690, "the kill came before the end"
    resumed = subprocess.run(command("resume", str(cut)), capture_output=True, text=True, timeout=300)
    assert resumed.returncode == 0, resumed.stderr
    assert [row["step"] for row in rows(cut) if row["kind"] == "step"] == list(range(1, 691))
    assert rows(cut) == rows(whole)
    assert weights(cut) == weights(whole)
    assert Run(cut).summary["status"] == "completed"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_after_a_checkpoint_and_leaves_nothing_behind(
    tmp_path: Path, experiments: Path, number: signal.Signals, status: int
) -> None:
    process = subprocess.Popen(
        command("train", str(experiments / "digits.py"), "--epochs", "1000", "--out", str(tmp_path), "--name", "run"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    run = tmp_path / "run"
    wait_for_step(run, 30, process)
    processes = tree(process.pid)
    said = " ".join((Path("/proc") / str(pid) / "cmdline").read_text().replace("\0", " ") for pid in processes)
    (session,) = {Path(found) for found in re.findall(r"--session[-_]dir=(\S+)", said)}
    above = [(folder.stat().st_uid, stat.S_IMODE(folder.stat().st_mode)) for folder in session.parents]
    assert (os.getuid(), 0o700) in above, f"others can enter {session}"
    started = time.monotonic()
    process.send_signal(number)
    output, complaints = process.communicate(timeout=60)
    assert process.returncode == status, complaints
    assert time.monotonic() - started < 30
    assert "Traceback" not in complaints and f"raytrain resume {run}" in output
    step = json.loads((run / "last.json").read_text())["step"]
    assert step == rows(run)[-1]["step"] == Run(run).summary["steps"] and Run(run).summary["status"] == "interrupted"
    deadline = time.monotonic() + 10
    while (left := [pid for pid in processes if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
