"""A server on this machine that stands for S3, and a way to it that can be shut."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading

_MOTO = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


def settings(port: int) -> dict[str, str]:
    """The environment of a process that uses the server on a port."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


class Server:
    """moto's server, in a process of its own, with a bucket named `bucket`."""

    def __init__(self) -> None:
        import boto3

        command = [sys.executable, "-c", _MOTO]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        known = settings(self.port)
        client = boto3.client(
            "s3",
            endpoint_url=known["AWS_ENDPOINT_URL"],
            region_name=known["AWS_REGION"],
            aws_access_key_id=known["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=known["AWS_SECRET_ACCESS_KEY"],
        )
        client.create_bucket(Bucket="bucket")

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=10)


class Gate:
    """A TCP proxy. While it is shut, connections are still accepted, and nothing is answered.

    Args:
        port: the other server's on this machine.
    """

    def __init__(self, port: int):
        self._target, self._ended, self._open = port, False, threading.Event()
        self._open.set()
        self._server = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._server]
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self) -> None:
        """Pass nothing on."""
        self._open.clear()

    def open(self) -> None:
        """Pass on what has come, and what will."""
        self._open.set()

    def close(self) -> None:
        """End all connections."""
        self._ended = True
        self._open.set()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._server.accept()[0]
                self._sockets.append(client)
                threading.Thread(target=self._connect, args=[client], daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._open.wait()
        if self._ended:
            return
        with contextlib.suppress(OSError):
            server = socket.create_connection(("127.0.0.1", self._target))
            self._sockets.append(server)
            threading.Thread(target=self._pump, args=[server, client], daemon=True).start()
            self._pump(client, server)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._open.wait()
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
