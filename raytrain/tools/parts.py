"""The result of a large prediction: a folder or a URL with a manifest, and parts of Parquet.

A part has a fixed name and a fixed range of the sorted images, and appears whole or not at all. A command that is run
again writes the parts that are missing, so each image is in the result once, whatever was killed before.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from raytrain import errors
from raytrain.checkpoint.storage import Storage, answered
from raytrain.files import LARGEST, is_url, reason, write_atomically

MANIFEST = "_manifest.json"
"""Readers of folders of Parquet leave out files whose names begin so."""
ROW, ERROR = "row", "error"
"""The columns of a table that is no part yet: the number of the image, and why it could not be read."""
_ENDED, _TAIL, _THREADS = b"PAR1", 1 << 16, 16
"""The last bytes of each Parquet file; the bytes at its end that are read first, and the files read at once."""
_PARTIAL = re.compile(rf"\.({re.escape(MANIFEST)}|part-\d+\.parquet)\.\d+\.\d+")
"""The names of files that a killed command was writing."""
_WHAT = {
    "listing": "other images",
    "checkpoint": "another checkpoint",
    "part_size": "another --part_size",
    "features": "other --features",
    "tta": "another --tta",
}
"""What decides a result, and what a result of another value is of."""


class Place(Protocol):
    """A folder or a URL. A file appears whole or not at all."""

    def names(self) -> Mapping[str, int | None]:
        """Return the sizes of the files, by name."""
        ...

    def read(self, name: str, offset: int = 0) -> bytes:
        """Return a file's bytes from an offset on."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        ...

    def remove(self, name: str) -> None:
        """Remove a file; it may be gone."""
        ...


class Folder:
    """A folder of this machine, made where it is missing.

    Raises:
        UserError: it cannot be made or written.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.not_writable(path, reason(error)) from None
        if not os.access(path, os.W_OK | os.X_OK):
            raise errors.not_writable(path, "permission denied")

    def names(self) -> dict[str, int | None]:
        """Return the sizes of the files, by name."""
        return {entry.name: entry.stat().st_size for entry in os.scandir(self.path) if entry.is_file()}

    def read(self, name: str, offset: int = 0) -> bytes:
        """Return a file's bytes from an offset on."""
        with open(self.path / name, "rb") as file:
            file.seek(offset)
            return file.read()

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        write_atomically(self.path / name, content)

    def remove(self, name: str) -> None:
        """Remove a file; it may be gone."""
        (self.path / name).unlink(missing_ok=True)


def opened(out: str) -> Place:
    """Return the folder or the URL of a result.

    Raises:
        UserError: it cannot be opened.
    """
    return Storage(out) if is_url(out) else Folder(Path(out))  # type: ignore[return-value]


def name_of(part: int) -> str:
    """Return the name of a part's file."""
    return f"part-{part:05d}.parquet"


def ranges(images: int, part_size: int) -> list[tuple[int, int]]:
    """Return the first image of each part and the one after its last."""
    return [(start, min(start + part_size, images)) for start in range(0, images, part_size)]


def begin(place: Place, where: str, manifest: Mapping[str, Any]) -> dict[int, int]:
    """Write the manifest of a result, or continue the result that is there.

    Args:
        where: the place, for messages.
        manifest: what decides the result, `images` and `part_size` among it.

    Returns:
        The parts that are there already, with the number of images in each that could not be read.

    Raises:
        UserError: another result is there, or storage does not answer.
    """
    there = answered(where, place.names)
    if MANIFEST not in there:
        if any(name.startswith("part-") and name.endswith(".parquet") for name in there):
            raise _other(where, "parts without a manifest")
        answered(where, lambda: place.write(MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode()))
        return {}
    if (there[MANIFEST] or 0) > LARGEST:
        raise _other(where, "a manifest of another kind")
    try:
        known = json.loads(answered(where, lambda: place.read(MANIFEST)))
        differing = [what for name, what in _WHAT.items() if known[name] != manifest[name]]
    except (ValueError, KeyError, TypeError):
        raise _other(where, "a manifest of another kind") from None
    if differing:
        raise _other(where, f"predictions of {' and '.join(differing)}")
    parts = ranges(manifest["images"], manifest["part_size"])
    names = {name_of(part): part for part in range(len(parts))}
    with ThreadPoolExecutor(_THREADS) as pool:
        sizes = {name: size for name in names if (size := there.get(name))}
        found = answered(where, lambda: list(pool.map(lambda name: _look(place, name, sizes[name] or 0), sizes)))
    whole = zip(sizes, found, strict=True)
    return {
        names[name]: seen[1]
        for name, seen in whole
        if seen is not None and seen[0] == parts[names[name]][1] - parts[names[name]][0]
    }


def assembled(tables: Iterable[pa.Table], paths: pa.StringArray, part_size: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield each part, with its number, once all of its rows are there.

    Args:
        tables: rows in any order, with the columns `row`, `error` and those of the predictions.
        paths: of all images.
    """
    held: dict[int, list[pa.Table]] = {}
    for table in tables:
        numbers = table[ROW].to_numpy() // part_size
        for part in np.unique(numbers).tolist():
            held.setdefault(part, []).append(table.filter(pa.array(numbers == part)))
            start, stop = part * part_size, min((part + 1) * part_size, len(paths))
            if sum(map(len, held[part])) == stop - start:
                whole = pa.concat_tables(held.pop(part)).sort_by(ROW)
                yield part, whole.drop_columns([ROW]).add_column(0, "path", paths[start:stop])


def write(place: Place, where: str, part: int, table: pa.Table) -> int:
    """Write a part; return the number of its images that could not be read.

    Args:
        where: the place, for messages.

    Raises:
        UserError: the place cannot be written.
    """
    bad, file = len(table) - table[ERROR].null_count, io.BytesIO()
    parquet.write_table(table.replace_schema_metadata({ERROR: str(bad)}), file)
    answered(where, lambda: place.write(name_of(part), file.getvalue()))
    return bad


def tidy(place: Place, where: str) -> None:
    """Remove what killed commands were writing, from a result that is whole.

    Args:
        where: the place, for messages.

    Raises:
        UserError: the place cannot be written.
    """
    for name in filter(_PARTIAL.fullmatch, answered(where, place.names)):
        answered(where, partial(place.remove, name))


def _look(place: Place, name: str, size: int) -> tuple[int, int] | None:
    """Return the number of a part's rows and that of its bad images, from the file's end; None if it is not whole."""
    tail = place.read(name, max(0, size - _TAIL))
    if tail[-4:] != _ENDED or len(tail) < 12:
        return None
    footer = 8 + int.from_bytes(tail[-8:-4], "little")
    if footer > len(tail):
        tail = place.read(name, max(0, size - footer))
    try:
        found = parquet.read_metadata(pa.BufferReader(tail[-footer:]))
        return found.num_rows, int((found.metadata or {})[ERROR.encode()])
    except (pa.ArrowException, OSError, KeyError, ValueError):
        return None


def _other(where: str, what: str) -> errors.UserError:
    return errors.UserError(f"the folder holds {what}", where, "give another --out, or remove what is there")
