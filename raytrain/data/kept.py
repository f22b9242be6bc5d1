"""Tables that take long to make, kept in the folder of the disk cache: a sha256, and an Arrow IPC stream after it.

A file that is damaged, cut or of another format is as good as none. After any failure raytrain works without.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

import pyarrow as pa

from raytrain.data import budget

_DIGEST = 32


def load(path: Path) -> list[pa.RecordBatch] | None:
    """Return what was stored, mapped from the disk; None if there is nothing, or it is damaged."""
    try:
        with pa.memory_map(str(path)) as file:
            whole = file.read_buffer()
        if whole.size < _DIGEST or hashlib.sha256(whole.slice(_DIGEST)).digest() != whole[:_DIGEST].to_pybytes():
            return None
        found = list(pa.ipc.open_stream(whole.slice(_DIGEST)))  # its digest matches: safe to parse
        with contextlib.suppress(OSError):
            os.utime(path)  # the time of its last use
        return found
    except (OSError, pa.ArrowException):
        return None


def store(path: Path, batches: list[pa.RecordBatch]) -> None:
    """Store batches of one schema, atomically. Where they cannot be stored, do nothing."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    body = sink.getvalue()
    with contextlib.suppress(OSError), budget.appearing(path) as partial, open(partial, "xb") as file:
        file.write(hashlib.sha256(body).digest())
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
