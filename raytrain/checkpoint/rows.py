"""The rows of `metrics.jsonl`: read them, and check that those before a checkpoint are complete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raytrain.files import open_regular


def check_rows(path: Path, state: Mapping[str, Any]) -> None:
    """Check that a metrics file has the rows that a checkpoint vouches for.

    Args:
        state: the checkpoint's, with `metrics_bytes` and, unless an older version wrote it, `metrics_sha256`.

    Raises:
        ValueError: rows are missing, or they are others.
        OSError: storage cannot be read.
    """
    size = state["metrics_bytes"]
    try:
        raw = read_rows(path, 0, size) if size else b""
    except FileNotFoundError:
        raise ValueError(f"{path.name} is missing") from None
    if len(raw) < size:
        raise ValueError(f"{path.name} has {len(raw)} of the {size} bytes before it")
    if "metrics_sha256" in state:
        if hashlib.sha256(raw).hexdigest() != state["metrics_sha256"]:
            raise ValueError(f"{path.name} is damaged in the {size} bytes before it")
        return
    rows = [parse_row(line) for line in raw.splitlines()]
    steps = [row.get("step") if row else None for row in rows if row is None or row["kind"] == "step"]
    if steps != list(range(1, state["progress"]["step"] + 1)):
        raise ValueError(f"{path.name} does not have each of the {state['progress']['step']} steps before it once")


def parse_row(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line; None if the line is damaged."""
    try:
        row = json.loads(line.decode())  # of bytes, json would look for the encoding first
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("kind"), str) else None


def read_rows(path: Path, offset: int = 0, size: int = -1) -> bytes:
    """Return bytes of a metrics file, however large.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is not a regular file.
        OSError: storage cannot be read.
    """
    with open_regular(path) as file:
        file.seek(offset)
        return file.read(size)
