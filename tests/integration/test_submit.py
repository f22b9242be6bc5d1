"""Jobs on a real cluster of one machine, with a token: sent, followed, refused, stopped; what is open without one."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.processes import tree
from helpers.readme import the

from raytrain import Run
from raytrain.driver.ray_internals import cluster_state

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Cluster:
    """What `ray start --head` has started, in a home and with a token of its own."""

    home: Path
    token: str
    temporary: Path
    pid: int
    ports: dict[str, int]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports['dashboard-port']}"

    @property
    def agent(self) -> str:
        return f"http://127.0.0.1:{self.ports['dashboard-agent-listen-port']}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.ports['port']}"

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return {**kept, "HOME": str(self.home), "PYTHONPATH": str(ROOT), **more}

    def command(self, *arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "raytrain.cli", *(str(argument) for argument in arguments)]
        return subprocess.run(
            command, cwd=ROOT, env=self.environment(**more), capture_output=True, text=True, timeout=400, check=False
        )

    def readme(self, command: str, *more: object, **names: object) -> subprocess.CompletedProcess[str]:
        """A command of README, for this cluster."""
        for name, instead in {"http://localhost:8265": self.url, **names}.items():
            command = command.replace(name, str(instead))
        return self.command(*shlex.split(command)[1:], *more)

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "raytrain.cli", *(str(argument) for argument in arguments)]
        return subprocess.Popen(command, cwd=ROOT, env=self.environment(), stdout=-1, stderr=-1, text=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("home")
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text(token := secrets.token_hex(32))
    (home / ".ray" / "auth_token").chmod(0o600)
    temporary = Path(tempfile.mkdtemp(prefix="rt"))  # the paths of sockets are short
    names = ("port", "dashboard-port", "dashboard-agent-listen-port", "metrics-export-port", "ray-client-server-port")
    with contextlib.ExitStack() as stack:
        free = [stack.enter_context(socket.socket()) for _ in names]
        for one in free:
            one.bind(("127.0.0.1", 0))
        ports = {name: int(one.getsockname()[1]) for name, one in zip(names, free, strict=True)}
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"]
    command += ["--num-cpus=3", f"--temp-dir={temporary}", *(f"--{name}={port}" for name, port in ports.items())]
    started = Cluster(home, token, temporary, 0, ports)
    with open(home / "head.log", "w") as log:
        environment = started.environment(RAY_AUTH_MODE="token")
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    started = Cluster(home, token, temporary, head.pid, ports)
    try:
        deadline = time.monotonic() + 240
        healthy = f"{started.agent}/api/local_raylet_healthz"
        while (status_of(f"{started.url}/api/version", token), status_of(healthy)) != (200, 200):
            assert head.poll() is None and time.monotonic() < deadline, (home / "head.log").read_text()
            time.sleep(0.3)
        yield started
    finally:
        for pid in tree(head.pid):  # and no other Ray of this machine
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        head.wait()
        shutil.rmtree(temporary, ignore_errors=True)


def status_of(url: str, token: str | None = None, method: str = "GET") -> int:
    request = urllib.request.Request(url, method=method, data=b"{}" if method == "POST" else None)
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_ports_refuse_requests_without_a_token(cluster: Cluster) -> None:
    asked = {
        ("GET", f"{cluster.url}/api/version"),
        ("GET", f"{cluster.url}/api/jobs/"),
        ("POST", f"{cluster.url}/api/jobs/"),
        ("GET", f"{cluster.url}/nodes?view=summary"),
        ("GET", f"{cluster.url}/api/cluster_status"),
        ("GET", f"{cluster.url}/logs"),
        ("POST", f"{cluster.agent}/api/job_agent/jobs/"),
    }
    for method, url in asked:
        assert (status_of(url, None, method), status_of(url, "wrong", method)) == (401, 403), url
    for token in ("", "wrong"):
        with pytest.raises(PermissionError):
            cluster_state.ask_version(cluster.address, token)
    assert cluster_state.ask_version(cluster.address, cluster.token) == "2.60.0"
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{cluster.ports['ray-client-server-port']}") as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/ray.rpc.RayletDriver/ClusterInfo")(b"", timeout=60, wait_for_ready=True)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
    listing = [sys.executable, "-m", "ray.scripts.scripts", "job", "list", "--address", cluster.url]
    for more, works in (({}, False), ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "wrong"}, False),
                        ({"RAY_AUTH_MODE": "token"}, True)):  # fmt: skip
        done = subprocess.run(listing, env=cluster.environment(**more), capture_output=True, text=True, timeout=90)
        assert (done.returncode == 0) == works, done.stderr
    # What docs/security.md names as open, and no more of it than that.
    opened = ("/", "/api/gcs_healthz", "/api/authentication_mode")
    assert [status_of(cluster.url + path) for path in opened] == [200, 200, 200]


def test_wrong_token_is_one_line_within_15_seconds(cluster: Cluster, tmp_path: Path) -> None:
    for arguments in (
        ("train", "experiments/digits.py", "--address", cluster.address, "--dry_run"),
        ("submit", "experiments/digits.py", "--address", cluster.url, "--out", tmp_path),
    ):
        for more, says in (
            ({"RAY_AUTH_TOKEN": "wrong"}, "error: the cluster refuses the token of RAY_AUTH_TOKEN, "),
            ({"HOME": str(tmp_path)}, "error: the cluster requires a token, and there is none here ("),
        ):
            began = time.monotonic()
            done = cluster.command(*arguments, **more)
            assert done.returncode == 2 and done.stdout == "" and time.monotonic() - began < 15
            assert done.stderr.startswith(says) and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_jobs_train_are_refused_and_stop_with_a_checkpoint(cluster: Cluster, tmp_path: Path) -> None:
    common = ("--address", cluster.url, "--out", tmp_path / "runs")
    done = cluster.readme(
        the("raytrain submit experiments/digits.py --address http://localhost:8265 --out /shared/runs --name"),
        "--epochs",
        3,
        **{"/shared": tmp_path},
    )
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    for text in (
        "workers  2 workers of 1 CPU",
        "3/3 ",
        "completed: epoch 3 of 3, best val_accuracy",
        "next:  raytrain evaluate",
    ):
        assert text in done.stdout
    run = Run(tmp_path / "runs" / "job")
    assert run.summary["status"] == "completed" and run.summary["val_accuracy"] > 0.9

    long = cluster.start("submit", "experiments/digits.py", *common, "--epochs", 100_000, "--name", "long")
    assert long.stdout is not None
    job = next(word for word in long.stdout.readline().split() if word.startswith("raytrain-long-"))
    refused = cluster.start("submit", "experiments/digits.py", *common, "--scaling.gpus_per_worker", 1)
    said = ""
    while "1/100000 " not in said:  # the first epoch's line
        line = long.stdout.readline()
        assert line, long.communicate()[1]
        said = said + line if "model  " in line or said else ""
    arguments = " ".join(Path(f"/proc/{pid}/cmdline").read_text() for pid in tree(cluster.pid))
    assert "raytrain.cli" in arguments and cluster.token not in arguments
    assert "RUNNING" in cluster.readme(the("raytrain status")).stdout
    assert said in cluster.readme(the("raytrain logs"), JOB=job).stdout
    stopped = cluster.readme(the("raytrain stop"), JOB=job)
    assert stopped.returncode == 0 and "STOPPED" in stopped.stdout and "interrupted: epoch " in stopped.stdout
    assert f"next:  raytrain resume {tmp_path}/runs/long" in stopped.stdout
    assert long.wait(120) == 143 and "stopped: " in long.communicate()[0]
    run = Run(tmp_path / "runs" / "long")
    assert run.summary["status"] == "interrupted" and run.checkpoint("last").name == f"step_{run.summary['steps']:08d}"
    _, error = refused.communicate(timeout=300)
    assert refused.returncode == 2 and error.count("\n") == 1
    assert error.startswith("error: the run asks for 2 GPUs and the cluster has 0")

    status = cluster.command("status", job, "--json", "--address", cluster.url)
    assert status.returncode == 0 and job in status.stdout and cluster.token not in status.stdout
    request = urllib.request.Request(f"{cluster.url}/api/jobs/", headers={"Authorization": f"Bearer {cluster.token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert cluster.token not in (told := answer.read().decode()) and job in told
    for folder in (tmp_path / "runs", cluster.temporary):
        files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
        assert files
        for file in files:
            assert cluster.token.encode() not in file.read_bytes(), file
