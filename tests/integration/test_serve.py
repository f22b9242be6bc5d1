"""`raytrain serve`: a real server, its clients, damaged requests, a killed replica, and the end."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from helpers.commands import digit_files, finished
from helpers.processes import tree

from raytrain import Run
from raytrain.tools import inference

__all__ = ["digit_files", "finished"]

CLIENTS = 50
SECONDS = 120


def _free_port() -> int:
    """A port below those that the system gives to whoever asks for any: Ray asks for many, and may get a free one
    before the server does."""
    for port in random.sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


class Served:
    """A run that is served by a command of its own."""

    def __init__(self, run: Run, *flags: object):
        self.port = _free_port()
        command = [sys.executable, "-m", "raytrain.cli", "serve", run.path, "--port", self.port, *flags]
        self.process = subprocess.Popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait(self) -> str:
        """What it prints until it answers."""
        assert self.process.stdout
        said = ""
        while "Ctrl-C ends it" not in said:
            line = self.process.stdout.readline()
            assert line, said + self.process.communicate()[1]
            said += line
        return said

    def ask(self, method: str, path: str, body: Any = None, kind: str = "image/png") -> tuple[int, dict[str, Any]]:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        with contextlib.closing(client):
            client.request(method, path, body, {"content-type": kind})
            answer = client.getresponse()
            return answer.status, json.loads(answer.read())

    def processes(self, name: str = "") -> dict[int, str]:
        """The command's processes, those that `name` begins with in the kernel's words."""
        found = {}
        for pid in tree(self.process.pid):
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    found[pid] = Path(f"/proc/{pid}/comm").read_text().strip()
        return {pid: one for pid, one in found.items() if one.startswith(name)}


@contextlib.contextmanager
def served(run: Run, *flags: object) -> Iterator[Served]:
    one = Served(run, *flags)
    try:
        yield one
    finally:
        for pid in reversed(one.processes()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        one.process.communicate()


def check_answers(one: Served, run: Run, folder: Path, requests: int) -> None:
    """Sends requests of 50 clients, each with a connection that it keeps, and compares the answers with `predict`."""
    rows = inference.predict(run, [str(folder)])
    contents = [Path(row["path"]).read_bytes() for row in rows]

    def client(number: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", one.port, timeout=SECONDS)
        with contextlib.closing(connection):
            for at in range(number, requests, CLIENTS):
                row = rows[at % len(rows)]
                connection.request("POST", "/predict", contents[at % len(rows)], {"content-type": "image/png"})
                answer = connection.getresponse()
                found = json.loads(answer.read())
                assert answer.status == 200, found
                assert found["label"] == row["label"]
                assert [*found["probabilities"].values()] == pytest.approx(row["probabilities"], abs=1e-5)
        return len(range(number, requests, CLIENTS))

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert sum(pool.map(client, range(CLIENTS))) == requests


def check_end(one: Served, number: signal.Signals) -> None:
    """The command ends with its signal's status and leaves no process and no server."""
    before = one.processes()
    assert len(before) > 4
    one.process.send_signal(number)
    said = one.process.communicate(timeout=60)
    assert one.process.returncode == 128 + number and said == ("", "interrupted\n")
    end = time.monotonic() + 10
    while (left := [pid for pid in before if Path(f"/proc/{pid}").exists()]) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", one.port))


def test_a_served_run_answers_as_predict_and_ends(finished: Run, digit_files: Path) -> None:
    with served(finished) as one:
        said = one.wait()
        assert said.startswith("starting Ray Serve ...\n") and f"http://127.0.0.1:{one.port}" in said
        assert one.ask("GET", "/health")[1]["checkpoint"] == finished.checkpoint().name
        check_answers(one, finished, digit_files, 100)
        for status, body, kind in (
            (400, b"", "image/png"),
            (400, b"no image", "image/png"),
            (415, b"{}", "application/json"),
            (413, bytes(33 << 20), "image/png"),
            (413, (bytes(1 << 20) for _ in range(34)), "image/png"),  # in chunks, without a declared length
        ):
            found, answer = one.ask("POST", "/predict", body, kind)
            assert found == status and answer["error"]
        check_end(one, signal.SIGINT)


class Payload:
    """Makes a folder where it is unpickled."""

    def __init__(self, folder: Path):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def ports(pid: int) -> list[int]:
    """The TCP ports that a process listens on."""
    inodes = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(descriptor).removeprefix("socket:[").rstrip("]"))
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().split("\n")[1:-1]]
    return sorted({int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and row[9] in inodes})


@pytest.mark.slow
def test_a_thousand_requests_and_a_killed_replica(finished: Run, digit_files: Path, tmp_path: Path) -> None:
    with served(finished, "--replicas", 2, "--cpus", 0.5) as one:
        assert "2 replicas" in one.wait()
        check_answers(one, finished, digit_files, 1000)
        replicas = set(one.processes("ray::ServeRepl"))
        assert len(replicas) == 2

        # Serve unpickles what comes to the replicas' own port, but only from those who have the cluster's token.
        content = pickle.dumps(Payload(tmp_path / "run"))
        assert len(content) < 128
        request = b"\x0a" + bytes([len(content)]) + content  # field 1 of ASGIRequest, pickled_request_metadata
        codes = []
        for port in (port for pid in replicas for port in ports(pid)):
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest")
                with pytest.raises(grpc.RpcError) as refused:
                    call(request, timeout=10)
                codes.append(refused.value.code())  # type: ignore[attr-defined]
        # Each replica has Ray's port, which does not know the service, and Serve's, which does.
        assert Counter(codes) == {grpc.StatusCode.UNIMPLEMENTED: 2, grpc.StatusCode.UNAUTHENTICATED: 2}
        assert not (tmp_path / "run").exists()

        for pid in replicas:
            os.kill(pid, signal.SIGKILL)
        body, end = next(digit_files.glob("*.png")).read_bytes(), time.monotonic() + SECONDS
        while one.ask("POST", "/predict", body)[0] != 200:
            assert time.monotonic() < end
            time.sleep(0.2)
        while len(set(one.processes("ray::ServeRepl")) - replicas) < 2:
            assert time.monotonic() < end
            time.sleep(0.2)
        check_answers(one, finished, digit_files, 100)
        check_end(one, signal.SIGTERM)
