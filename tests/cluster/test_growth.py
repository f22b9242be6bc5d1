"""A cluster that starts its workers when a run asks for them: Ray's autoscaler, its nodes processes of this machine."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from harness.cluster.launched import places_of_ranks

ROOT = Path(__file__).parents[2]
_DEMAND = """
import json, sys
from ray.autoscaler.v2.sdk import get_cluster_status
found = get_cluster_status(sys.argv[1]).resource_demands
groups = [bundle.count for group in found.placement_group_demand for bundle in group.bundles_by_count]
print(json.dumps([sorted(groups), [str(one) for one in found.cluster_constraint_demand]]))
"""
_OTHER_RUN = """
import sys, ray
from raytrain.driver.demand import Demand as _Demand
ray.init(sys.argv[1], log_to_driver=False)
with _Demand() as demand:
    demand.hold({"CPU": 1.5}, [7])
    print("asked", flush=True)
    sys.stdin.read()
"""
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def sessions(environment: dict[str, str]) -> list[int]:
    """The processes that were started with a home."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"HOME={environment['HOME']}".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture
def head(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a head with two CPUs whose autoscaler may start two nodes of two, and the environment there."""
    from ray.util import get_node_ip_address

    with socket.socket() as one:
        one.bind(("", 0))
        address = f"{get_node_ip_address()}:{one.getsockname()[1]}"
    provider = {"type": "fake_multinode", "head_node_id": "f" * 56, "gcs_address": address, "launch_multiple": True}
    provider["disable_node_updaters"] = True
    kinds = {
        "ray.head.default": {"resources": {"CPU": 2}, "node_config": {}, "max_workers": 0},
        "cpu": {"resources": {"CPU": 2}, "node_config": {}, "min_workers": 0, "max_workers": 2},
    }
    values = {
        "cluster_name": "grows",
        "file_mounts": {},
        "auth": {"ssh_user": "ray"},
        **{key: [] for key in ("cluster_synced_files", "initialization_commands", "setup_commands")},
        **{key: [] for key in ("head_setup_commands", "worker_setup_commands")},
        **{key: [] for key in ("head_start_ray_commands", "worker_start_ray_commands")},
        "idle_timeout_minutes": 5,
        "upscaling_speed": 1.0,
        "max_workers": 2,
        "provider": provider,
        "available_node_types": kinds,
        "head_node_type": "ray.head.default",
    }
    file = tmp_path / "ray_bootstrap_config.yaml"
    file.write_text(yaml.safe_dump(values))
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment |= {
        "HOME": str(tmp_path),
        "RAY_AUTH_MODE": "disabled",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "0",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": "f" * 56,
    }
    # Below /tmp, since Ray's sockets have no room for pytest's long paths.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [*RAY, "start", "--head", "--num-cpus=2", f"--temp-dir={folder}"]
        command += [f"--port={address.rpartition(':')[2]}", "--include-dashboard=false"]
        command += [f"--autoscaling-config={file}"]
        try:
            subprocess.run(command, env=environment, check=True, capture_output=True, timeout=120)
            del environment["RAY_OVERRIDE_NODE_ID_FOR_TESTING"]
            yield address, environment
        finally:
            for pid in sessions(environment):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_run_waits_for_the_nodes_that_its_workers_need(head: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    address, environment = head

    def train(name: str, workers: int, cpus: int, *flags: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "raytrain.cli", "train", str(ROOT / "experiments/digits.py"), "--epochs", "1"]
        command += ["--address", address, "--out", str(tmp_path), "--name", name, *flags]
        command += ["--scaling.cpus_per_worker", str(cpus), "--scaling.workers", str(workers)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def nodes(name: str, cpus: int, *flags: str) -> list[str]:
        """The nodes of the two workers of a run, which completes."""
        with train(name, 2, cpus, *flags) as run:
            places = places_of_ranks(tmp_path / name, 2, run)
            said = run.communicate(timeout=200)[0]
        assert run.returncode == 0, said
        return [place["node"] for place in places]

    (tmp_path / "home").mkdir()
    description = yaml.safe_load((tmp_path / "ray_bootstrap_config.yaml").read_text())
    description["available_node_types"]["cpu"]["min_workers"] = 2
    (tmp_path / "home" / "ray_bootstrap_config.yaml").write_text(yaml.safe_dump(description))
    command = [sys.executable, "-m", "raytrain.cli", "doctor", "--address", address, "--out", str(tmp_path)]
    home = {**environment, "HOME": str(tmp_path / "home")}
    said = subprocess.run(command, env=home, capture_output=True, text=True, timeout=200, check=False).stdout
    assert "1 of 3 nodes are there that the cluster's file asks for" in said

    with train("refused", 4, 2) as refused:
        said = refused.communicate(timeout=200)[0]
    listed = r"\S+ \(2 CPUs\), a node to come \(2 CPUs\), a node to come \(2 CPUs\)"
    assert re.search(f"4 workers of 2 CPUs cannot be placed: each needs one node, and {listed} hold 3", said)
    assert refused.returncode == 2
    assert any(node != "f" * 56 for node in nodes("first", 2))

    # Now that the nodes are there, each has room for two workers of one CPU.
    for placement, count in (("pack", 1), ("spread", 2)):
        assert len(set(nodes(placement, 1, "--scaling.placement", placement))) == count


@pytest.mark.slow
def test_demand_ends_with_its_run_also_after_a_kill(head: tuple[str, dict[str, str]], tmp_path: Path) -> None:
    address, environment = head
    environment = {**environment, "PYTHONPATH": str(ROOT)}

    def wait_for_demand(*groups: int) -> None:
        """Wait until the autoscaler sees pending groups of these sizes, and nothing else."""
        deadline = time.monotonic() + 120
        while True:
            command = [sys.executable, "-c", _DEMAND, address]
            said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
            if json.loads(said.stdout.splitlines()[-1]) == [list(groups), []]:
                return
            assert time.monotonic() < deadline, said.stdout
            time.sleep(0.5)

    command = [sys.executable, "-c", _OTHER_RUN, address]
    other = subprocess.Popen(command, env=environment, stdin=-1, stdout=-1, stderr=-1, text=True)
    command = [sys.executable, "-m", "raytrain.cli", "train", str(ROOT / "experiments/digits.py"), "--epochs", "100000"]
    command += ["--address", address, "--out", str(tmp_path), "--name", "elastic", "--scaling.workers", "1:8"]
    run = subprocess.Popen([*command, "--scaling.cpus_per_worker", "1.5"], env=environment, stdout=-1, stderr=-1)
    try:
        # Of 1, 2, 4 or 8 workers, two fit on three nodes: the run asks for two more, and then for four more.
        wait_for_demand(2, 4, 7)
        other.communicate(timeout=60)
        wait_for_demand(2, 4)
    finally:
        run.kill()
        run.communicate()
        other.kill()
        other.communicate()
    wait_for_demand()
