"""A disk cache of decoded samples, so that the next run on the same files starts without decoding.

An entry is an Arrow IPC stream with the arrays of a split, which is memory-mapped when it is read, followed by a
digest of the file without the arrays. For streamed samples it is a digest and a line of JSON with the samples that
cannot be read. Its name is a hash of all that determines the arrays, so that an entry is never out of date. After any
failure (no room, no permission, a damaged file), raytrain works without the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import time
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa

from raytrain.data.source import Index

FORMAT = 1
"""Number of the entries' format; a reader takes no other."""
LIMIT = 20 << 30
"""Bytes that all entries of a folder may take, or a tenth of the disk's free space if that is less. The least recently
used entries are removed first."""

_ALONE = ".json"
"""Suffix of an entry without arrays."""
_EOS = b"\xff\xff\xff\xff\0\0\0\0"
_DIGEST = 32
_ABANDONED = 24 * 3600.0
"""Seconds after which a partial file belongs to no living writer."""

Bad = list[tuple[int, str, str]]
"""(row, path, reason) of the samples that cannot be read."""


def default_folder() -> Path:
    """Return $XDG_CACHE_HOME/raytrain, or ~/.cache/raytrain."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raytrain"


def entry(folder: Path, index: Index, recipe: str) -> Path:
    """Return the path of a split's entry.

    Args:
        recipe: all that determines the arrays besides the index: where the files are, how they are decoded.
    """
    assert index.times is not None
    digest = hashlib.sha256(f"{FORMAT}\0{index.fingerprint()}\0{recipe}\0".encode())
    digest.update(np.ascontiguousarray(index.times).tobytes())
    return folder / f"{digest.hexdigest()[:32]}.arrows"


def load(path: Path, index: Index) -> tuple[dict[str, np.ndarray], Bad] | None:
    """Return the arrays of a split by the fields' names, each [n, ...] and mapped from the disk, and the samples that
    could not be read, whose arrays are zeros. Return None if there is no such entry, or it is damaged."""
    try:
        found = _open(path, index)
        if found is not None:
            os.utime(path)  # the time of its last use
        return found
    except OSError:
        return None


def load_bad(path: Path, index: Index) -> Bad | None:
    """Return the samples of a split that could not be read, from its entry with or without arrays; None if there is
    neither, or it is damaged."""
    found = load(path, index)
    if found is not None:
        return found[1]
    try:
        digest, _, text = path.with_suffix(_ALONE).read_bytes().partition(b"\n")
        if digest != hashlib.sha256(text).hexdigest().encode():
            return None
        return [(row, path, reason) for row, path, reason in json.loads(text)]
    except OSError:
        return None


def store(path: Path, index: Index, arrays: dict[str, np.ndarray] | None, bad: Bad) -> bool:
    """Store the arrays of a split, if given, and the samples that could not be read. Write the entry atomically, and
    return whether it was stored."""
    path = path if arrays is not None else path.with_suffix(_ALONE)
    partial = path.with_suffix(f".{os.getpid()}-{uuid.uuid4().hex}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if arrays is None:
            text = json.dumps(bad).encode()
            partial.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
        else:
            if not _make_room(path, sum(array.nbytes for array in arrays.values())):
                return False
            _write(partial, index, arrays, bad)
            if _open(partial, index) is None:
                return False
        os.replace(partial, path)
        return True
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _open(path: Path, index: Index) -> tuple[dict[str, np.ndarray], Bad] | None:
    body = sum(_padded(len(index) * field.bytes) for field in index.fields)
    with pa.memory_map(str(path)) as file:
        head = file.size() - body - len(_EOS) - _DIGEST
        if head <= 0:
            return None
        start, end = file.read_at(head, 0), file.read_at(len(_EOS) + _DIGEST, head + body)
        if end != _EOS + hashlib.sha256(start).digest():
            return None
        batch = pa.ipc.open_stream(file).read_next_batch()  # the digest of its head matches: safe to parse
    header = json.loads(batch.schema.metadata[b"raytrain"])
    if batch.schema.names != [field.name for field in index.fields]:
        return None
    arrays = {}
    for field, column in zip(index.fields, batch.columns, strict=True):
        values = column.buffers()[1]
        if (column.type, len(column)) != (pa.binary(field.bytes), len(index)) or values is None:
            return None
        count = len(index) * math.prod(field.shape)
        arrays[field.name] = np.frombuffer(values, field.dtype, count).reshape(len(index), *field.shape)
    return arrays, [(row, path, reason) for row, path, reason in header["bad"]]


def _write(path: Path, index: Index, arrays: dict[str, np.ndarray], bad: Bad) -> None:
    columns = []
    for field in index.fields:
        buffers = [None, pa.py_buffer(np.ascontiguousarray(arrays[field.name]))]
        columns.append(pa.FixedSizeBinaryArray.from_buffers(pa.binary(field.bytes), len(index), buffers))
    header = {"classes": index.classes, "split": index.split, "bad": bad}
    named = [pa.field(field.name, column.type) for field, column in zip(index.fields, columns, strict=True)]
    schema = pa.schema(named, {"raytrain": json.dumps(header)})
    with pa.OSFile(str(path), "wb") as file:
        with pa.ipc.new_stream(file, schema) as stream:
            stream.write_batch(pa.record_batch(columns, schema))
        head = file.tell() - len(_EOS) - sum(_padded(len(index) * field.bytes) for field in index.fields)
    with open(path, "r+b") as file:
        digest = hashlib.sha256(file.read(head)).digest()
        file.seek(0, os.SEEK_END)
        file.write(digest)
        file.flush()
        os.fsync(file.fileno())


def _padded(size: int) -> int:
    """Return a size as Arrow's IPC pads it, to 8 bytes."""
    return -(-size // 8) * 8


def _make_room(path: Path, size: int) -> bool:
    """Remove entries until one of `size` bytes fits; return whether it fits."""
    entries = []
    for other in path.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another run has removed it
            status = other.stat()
            if other.suffix == ".partial" and status.st_mtime < time.time() - _ABANDONED:
                other.unlink()
            elif other.suffix in (".arrows", ".files", ".tars", _ALONE) and other != path:
                entries.append((status.st_mtime, status.st_size, other))
    used = sum(taken for _, taken, _ in entries)
    limit = min(LIMIT, (shutil.disk_usage(path.parent).free + used) // 10)
    if size > limit:
        return False
    for _, taken, other in sorted(entries):
        if used + size <= limit:
            break
        other.unlink(missing_ok=True)  # processes that have mapped it keep it
        used -= taken
    return True
