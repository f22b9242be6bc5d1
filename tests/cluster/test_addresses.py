"""A run on two hosts whose ranks would not reach each other ends soon, in one line that says what to set."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.cluster.hosts import ROOT, SHARED, Hosts, why_not

_RAY = f"PYTHONPATH={SHARED}/code RAY_AUTH_MODE=disabled RAY_TMPDIR=/tmp/cluster"
_TRAIN = (
    f"{_RAY} raytrain train {SHARED}/code/experiments/digits.py --address auto --out {SHARED}/runs --epochs 2 "
    "--scaling.workers 2 --scaling.cpus_per_worker 1 --scaling.placement spread --scaling.max_failures 0 2>&1"
)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two hosts of a cluster, each with two CPUs."""
    if reason := why_not():
        pytest.skip(reason)
    with Hosts(tmp_path_factory.mktemp("hosts"), count=2) as made:
        for name in ("raytrain", "experiments"):
            shutil.copytree(ROOT / name, made.shared / "code" / name)
        head = made.addresses["head"]
        start = f"{_RAY} ray start --num-cpus 2 --disable-usage-stats"
        made.run("head", f"{start} --head --node-ip-address {head} --port 6379 --include-dashboard false")
        made.run("worker1", f"{start} --address {head}:6379 --node-ip-address {made.addresses['worker1']}")
        yield made


def rename(hosts: Hosts, address: str) -> None:
    """Let the name of `worker1` stand for an address on that host."""
    lines = f"127.0.0.1 localhost\\n{hosts.addresses['head']} head\\n{address} worker1\\n"
    hosts.run("worker1", f"umount /etc/hosts; printf '{lines}' > /tmp/hosts && mount --bind /tmp/hosts /etc/hosts")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_unreachable_address_names_the_variable_to_set(hosts: Hosts, tmp_path: Path) -> None:
    said = hosts.run("head", _TRAIN, timeout=200)
    assert "completed: epoch 2 of 2" in said, said
    hosts.run("worker1", "ip link add name second type veth peer name unplugged")
    hosts.run("worker1", "ip address add 10.99.0.9/24 dev second && ip link set second up && ip link set unplugged up")
    for address, what in (
        ("127.0.0.1", "gloo on worker1 would use 127.0.0.1 (interface lo), which other nodes cannot reach"),
        ("10.99.0.9", "cannot reach gloo on worker1 at 10.99.0.9 (interface second): "),
    ):
        rename(hosts, address)
        began = time.monotonic()
        said = hosts.run("head", f"{_TRAIN}; echo ended with $?", timeout=200)
        assert "ended with 1" in said and "completed" not in said, said
        assert what in " ".join(said.split()), said
        assert "set GLOO_SOCKET_IFNAME=eth0 in the environment of `ray start` on worker1" in " ".join(said.split())
        assert time.monotonic() - began < 90, "30 s after the start of the workers, on a machine that is busy"
