"""What is not samples per second: how long whole commands, scans, caches and checkpoints take."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks import dataset
from benchmarks.harness import ROOT, Measured, Side, SideFailed, alternate, environment, medians
from benchmarks.side import Workload
from raytrain import ImageFolder, Index
from raytrain.data import cache


def start_and_end(rounds: int, running: bool) -> tuple[Measured, Measured]:
    """Seconds from the command to the end of its first step, and from the last step to the command's end: a run of two
    workers against a raw TorchTrainer.

    Args:
        running: whether a cluster is there already, or each starts its own.
    """
    starts: list[tuple[float, float]] = []
    ends: list[tuple[float, float]] = []
    with _cluster() if running else contextlib.nullcontext() as address, tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            ours, theirs = _raytrain(folder, number, address), _raw(folder, address)
            starts.append((ours[0], theirs[0]))
            ends.append((ours[1], theirs[1]))
    return _seconds(starts), _seconds(ends)


def packing(workload: Workload, tutorials: Workload, rounds: int) -> tuple[Measured, Measured]:
    """Samples per second of a first epoch, packing included, against the tutorials' loop; and seconds until a second
    start has the images against the first's. The tutorials' loop has the same speed on fewer files."""
    with Side("packing", workload) as ours, Side("tutorial", tutorials) as theirs:
        mine, other = alternate((ours, theirs), rounds)
    first = tuple(a.rate / b.rate for a, b in zip(mine[1:], other[1:], strict=True))
    second = tuple(turn.more["again"] / turn.more["packed"] for turn in mine[1:])
    more = medians(mine[1:])
    return (
        Measured(
            statistics.median(turn.rate for turn in mine[1:]),
            statistics.median(turn.rate for turn in other[1:]),
            first,
            note=f"packed in {more['packed']:.1f} s",
            more=more,
        ),
        Measured(more["again"], more["packed"], second, unit="s", note="nothing is decoded"),
    )


def checkpoint(workload: Workload, rounds: int) -> Measured:
    """Seconds that a checkpoint of 47 MB keeps the loop, against torch.save and Ray Train's report."""
    with Side("checkpoint_raytrain", workload) as ours, Side("checkpoint_ray", workload) as theirs:
        mine, other = alternate((ours, theirs), rounds)
    return _seconds([(a.more["seconds"], b.more["seconds"]) for a, b in zip(mine[1:], other[1:], strict=True)])


def scan(folder: Path, files: int, rounds: int) -> Measured:
    """Microseconds a file that it takes to list an ImageFolder, against 1."""
    data, found = ImageFolder(root=str(folder), size=28, crop=None, channels=1, mean=(0.5,), std=(0.5,)), []
    for _ in range(1 + rounds):
        started = time.perf_counter()
        data.index()
        found.append((time.perf_counter() - started) / files * 1e6)
    return Measured(statistics.median(found[1:]), 1.0, tuple(found[1:]), unit="us")


def reopen(files: int, rounds: int) -> Measured:
    """Milliseconds to find and map the cached images of that many files, against 50."""
    generator = np.random.default_rng(0)
    index = Index(
        generator.integers(0, 10, files),
        tuple("0123456789"),
        (1, 28, 28),
        "train",
        paths=pa.array([f"train/{number % 10}/{number:06d}.png" for number in range(files)]),
        sizes=generator.integers(200, 400, files),
        times=generator.integers(0, 1 << 60, files),
    )
    found, folder = [], Path(tempfile.mkdtemp(dir=dataset.CACHE))
    try:
        cache.store(cache.entry(folder, index, ""), index, index.empty(files), [])
        for _ in range(1 + rounds):
            started = time.perf_counter()
            if cache.load(cache.entry(folder, index, ""), index) is None:
                raise SideFailed("the cache has no room here")
            found.append((time.perf_counter() - started) * 1e3)
    finally:
        shutil.rmtree(folder)
    return Measured(statistics.median(found[1:]), 50.0, tuple(value / 50 for value in found[1:]), unit="ms")


def _seconds(pairs: list[tuple[float, float]]) -> Measured:
    ours, theirs = zip(*pairs, strict=True)
    return Measured(statistics.median(ours), statistics.median(theirs), tuple(a / b for a, b in pairs), unit="s")


def _raytrain(folder: str, number: int, address: str | None) -> tuple[float, float]:
    """(seconds to the first step, seconds from the last step to the end) of `raytrain train`."""
    command = [sys.executable, "-m", "raytrain.cli", "train", str(ROOT / "experiments" / "digits.py"), "--epochs", "1"]
    command += ["--scaling.workers", "2", "--out", folder, "--name", str(number)]
    started = time.time()
    _finish([*command, *(["--address", address] if address else [])])
    ended, run = time.time(), Path(folder) / str(number)
    # The summary is written after the last step and its checkpoint.
    last = (run / "summary.json").stat().st_mtime
    since = json.loads((run / "summary.json").read_text())["first_step_seconds"]
    return since, ended - max(last, started)


def _raw(folder: str, address: str | None) -> tuple[float, float]:
    """The same of benchmarks/sides/start_ray.py."""
    done, started = Path(folder) / "done", time.time()
    _finish([sys.executable, "-m", "benchmarks.sides.start_ray", str(done), *([address] if address else [])])
    return float(done.read_text()) - started, time.time() - float(done.read_text())


def _variables() -> dict[str, str]:
    """For both sides: a token, where this machine keeps one, would be known to one of them alone."""
    return environment(1) | {"RAY_AUTH_MODE": "disabled"}


def _finish(command: list[str]) -> None:
    # A note of a cluster that is gone would have Train's controller look for it there: 12 s at the end.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="rt-", ignore_cleanup_errors=True) as notes:
        variables = _variables() | {"RAY_TMPDIR": notes}
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=variables, check=False, timeout=300
        )
    if done.returncode:
        raise SideFailed(f"{' '.join(command[1:4])} ended with {done.returncode}:\n{done.stderr[-500:]}")


@contextlib.contextmanager
def _cluster() -> Iterator[str]:
    """A cluster of two CPUs on this machine, as `ray start --head` makes it; yields its address."""
    ports = [_free_port() for _ in range(4)]
    names = ("port", "ray-client-server-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port")
    # A short path: the sockets' names in it must not grow beyond what the system allows.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="rt-") as folder:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"]
        command += ["--include-dashboard=false", f"--temp-dir={folder}"]
        command += [f"--{name}={port}" for name, port in zip(names, ports, strict=True)]
        head = subprocess.Popen(
            command, env=_variables(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            _wait_for(ports[0])
            yield f"127.0.0.1:{ports[0]}"
        finally:
            os.killpg(head.pid, signal.SIGTERM)
            try:
                head.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(head.pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            time.sleep(5)  # the node behind it takes a while longer
            return
        time.sleep(0.2)
    raise SideFailed("ray start: nothing listens")
