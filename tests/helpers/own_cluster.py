"""A cluster of this machine alone, as `ray start --head` makes it: with a token, a home and ports of its own."""

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

from helpers.processes import tree

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


@contextlib.contextmanager
def started(home: Path, cpus: int) -> Iterator[Cluster]:
    """`ray start --head` in a folder that is its home."""
    (home / ".ray").mkdir(parents=True)
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
    command += [f"--num-cpus={cpus}", f"--temp-dir={temporary}", *(f"--{name}={port}" for name, port in ports.items())]
    cluster = Cluster(home, token, temporary, 0, ports)
    with open(home / "head.log", "w") as log:
        environment = cluster.environment(RAY_AUTH_MODE="token")
        head = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    cluster = Cluster(home, token, temporary, head.pid, ports)
    try:
        deadline = time.monotonic() + 240
        healthy = f"{cluster.agent}/api/local_raylet_healthz"
        while (status_of(f"{cluster.url}/api/version", token), status_of(healthy)) != (200, 200):
            assert head.poll() is None and time.monotonic() < deadline, (home / "head.log").read_text()
            time.sleep(0.3)
        yield cluster
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
