"""SIGKILL of the whole process tree in the middle of an epoch, then `raytrain resume`: nothing is lost."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import stat
import subprocess
import termios
import time
from pathlib import Path

import pytest
from helpers.killed_runs import command, rows, rows_so_far, wait_for_step, weights
from helpers.processes import tree

from raytrain import Run, cli

ARGUMENTS = ["--epochs", "12", "--checkpoint.every_steps", "7", "--data.augment.flip", "0.5"]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_killed_and_resumed_run_is_bit_equal(tmp_path: Path, experiments: Path, precision: str) -> None:
    train = ["train", str(experiments / "digits.py"), *ARGUMENTS, "--precision", precision, "--out", str(tmp_path)]
    process = subprocess.Popen(command(*train, "--name", "cut"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    wait_for_step(cut, 100, process, within_epoch=23)
    for pid in tree(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    done = max(row["step"] for row in rows_so_far(cut))
    assert done < 276, "the kill came before the end"
    resumed = subprocess.Popen(command("resume", str(cut)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert cli.run([*train, "--name", "whole"]) == 0  # beside the other
    said, _ = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, said
    assert [row["step"] for row in rows(cut) if row["kind"] == "step"] == list(range(1, 277))
    assert rows(cut) == rows(whole)
    assert weights(cut) == weights(whole)
    assert Run(cut).summary["status"] == "completed"


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)]
)
def test_signal_ends_the_run_after_a_checkpoint(
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
    advice = " ".join(output.replace("\\\n", " ").split())  # a long path has a line of its own
    assert "Traceback" not in complaints and f"raytrain resume {run}" in advice
    step = json.loads((run / "last.json").read_text())["step"]
    assert step == rows(run)[-1]["step"] == Run(run).summary["steps"] and Run(run).summary["status"] == "interrupted"
    assert_gone(processes)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.05, 0.4])
def test_second_signal_ends_the_run_at_once(tmp_path: Path, experiments: Path, seconds: float) -> None:
    """While the workers save, and while Ray shuts down."""
    process = subprocess.Popen(
        command("train", str(experiments / "digits.py"), "--epochs", "1000", "--out", str(tmp_path), "--name", "run"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for_step(tmp_path / "run", 30, process)
    processes = tree(process.pid)
    process.send_signal(signal.SIGINT)
    time.sleep(seconds)
    process.send_signal(signal.SIGTERM)  # a second SIGINT so soon counts as one with the first
    output, complaints = process.communicate(timeout=10)
    assert process.returncode == 130 and "Traceback" not in complaints, complaints
    said = " ".join((output.replace("\\\n", " ") + complaints).split())  # before Ray shuts down, the run has ended
    assert "interrupted" in complaints and f"raytrain resume {tmp_path / 'run'}" in said
    assert_gone(processes)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_comes_twice_ends_the_run_after_a_checkpoint(
    tmp_path: Path, experiments: Path, number: int, status: int
) -> None:
    """As `timeout` sends it: to the command, and then to its group, with the command and Ray's processes in it."""
    process = subprocess.Popen(
        command("train", str(experiments / "digits.py"), "--epochs", "1000", "--out", str(tmp_path), "--name", "run"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    run = tmp_path / "run"
    wait_for_step(run, 30, process)
    processes = tree(process.pid)
    process.send_signal(number)
    time.sleep(0.02)
    os.killpg(process.pid, number)
    _, complaints = process.communicate(timeout=60)
    assert process.returncode == status and "error" not in complaints, complaints
    step = json.loads((run / "last.json").read_text())["step"]
    assert step == rows(run)[-1]["step"] == Run(run).summary["steps"] and Run(run).summary["status"] == "interrupted"
    assert_gone(processes)


@pytest.mark.slow
def test_a_terminal_that_closes_ends_the_run_after_a_checkpoint(tmp_path: Path, experiments: Path) -> None:
    """SIGHUP goes to all processes of the terminal, Ray's own among them, and nothing can be printed any more."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("train", str(experiments / "digits.py"), "--epochs", "1000", "--out", str(tmp_path), "--name", "run"),
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(theirs)
    os.set_blocking(ours, False)
    run, deadline = tmp_path / "run", time.monotonic() + 120
    while not (run / "metrics.jsonl").is_file() or rows_so_far(run)[-1:] == [] or rows_so_far(run)[-1]["step"] < 30:
        assert process.poll() is None and time.monotonic() < deadline
        with contextlib.suppress(BlockingIOError):
            os.read(ours, 1 << 16)
        time.sleep(0.05)
    processes = tree(process.pid)
    os.close(ours)
    process.send_signal(signal.SIGHUP)  # of the shell; the other one is the kernel's
    assert process.wait(60) == 129
    step = json.loads((run / "last.json").read_text())["step"]
    assert step == rows(run)[-1]["step"] == Run(run).summary["steps"] and Run(run).summary["status"] == "interrupted"
    assert_gone(processes)


READS_SLOWLY = """
import time
from dataclasses import dataclass
from raytrain import CNN, Digits, Experiment
@dataclass(frozen=True)
class Slow(Digits):
    def read(self, index, samples):
        time.sleep(0.05 * len(samples))
        return super().read(index, samples)
experiment = Experiment(model=CNN(), data=Slow())
"""


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("starting Ray", 0.5), pytest.param("reading the data", 6.0, marks=pytest.mark.slow)],
)
def test_signal_before_the_first_step_gives_no_traceback(tmp_path: Path, said: str, seconds: float) -> None:
    (tmp_path / "slow.py").write_text(READS_SLOWLY)
    process = subprocess.Popen(
        command("train", str(tmp_path / "slow.py"), "--out", str(tmp_path), "--name", "run"),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout
    while said not in (line := process.stdout.readline()):
        assert line
    time.sleep(seconds)
    processes = tree(process.pid)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143 and "Traceback" not in output and "interrupted: no step was done" in output, output
    assert Run(tmp_path / "run").summary["status"] == "interrupted"
    assert_gone(processes)


def assert_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + 10
    while (left := [pid for pid in processes if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
