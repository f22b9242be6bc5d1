"""`raytrain doctor` on a cluster of two nodes on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import nodes

from raytrain.doctor import CHECKS


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a cluster of two nodes, which end with the module; another process has its agent's port."""
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("", 0)) as taken:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        with socket.create_server(("", 0)) as free:
            options: dict[str, Any] = {"dashboard_port": free.getsockname()[1]}  # not that of another cluster here
        with nodes.started(2, 1, **options, dashboard_agent_listen_port=taken.getsockname()[1]) as cluster:
            yield cluster.address


def doctor(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in a home without a token."""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {"HOME": str(folder), "RAY_AUTH_MODE": "disabled"}
    command = [sys.executable, "-m", "raytrain.cli", "doctor", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.slow
def test_every_node_is_asked_and_nothing_is_left_behind(address: str, tmp_path: Path) -> None:
    done = doctor(tmp_path, "--address", address, "--out", str(tmp_path / "runs"), "--json")
    assert done.stderr == ""
    said = json.loads(done.stdout)
    here, *nodes = said["machines"]
    assert said["address"] == address and len(nodes) == 2
    assert here["name"] == "this machine" and len({node["name"] for node in nodes}) == 2
    assert sorted(node["declared"][0] for node in nodes) == [1, 2] and here["declared"] is None
    for node in nodes:
        assert all(node[name] == here[name] for name in ("python", "torch", "ray", "raytrain", "cpus", "memory"))
        assert (node["written"], node["read"], node["seen"], node["unreachable"]) == (None, None, None, [])
        assert abs(node["skew"][0]) <= node["skew"][1] + 0.01, "one machine has one clock"
    found = said["findings"]
    names = {check.__name__.removeprefix("check_").replace("_", " ") for check in CHECKS}
    elsewhere = {"limits", "nodes"}  # asked where no cluster runs yet, and where `ray up` launched it
    assert {finding["check"] for finding in found} == names - elsewhere
    of = {(finding["check"], finding["machine"]): finding for finding in found}
    for node in nodes:
        for check in ("python", "packages", "network", "reachable", "storage", "clock", "cpus"):
            assert of[check, node["name"]]["level"] == "ok", of[check, node["name"]]
    (head,) = (name for check, name in of if check == "jobs")
    assert of["jobs", head]["level"] == "warning" and "could not open its port" in of["jobs", head]["what"]
    assert done.returncode == any(finding["level"] == "failure" for finding in found)
    assert not list(tmp_path.rglob(".raytrain-doctor-*")) and not (tmp_path / "runs").exists()


def test_port_without_a_cluster_is_one_line_within_15_seconds(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    done = doctor(tmp_path, "--address", f"127.0.0.1:{port}")
    assert time.monotonic() - began < 15
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: no Ray cluster answers: ") and done.stderr.count("\n") == 1


def test_the_facts_are_gathered_where_raytrain_is_not(tmp_path: Path) -> None:
    """As on a node that lacks it: the function comes by value, and says so."""
    code = """
import sys
from ray import cloudpickle
import raytrain
from raytrain.doctor import facts
cloudpickle.register_pickle_by_value(raytrain)
sys.stdout.buffer.write(cloudpickle.dumps((facts.gather, facts.clock, facts.remove)))
"""
    carried = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=100).stdout
    there = f"""
import json, pickle, sys
sys.modules["raytrain"] = None
sys.path[:] = [path for path in sys.path if path]
import ray.cloudpickle
gather, clock, remove = pickle.loads(sys.stdin.buffer.read())
print(json.dumps(gather({str(tmp_path)!r}, "own", "own", "node", [("127.0.0.1", 1)])), clock() > 0)
remove({str(tmp_path)!r}, ["own"])
"""
    done = subprocess.run([sys.executable, "-c", there], input=carried, capture_output=True, check=True, timeout=100)
    said, _, ticks = done.stdout.decode().rpartition(" ")
    answer = json.loads(said)
    assert answer["raytrain"] is None and answer["ray"] and ticks.strip() == "True"
    assert answer["name"] == "node" and answer["unreachable"] == ["127.0.0.1:1"]
    assert (answer["written"], answer["read"]) == (None, None) and not list(tmp_path.iterdir())
