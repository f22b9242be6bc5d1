"""An HTTP proxy before the server that stands for S3, which spoils some answers to reads of a pack's shards."""

from __future__ import annotations

import http.client
import random
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

KINDS = ("503 answer", "slow answer", "truncated answer", "connection cut", "bytes changed")
_UNAVAILABLE = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_OF_CONNECTION = ("connection", "transfer-encoding", "content-length", "keep-alive", "host")


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: connections that were cut on purpose."""


class Spoiler:
    """The proxy. It passes all on until `spoil` is called.

    Args:
        port: the server's, on this machine.
        host: the address at which it listens.
        log: a file that gets a line for each read: who asks, and for what.

    Attributes:
        port: its own.
        spoiled: answers that were spoiled so far.
    """

    def __init__(self, port: int, host: str = "127.0.0.1", log: Path | None = None):
        self._log = log
        self._target, self._lock, self.spoiled = port, threading.Lock(), 0
        self._kind, self._draw, self._left, self._share, self._seen = "", random.Random(0), 0, 0.0, set[str]()
        self._server = _Quiet((host, 0), self._handler())
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def spoil(self, kind: str, count: int, draw: random.Random, once: bool) -> None:
        """Spoil answers about shards, `count` at most: with `once` the first answer about some of them, else every
        sixteenth or so."""
        with self._lock:
            self._kind, self._left, self._draw, self.spoiled = kind, count, draw, 0
            self._share, self._seen = 0.8 if once else 1 / 16, set()
            self._once = once

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()

    def _chosen(self, path: str) -> str:
        """The kind in which an answer is spoiled, or nothing."""
        with self._lock:
            seen = self._once and path in self._seen if self._left else True
            self._seen.add(path)
            if seen or ".bin" not in path or self._draw.random() > self._share:
                return ""
            self._left -= 1
            self.spoiled += 1
            return self._kind

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        spoiler = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                if spoiler._log and self.command == "GET":
                    with spoiler._lock, open(spoiler._log, "a") as file:
                        file.write(f"{self.client_address[0]} {self.path}\n")
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length) if length else None
                server = http.client.HTTPConnection("127.0.0.1", spoiler._target, timeout=60)
                try:
                    server.request(self.command, self.path, body, dict(self.headers.items()))
                    answer = server.getresponse()
                    content = answer.read()
                finally:
                    server.close()
                kind = spoiler._chosen(self.path) if self.command == "GET" and answer.status < 300 else ""
                status, headers = (503, []) if kind == "503 answer" else (answer.status, answer.getheaders())
                content = _UNAVAILABLE if kind == "503 answer" else content
                length = int(answer.getheader("Content-Length") or 0) if self.command == "HEAD" else len(content)
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in _OF_CONNECTION:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                self._send(kind, content)

            def _send(self, kind: str, content: bytes) -> None:
                half = len(content) // 2
                if kind == "bytes changed":
                    content = content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]
                if kind in ("slow answer", "truncated answer", "connection cut"):
                    self.wfile.write(content[:half])
                    self.wfile.flush()
                    content = content[half:]
                if kind == "slow answer":
                    time.sleep(spoiler._draw.uniform(0.2, 1.5))
                if kind == "connection cut":  # by a reset
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if kind in ("truncated answer", "connection cut"):
                    self.close_connection = True
                    return
                self.wfile.write(content)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        return Handler
