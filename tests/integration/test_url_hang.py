"""A run at a URL whose server accepts connections and no longer answers: it trains on, and ends when asked."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.killed_runs import command, rows, rows_so_far, wait_for_step, weights
from helpers.processes import tree
from helpers.s3_server import Gate, settings

from raytrain import Run
from raytrain.checkpoint import location, storage

PACED = str(Path(__file__).parents[1] / "harness" / "faults" / "paced.py")


@pytest.fixture
def gate(s3: str) -> Iterator[Gate]:
    """A way to the server that stands for S3; commands take it, and this process does not."""
    gate = Gate(int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]))
    yield gate
    gate.close()


def begin(gate: Gate, log: Path, *arguments: str) -> subprocess.Popen:
    through = {**settings(gate.port), "PYTHONUNBUFFERED": "1"}
    with open(log, "wb") as said:
        return subprocess.Popen(command(*arguments), stdout=said, stderr=subprocess.STDOUT, env=os.environ | through)


def signalled(process: subprocess.Popen, times: int) -> float:
    """Send SIGINT, and SIGTERM if it is to be two signals; return the seconds between the last one and the end."""
    process.send_signal(signal.SIGINT)
    if times == 2:
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert process.wait(60) == 130
    return time.monotonic() - began


@pytest.mark.slow
def test_run_survives_hanging_storage_bit_for_bit(s3: str, gate: Gate, tmp_path: Path) -> None:
    url, log = f"{s3}/hang/cut", tmp_path / "log"
    seen, kept = location.mirror(url), location.mirror(url, "workers")
    train = ["train", PACED, "--epochs", "20"]
    subprocess.run(
        command(*train, "--task.seconds", "0", "--out", str(tmp_path), "--name", "whole"),
        check=True, capture_output=True, timeout=300,
    )  # fmt: skip

    process = begin(gate, log, *train, "--task.seconds", "0.1", "--out", f"{s3}/hang", "--name", "cut")
    wait_for_step(seen, 15, process)
    gate.shut()
    shut, last = time.monotonic(), rows_so_far(kept)[-1]["step"]
    while "no answer for" not in log.read_text():
        assert time.monotonic() < shut + 60 and process.poll() is None, log.read_text()
        time.sleep(0.1)
    assert f"{url}: no answer for" in log.read_text().replace("\n", " ")
    wait_for_step(kept, last + 40, process)  # several checkpoints, none of which is uploaded
    below = tree(process.pid)
    assert signalled(process, 1) < 20, "10 s, on a machine that does nothing else"
    newest = max(path.parent.name for path in kept.glob("checkpoints/*/manifest.json"))
    assert int(newest[5:]) == rows_so_far(kept)[-1]["step"] >= last + 40, "it ends with a checkpoint"
    assert newest not in storage.Storage(url).committed()
    said = " ".join(log.read_text().split())
    assert f"{newest} could not be uploaded to {url} and is kept in {kept}" in said.replace("- ", "-")
    assert f"next: raytrain resume {url}" in said
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in below):
        assert time.monotonic() < deadline, "processes are left"
        time.sleep(0.1)

    gate.open()
    process = begin(gate, log, "resume", url)
    wait_for_step(seen, int(newest[5:]) + 5, process)
    gate.shut()
    time.sleep(3)
    assert signalled(process, 2) < 5, "1 s, on a machine that does nothing else"

    gate.open()
    process = begin(gate, log, "resume", url)
    assert process.wait(300) == 0, log.read_text()
    assert rows(Run(url).path) == rows(tmp_path / "whole") and weights(seen) == weights(tmp_path / "whole")
