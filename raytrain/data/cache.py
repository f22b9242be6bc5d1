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
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa

from raytrain import errors
from raytrain.data import budget
from raytrain.data.source import Index
from raytrain.files import existing, expanded

FORMAT = 1
"""Number of the entries' format; a reader takes no other."""
LIMIT = 20 << 30
"""Bytes that all entries of a folder may take by default, or a tenth of the disk's free space if that is less."""

_ALONE = ".json"
"""Suffix of an entry without arrays."""
_EOS = b"\xff\xff\xff\xff\0\0\0\0"
_DIGEST = 32
_OURS = re.compile(r"\.?[0-9a-f]{32}\.(arrows|json|files|tars|.+\.partial)")
"""Names of the files that count: entries, and the tables of `kept.py`. Others in the folder are the user's."""

Bad = list[tuple[int, str, str]]
"""(row, path, reason) of the samples that cannot be read."""


def default_folder() -> Path:
    """Return $XDG_CACHE_HOME/raytrain, or ~/.cache/raytrain.

    Raises:
        UserError: this user has no home.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "raytrain"
    except RuntimeError:
        raise errors.UserError("this user has no home folder", "in HOME", "set XDG_CACHE_HOME to a folder") from None


def folder(name: str) -> Path:
    """Return the folder that a source's `cache` names; `auto` is the default one.

    Raises:
        UserError: it begins with ~NAME, and there is no such user.
    """
    return default_folder() if name == "auto" else expanded(name)


def limit(folder: Path, gib: float | None) -> int:
    """Return the bytes that the entries of a folder may take: so many GiB, or by default `LIMIT`, if the disk has
    them."""
    used, free = 0, shutil.disk_usage(existing(folder)).free
    for path in _files(folder):
        with contextlib.suppress(OSError):  # another run has removed it, or it may not be looked at
            used += path.stat().st_size
    return min(LIMIT, (free + used) // 10) if gib is None else min(int(gib * 2**30), int(0.9 * free) + used)


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
            with contextlib.suppress(OSError):  # another user's, or a disk that is only read
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


def store(path: Path, index: Index, arrays: dict[str, np.ndarray] | None, bad: Bad, gib: float | None = None) -> bool:
    """Store the arrays of a split, if given, and the samples that could not be read. Write the entry atomically, and
    return whether it was stored.

    Args:
        gib: as for `limit`.
    """
    try:
        if arrays is None:
            with budget.appearing(path.with_suffix(_ALONE)) as partial:
                text = json.dumps(bad).encode()
                partial.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
            return True
        with budget.appearing(path) as partial:
            _write(partial, path, index, arrays, bad, gib)
            if _open(partial, index) is None:
                raise OSError("the disk returns other bytes")
        return True
    except OSError:
        return False


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


def _write(partial: Path, path: Path, index: Index, arrays: dict[str, np.ndarray], bad: Bad, gib: float | None) -> None:
    columns = []
    for field in index.fields:
        buffers = [None, pa.py_buffer(np.ascontiguousarray(arrays[field.name]))]
        columns.append(pa.FixedSizeBinaryArray.from_buffers(pa.binary(field.bytes), len(index), buffers))
    header = {"classes": index.classes, "split": index.split, "bad": bad}
    named = [pa.field(field.name, column.type) for field, column in zip(index.fields, columns, strict=True)]
    schema = pa.schema(named, {"raytrain": json.dumps(header)})
    size = sum(array.nbytes for array in arrays.values())
    with budget.locked(path.parent / budget.LOCK):
        others = (one for one in _files(path.parent) if one != path)
        budget.make_room(size, limit(path.parent, gib), others, lambda _: False, path.parent)
        file = pa.OSFile(str(partial), "wb")
        os.truncate(partial, size)  # it counts from now on
    with file:
        with pa.ipc.new_stream(file, schema) as stream:
            stream.write_batch(pa.record_batch(columns, schema))
        head = file.tell() - len(_EOS) - sum(_padded(len(index) * field.bytes) for field in index.fields)
    with open(partial, "r+b") as written:
        digest = hashlib.sha256(written.read(head)).digest()
        written.seek(0, os.SEEK_END)
        written.write(digest)
        written.flush()
        os.fsync(written.fileno())


def _padded(size: int) -> int:
    """Return a size as Arrow's IPC pads it, to 8 bytes."""
    return -(-size // 8) * 8


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if _OURS.fullmatch(path.name)]
    except OSError:  # there is none, or it cannot be read
        return []
