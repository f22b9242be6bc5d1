"""What a user does with a cluster of on-premises hosts, from the shipped file to `ray down`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from harness.cluster.hosts import LAUNCHER, ROOT, SHARED, Hosts
from raytrain import cluster
from raytrain.checkpoint import layout

RUNS = f"{SHARED}/runs"
_FILE = "on-premises.yaml"
_DASHBOARD = "http://127.0.0.1:8265"
_STOP = yaml.safe_load(cluster.text("on-premises"))["head_start_ray_commands"][0]
"""What ends the cluster on a host."""
_SSH = "-i ~/.ssh/raytrain -o StrictHostKeyChecking=no"


class Cluster:
    """A cluster on hosts, of the file that `raytrain cluster init on-premises` gives, filled in."""

    def __init__(self, hosts: Hosts):
        self.hosts = hosts
        self.seconds: dict[str, float] = {}
        """How long what has been done took."""
        text = cluster.text("on-premises")
        head, *workers = (hosts.addresses[name] for name in hosts.names)
        for old, new in {
            "head_ip: 192.0.2.10": f"head_ip: {head}",
            "[192.0.2.11, 192.0.2.12]": f"[{', '.join(workers)}]",
            "min_workers: 2  # EDIT: as many as there are worker_ips": f"min_workers: {len(workers)}",
            "max_workers: 2  # EDIT": f"max_workers: {len(workers)}",
            "ssh_user: ubuntu": "ssh_user: root",
            "# ssh_private_key:": "ssh_private_key:",
            "mountpoint -q /shared": f"mountpoint -q {SHARED}",
        }.items():
            assert old in text, old
            text = text.replace(old, new)
        (hosts.project / _FILE).write_text(text)
        self.run("mkdir -p ~/work && cp tests/harness/cluster/steady.py ~/work")
        self.run("mv ~/.ssh/id_ed25519 ~/.ssh/raytrain", check=False)
        assert "nothing is wrong" in self.run(f"raytrain cluster check {_FILE}")
        self.run("ray get-auth-token --generate && chmod 600 ~/.ray/auth_token")

    def run(self, command: str, timeout: float = 120, check: bool = True) -> str:
        """What a command prints on the launcher."""
        return self.hosts.run(LAUNCHER, command, timeout, check)

    def exec(self, command: str, timeout: float = 300) -> str:
        """What a command prints on the head."""
        return self.run(f"ray exec {_FILE} {shlex.quote(command)}", timeout)

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Notes how long something takes."""
        began = time.monotonic()
        yield
        self.seconds[what] = time.monotonic() - began

    def up(self) -> None:
        """`raytrain cluster up`, which ends when all hosts are there."""
        with self.timed("up"):
            said = self.run(f"raytrain cluster up {_FILE} --yes", timeout=1500)
        count = len(self.hosts.names)
        assert f"all {count} nodes have joined" in said
        self.wait_for_nodes(count, 5)

    def ready(self) -> None:
        """Start the cluster again where not all hosts are there."""
        try:
            self.wait_for_nodes(len(self.hosts.names), 90)
        except AssertionError:
            self.up()

    def wait_for_nodes(self, count: int, seconds: float = 400) -> None:
        """Waits until Ray counts so many nodes."""
        deadline = time.monotonic() + seconds
        while f"\n {count} local.cluster.node\n" not in (said := self.status()):
            assert time.monotonic() < deadline, said
            time.sleep(1)

    def status(self) -> str:
        """`ray status`, on the head."""
        return self.hosts.run("head", "RAY_AUTH_MODE=token ray status --address 127.0.0.1:6379")

    def doctor(self) -> None:
        """`raytrain doctor` finds nothing wrong on any host."""
        with self.timed("doctor"):
            said = self.exec(f"raytrain doctor --address auto --out {RUNS} --json")
        found = json.loads(re.findall(r"^\{.*\}\s*$", said, re.MULTILINE)[-1])
        assert {node["name"] for node in found["machines"][1:]} == set(self.hosts.names)
        assert [finding for finding in found["findings"] if finding["level"] != "ok"] == []

    @contextlib.contextmanager
    def dashboard(self) -> Iterator[None]:
        """The head's port 8265 on the launcher, as the file says."""
        command = f"exec ssh -N -L 8265:localhost:8265 {_SSH} root@head"
        with self.hosts.popen(LAUNCHER, command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 60
            while "8265" not in self.run("ss -Hltn sport = 8265"):
                assert process.poll() is None, "the tunnel to the dashboard is not there"
                if time.monotonic() > deadline:
                    process.kill()
                time.sleep(0.2)
            try:
                yield
            finally:
                self.run("pkill -f 8265:localhost", check=False)

    def submit(self, name: str, *flags: str, file: str = "steady.py") -> subprocess.Popen[str]:
        """`raytrain submit` of the experiment or a sweep, which follows the job and ends with its exit status."""
        arguments = shlex.join(["--out", RUNS, "--name", name, "--task.slow", f"{SHARED}/slow", *flags])
        command = f"exec raytrain submit {file} --address {_DASHBOARD} {arguments}"
        return self.hosts.popen(
            LAUNCHER, f"cd ~/work && {command}", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def down(self) -> None:
        """What the file says ends this cluster alone, by SSH, the head first; nothing is left on any host."""
        with self.timed("down"):
            for name in self.hosts.names:
                self.run(f"ssh {_SSH} root@{name} {shlex.quote(_STOP)}")
        deadline = time.monotonic() + 20
        for name in self.hosts.names:
            while (left := self.hosts.processes(name)) or [*self.hosts.listening(name)] != [22]:
                assert time.monotonic() < deadline, f"on {name}: {left}, {self.hosts.listening(name)}"
                time.sleep(0.5)


def rows(run: Path) -> list[dict[str, Any]]:
    """The steps that a run has written so far."""
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the last one is being written
            found.append(json.loads(line))
    return [row for row in found if row["kind"] == "step"]


def same_losses(run: Path, other: Path) -> float:
    """The largest difference of two runs' losses, all steps of which must be there once."""
    mine, theirs = rows(run), rows(other)
    steps = list(range(1, len(theirs) + 1))
    assert [row["step"] for row in mine] == [row["step"] for row in theirs] == steps
    most = max(abs(a["loss"] - b["loss"]) for a, b in zip(mine, theirs, strict=True))
    assert most < 1e-5, f"losses differ by {most}"
    return most


def weights(run: Path) -> bytes:
    """The bytes of a run's last weights."""
    found = layout.newest(run / "checkpoints")
    assert found is not None
    return (found / layout.MODEL).read_bytes()


def train_here(folder: Path, name: str, *flags: str) -> Path:
    """The same experiment on this machine, by one worker in one process: the run's directory."""
    alone = ["--scaling.workers", "0", "--scaling.cpus_per_worker", "1", "--out", str(folder), "--name", name]
    command = [
        sys.executable,
        "-m",
        "raytrain.cli",
        "train",
        str(ROOT / "tests/harness/cluster/steady.py"),
        *flags,
        *alone,
    ]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / name


def sequence(hosts: Hosts, here: Path, name: str) -> dict[str, float]:
    """up, doctor, job, status, down, on hosts that nothing runs on; the seconds of each.

    Args:
        hosts: three of them.
        here: the run of one host to compare with.
        name: what to call the run.
    """
    used = Cluster(hosts)
    used.up()
    used.doctor()
    run = hosts.shared / "runs" / name
    with used.dashboard():
        with used.timed("submit"), used.submit(name) as job:
            places = places_of_ranks(run, 3, job)
            said = job.communicate(timeout=600)[0]
        assert job.returncode == 0 and "completed: epoch " in said, said
        with used.timed("status"):
            (listed,) = json.loads(used.run(f"raytrain status --address {_DASHBOARD} --json"))
        assert listed["status"] == "SUCCEEDED", listed
    assert sorted(place["host"] for place in places) == sorted(hosts.names)
    same_losses(run, here)
    used.down()
    return used.seconds


def places_of_ranks(run: Path, ranks: int, command: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """The host and the node of each rank, from files that are there while the run trains."""
    while command.poll() is None:
        try:
            return [json.loads((run / "logs" / f"place_{rank}.json").read_text()) for rank in range(ranks)]
        except (OSError, ValueError):
            time.sleep(0.05)
    raise AssertionError(f"the run ended before its {ranks} ranks had begun: {command.communicate()}")


def refused(used: Cluster) -> dict[str, float]:
    """A job for what the cluster has not is one line: no GPUs, and a folder that is another one on each host."""
    for what, flags, line in (
        ("no GPU", ("--scaling.gpus_per_worker", "1"), "error: the run asks for 3 GPUs and the cluster has 0"),
        ("not shared", ("--out", "/root/runs"), "error: the output cannot be written: the nodes worker"),
    ):
        with used.timed(what), used.submit("refused", *flags) as job:
            said = job.communicate(timeout=120)[0]
        assert job.returncode == 2 and said.splitlines()[-1].startswith(line) and said.count("error: ") == 1, said
    return {what: used.seconds[what] for what in ("no GPU", "not shared")}


def bit_equal(used: Cluster, here: Path) -> dict[str, float]:
    """Two workers on two hosts end with the bits of one worker here; both have the deterministic strategy."""
    name = "deterministic"
    run = used.hosts.shared / "runs" / name
    flags = ("--parallel.strategy", "deterministic", "--scaling.workers", "2")
    with used.timed("submit"), used.submit(name, *flags) as job:
        places = places_of_ranks(run, 2, job)
        said = job.communicate(timeout=600)[0]
    assert job.returncode == 0, said
    assert len({place["host"] for place in places}) == 2
    assert [row["loss"] for row in rows(run)] == [row["loss"] for row in rows(here)]
    assert weights(run) == weights(here)
    return {"submit": used.seconds["submit"]}


def another_ray_goes_on(used: Cluster) -> None:
    """Ray that the same user runs on the head and on a worker lives on while this cluster is started again."""
    other = "--head --port=7379 --num-cpus=1 --include-dashboard=false --min-worker-port=20000 --max-worker-port=20100"
    names = ("head", "worker1")

    def running() -> list[str]:
        return [used.hosts.run(name, "pgrep -f '[g]cs_server_port=7379|[/]tmp/other/.*raylet'") for name in names]

    try:
        for name in names:
            used.hosts.run(name, f"RAY_TMPDIR=/tmp/other ray start {other} --ray-client-server-port=7001")
        before = running()
        used.up()
        assert running() == before
    finally:
        for name in names:
            used.hosts.run(name, _STOP.replace("/tmp/raytrain-cluster", "/tmp/other"))
