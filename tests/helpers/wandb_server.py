"""A stand-in for the server of Weights & Biases, which takes what `wandb sync` uploads."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Uploaded:
    """What came: the lines of the history, the run's values, and its ids."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.config: dict[str, Any] = {}
        self.lines: list[dict[str, Any]] = []
        self.summary: dict[str, Any] = {}
        self.exits: list[int] = []

    def take(self, path: str, content: dict[str, Any]) -> dict[str, Any]:
        """Take a request, and return the answer."""
        if path.endswith("/file_stream"):
            files = content.get("files") or {}
            if history := files.get("wandb-history.jsonl"):
                assert history["offset"] == len(self.lines)
                self.lines += [json.loads(line) for line in history["content"]]
            if summary := files.get("wandb-summary.json"):
                self.summary = json.loads(summary["content"][-1])
            if content.get("complete"):
                self.exits.append(content["exitcode"])
        if path.endswith("/graphql") and "upsertBucket" in content["query"]:
            given = content["variables"]
            self.ids.add(given["name"])
            self.config = json.loads(given.get("config") or "{}") or self.config
            project = {"id": "p", "name": given["project"], "entity": {"id": "e", "name": "me"}}
            bucket = {"id": "b", "name": given["name"], "displayName": "", "config": "{}", "project": project}
            return {"data": {"upsertBucket": {"bucket": bucket | {"historyLineCount": 0}, "inserted": True}}}
        return {"data": {}}


@contextmanager
def server() -> Iterator[tuple[str, Uploaded]]:
    """A server in a thread: its URL, and what it takes."""
    uploaded = Uploaded()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            raw = gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw
            known = self.path.endswith(("/graphql", "/file_stream"))
            answer = json.dumps(uploaded.take(self.path, json.loads(raw)) if known else {}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}", uploaded
        finally:
            http.shutdown()
            thread.join()


def synced(folder: Path, python: str | Path = sys.executable) -> Uploaded:
    """Upload the runs of a folder with W&B's own program, of a Python's environment."""
    runs = [str(run) for run in folder.glob("offline-run-*")]
    with server() as (url, uploaded):
        more = {"WANDB_BASE_URL": url, "WANDB_API_KEY": 40 * "a", "HOME": str(folder), "WANDB_DIR": str(folder)}
        command = [str(python), "-m", "wandb", "sync", "--include-synced", *runs]
        done = subprocess.run(command, env=os.environ | more, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
    return uploaded
