"""A sweep over hosts: it takes little more than a third of the time that one host takes, also if it loses a host, and
no trial with it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from harness.cluster.launched import Cluster
from harness.faults.sweeps import outcome, statuses
from raytrain.sweep import record

TRIALS = 12
_SHARE = 0.45
"""Of one host's time, that three may take."""


def over_hosts(used: Cluster) -> dict[str, float]:
    """Sweep three times: one trial at a time, as one host would do it; on all hosts; and on all hosts, one of which is
    cut off from its power and started again. Return how long they took.

    Raises:
        AssertionError: one took too long, or has other results than the first one.
    """
    used.run("cp tests/harness/cluster/steady_sweep.py ~/work")
    used.wait_for_nodes(3)
    slow = used.hosts.shared / "slow"
    slow.touch()
    try:
        one, expected = _swept(used, "sweep-one", "--concurrent", "1")
        three, found = _swept(used, "sweep-three")
        assert found == expected, "three hosts have other results"
        seconds = {"one host": one, "three": three}
        assert three <= _SHARE * one, seconds
        seconds["one lost"], found = _swept(used, "sweep-lost", during=lambda path, job: _lose_a_host(used, path, job))
        assert found == expected, "a sweep that lost a host has other results"
        assert seconds["one lost"] <= _SHARE * one, seconds
    finally:
        slow.unlink(missing_ok=True)
    return seconds


def _swept(
    used: Cluster, name: str, *flags: str, during: Callable[[Path, subprocess.Popen[str]], None] | None = None
) -> tuple[float, dict[int, object]]:
    """Run a sweep as a job; return its seconds, and the outcome of each trial."""
    path, began = used.hosts.shared / "runs" / name, time.monotonic()
    with used.submit(name, *flags, file="steady_sweep.py") as job:
        try:
            if during:
                during(path, job)
            said = job.communicate(timeout=1800)[0]
        except BaseException:
            job.kill()
            raise
    assert job.returncode == 0, said[-3000:]
    found = outcome(path)
    assert [one["number"] for one in found["trials"]] == list(range(TRIALS))
    assert all(one["status"] == "completed" for one in found["trials"]), said[-3000:]
    return time.monotonic() - began, found["runs"]


def _lose_a_host(used: Cluster, path: Path, job: subprocess.Popen[str]) -> None:
    """Cut a host off from its power while it trains; start it once others have ended, and wait until it trains."""
    victim = used.hosts.names[-1]
    _wait(job, f"a trial on {victim}", lambda: _ended(path) >= 2 and _trains(used, victim))
    used.hosts.kill(victim)
    try:
        before = _ended(path)
        _wait(job, "further trials", lambda: _ended(path) >= before + 2)
    finally:
        used.hosts.start(victim)
    _wait(job, f"another trial on {victim}", lambda: _trains(used, victim))


def _ended(path: Path) -> int:
    return sum(status in record.ENDED for status in statuses(path, TRIALS).values())


def _trains(used: Cluster, host: str) -> bool:
    """Whether a trial's process computes: Ray then names it after the class that `tune.with_parameters` makes."""
    return any(line.startswith("ray::_Inner.train") for line in used.hosts.processes(host))


def _wait(job: subprocess.Popen[str], what: str, condition: Callable[[], bool], limit: float = 400) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        assert job.poll() is None, f"the sweep ended before {what}: {job.communicate()[0][-3000:]}"
        assert time.monotonic() < deadline, f"no {what} within {limit:g} s"
        time.sleep(0.5)
