"""Hosts as namespaces; and on them, from the shipped file to `ray down`, which `make cluster-test` alone runs: it takes
three minutes where others use the machine, too."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.cluster.hosts import LAUNCHER, Hosts, why_not


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if reason := why_not():
        pytest.skip(reason)
    with Hosts(tmp_path_factory.mktemp("hosts"), count=2) as made:
        yield made


def ssh(hosts: Hosts, name: str, command: str) -> str:
    return hosts.run(LAUNCHER, f"ssh -q -o ConnectTimeout=3 -o StrictHostKeyChecking=no {name} '{command}'")


def reaches(hosts: Hosts, name: str, other: str) -> bool:
    code = f"import socket; socket.create_connection(({other!r}, 22), 2)"
    return "Error" not in hosts.run(name, f'python -c "{code}"', check=False)


def test_hosts_share_a_folder_and_nothing_else(hosts: Hosts) -> None:
    own = "echo mine > /tmp/own; echo mine > ~/own; echo mine > /dev/shm/own; echo all > /mnt/shared/all; hostname"
    assert ssh(hosts, "head", own) == "head\n"
    assert ssh(hosts, "worker1", "hostname; cat /mnt/shared/all") == "worker1\nall\n"
    assert hosts.processes("worker1") == [] and [*hosts.listening("worker1")] == [22]
    assert (hosts.shared / "all").read_text() == "all\n" and not Path("/tmp/own").exists()
    for place in ("/tmp/own", "~/own", "/dev/shm/own"):
        assert hosts.run("worker1", f"ls {place} 2>&1", check=False).startswith("ls: cannot access")


def test_a_host_has_the_environment_and_cannot_write_to_it(hosts: Hosts) -> None:
    said = hosts.run("head", "touch .venv/x 2>&1; python -c 'import numpy; print(numpy.__name__)'")
    assert "Read-only file system" in said and said.endswith("numpy\n")
    # The launcher has the project, and `make setup` finds that its environment is there.
    assert "Nothing to be done" in hosts.run(LAUNCHER, "make setup")


def test_links_are_cut_and_mended_and_hosts_killed_and_started(hosts: Hosts) -> None:
    assert reaches(hosts, "head", "worker1")
    hosts.unplug("worker1")
    assert not reaches(hosts, "head", "worker1") and not reaches(hosts, "worker1", "head")
    hosts.plug_in("worker1")
    assert reaches(hosts, "head", "worker1")
    hosts.run("worker1", "touch ~/kept /tmp/lost")
    hosts.kill("worker1")
    assert not reaches(hosts, "head", "worker1")
    hosts.start("worker1")
    assert reaches(hosts, "head", "worker1")
    assert hosts.run("worker1", "ls ~/kept /tmp/lost 2>/dev/null", check=False) == "/root/kept\n"


def test_a_slow_link_is_slow(hosts: Hosts) -> None:
    # 400 kB are 3.2 s at 1 Mbit/s.
    send = "head -c 400000 /dev/zero | ssh -q -o StrictHostKeyChecking=no worker1 'cat > /dev/null'"
    began = time.monotonic()
    hosts.run(LAUNCHER, send)
    assert time.monotonic() - began < 2.5
    hosts.slow_down("worker1", 1)
    began = time.monotonic()
    hosts.run(LAUNCHER, send)
    assert time.monotonic() - began > 2.5
    hosts.slow_down("worker1", None)
    assert "tbf" not in hosts.run(LAUNCHER, "tc qdisc show dev worker1")


def test_nothing_is_left_when_they_end(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    before = Path("/proc/self/mounts").read_text()
    made = Hosts(tmp_path, count=1)
    first = [process.pid for process in made._first.values()]
    sleeping = made.popen("head", "exec sleep 1000")
    with pytest.raises(RuntimeError, match="in between"), made:
        raise RuntimeError("in between")
    assert sleeping.wait(20) != 0 and not any(os.path.exists(f"/proc/{pid}") for pid in first)
    assert Path("/proc/self/mounts").read_text() == before
    assert "bridge" not in subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout
