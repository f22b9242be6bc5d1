"""A small HTTP server that plays the dashboard of a cluster: its version, its token, packages, jobs and their logs."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from typing import Any

HERE = metadata.version("ray")
BEGINS = "Runtime env is setting up.\nRunning entrypoint for job it: python -m raytrain.cli train x.py\n"
JOB: dict[str, Any] = {
    "type": "SUBMISSION",
    "submission_id": "it",
    "status": "RUNNING",
    "entrypoint": "python -m raytrain.cli",
    "message": "Job is currently running.",
    "start_time": 1_700_000_000_000,
    "end_time": None,
    "metadata": {"command": "raytrain train x.py", "out": "/shared/runs"},
    "driver_exit_code": None,
}


class Head(ThreadingHTTPServer):
    """The server.

    Attributes:
        version: what it says its Ray is.
        token: what it asks for; None lets all in.
        job: the one job that it has.
        log: what that has printed in all.
        streams: for each connection to the log, what to do with a function that sends text; the last one for all more.
        most: the bytes of the largest package that it takes; None for all.
        refuses: what it says instead of taking a job.
        stops: whether the job ends when it is asked to stop.
        asked: method, path, Authorization header and body of each request.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.version, self.job, self.log = HERE, dict(JOB), BEGINS
        self.token: str | None = None
        self.most: int | None = None
        self.streams: list[Callable[[Callable[[str], None]], None]] = [lambda send: None]
        self.asked: list[tuple[str, str, str | None, bytes]] = []
        self.away, self.stops, self.refuses = 0, True, ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def ends(self, status: str, exit_code: int | None = None, message: str = "") -> None:
        self.job |= {"status": status, "driver_exit_code": exit_code, "message": message, "end_time": 1_700_000_009_000}

    def requests(self, method: str, start: str = "/") -> list[tuple[str, str, str | None, bytes]]:
        return [one for one in self.asked if one[0] == method and one[1].startswith(start)]

    def handle_error(self, request: object, client_address: object) -> None:
        """The client went away, which is its right."""


class Handler(BaseHTTPRequestHandler):
    server: Head  # pyright: ignore[reportIncompatibleVariableOverride]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, body: object) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do(self) -> None:
        head, path = self.server, self.path
        given = self.headers.get("Authorization")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        head.asked.append((self.command, path, given, body))
        if head.token is not None and given is None:
            return self.answer(401, "Unauthorized: Missing authentication token")
        if head.token is not None and given != f"Bearer {head.token}":
            return self.answer(403, "Forbidden: Invalid authentication token")
        if path == "/api/version":
            return self.answer(200, {"version": "4", "ray_version": head.version, "ray_commit": "", "session_name": ""})
        if path.startswith("/api/packages/"):
            if self.command == "PUT" and head.most is not None and len(body) > head.most:
                return self.answer(413, f"Maximum request body size {head.most} exceeded.")
            return self.answer(200 if self.command == "PUT" else 404, "")
        if path == "/api/jobs/":
            if body and head.refuses:
                return self.answer(500, head.refuses)
            name = json.loads(body)["submission_id"] if body else None
            head.job["submission_id"] = name or head.job["submission_id"]
            driver = {**JOB, "type": "DRIVER", "submission_id": None}
            return self.answer(200, {"job_id": name, "submission_id": name} if body else [driver, head.job])
        name, _, what = path.removeprefix("/api/jobs/").partition("/")
        if name != head.job["submission_id"]:
            return self.answer(404, f"Job {name} does not exist")
        if what == "logs/tail":
            return self.stream()
        if head.away:
            head.away -= 1
            return self.connection.shutdown(socket.SHUT_RDWR)
        self.answer(200, {"": head.job, "logs": {"logs": head.log}, "stop": {"stopped": True}}[what])
        if what == "stop" and head.stops:
            head.ends("STOPPED")

    do_GET = do_POST = do_PUT = do

    def stream(self) -> None:
        """A WebSocket (RFC 6455), of which the server's side sends text and closes."""
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.connection.sendall(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode()
        )
        self.close_connection = True
        streams = self.server.streams
        (streams.pop(0) if len(streams) > 1 else streams[0])(lambda text: self.frame(0x81, text.encode()))
        self.frame(0x88, struct.pack(">H", 1000))

    def frame(self, kind: int, data: bytes) -> None:
        length = bytes([len(data)]) if len(data) < 126 else b"\x7e" + struct.pack(">H", len(data))
        self.connection.sendall(bytes([kind]) + length + data)


class Cut(Exception):
    """The connection breaks."""


@contextmanager
def serving(head: Head) -> Iterator[Head]:
    thread = threading.Thread(target=head.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield head
    finally:
        head.shutdown()
        head.server_close()
        thread.join(5)
