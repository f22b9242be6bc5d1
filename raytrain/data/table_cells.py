"""Cells of tables, read one by one: the bytes of images in Parquet and Arrow files."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from raytrain import errors
from raytrain.data import byte_files
from raytrain.data.row_groups import RowGroups
from raytrain.files import is_url
from raytrain.machine import host_memory

ARROW = (".arrow",)
"""What the names of Arrow files end in."""
_KEPT = RowGroups(1 << 30)
"""The row groups that this process has read last: at most 1 GiB, or a single one."""
_MOST_OF_MEMORY = 0.5
"""Share of this machine's memory up to which a row group is read."""
_LOCK = threading.Lock()
_OPENING: dict[str, threading.Lock] = {}


def is_arrow(root: str) -> bool:
    """Return whether a table is an Arrow file."""
    return byte_files.shown(root).lower().endswith(ARROW)


def mapped(root: str) -> pa.Table:
    """Return the table in an Arrow file, either of IPC's formats, mapped from the disk; one at a URL is read whole, by
    one thread while others wait for it."""
    with _OPENING.setdefault(root, threading.Lock()):
        return _arrow(root, _stamp(root))


def cells(tables: tuple[str, ...], column: str, rows: np.ndarray) -> Iterator[bytes | None]:
    """Yield the bytes in some rows (int64 [k]) of Parquet and Arrow files, numbered from the first file on, in their
    order. The row groups that were read last are kept, since neighbours are mostly asked for together.

    Raises:
        UserError: a row group does not fit into memory.
        OSError: a file cannot be read.
    """
    stamps = tuple(map(_stamp, tables))
    starts, places = _placed(tables, stamps, column)
    groups = np.searchsorted(starts, rows, side="right") - 1
    found: dict[int, bytes | None] = {}
    for group in np.unique(groups):
        file, number, size = places[group]
        kept = _group(tables[file], stamps[file], column, number, size)
        for row in rows[groups == group]:
            found[int(row)] = kept[int(row - starts[group])].as_py()
    return (found[int(row)] for row in rows)


def largest_group(tables: tuple[str, ...], column: str) -> int:
    """Return the bytes that a column takes in the largest row group of Parquet files; 0 for Arrow files."""
    return max((size for _, _, size in _placed(tables, tuple(map(_stamp, tables)), column)[1]), default=0)


def _placed(
    tables: tuple[str, ...], stamps: tuple[int, ...], column: str
) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    with _LOCK:  # threads that begin together look once
        return _groups(tables, stamps, column)


@lru_cache(maxsize=4)
def _groups(
    tables: tuple[str, ...], stamps: tuple[int, ...], column: str
) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    """Return the first row of each row group, int64 [groups], and the number of its file, its number there, and the
    bytes that a column takes in it."""
    known = list(byte_files.at_once(lambda one: _group_sizes(one, column), list(tables)))
    places = [(file, group, size) for file, groups in enumerate(known) for group, (_, size) in enumerate(groups)]
    return np.cumsum([0, *(count for groups in known for count, _ in groups)])[:-1], places


def _group_sizes(root: str, column: str) -> list[tuple[int, int]]:
    """Return the rows of each row group of a Parquet file, and a column's bytes in it; an Arrow file is one group, of
    which only rows are read."""
    if is_arrow(root):
        return [(len(mapped(root)), 0)]
    about = parquet.read_metadata(byte_files.opened(root))
    paths = [about.schema.column(part).path for part in range(about.num_columns)]  # `image.bytes` is of `image`
    parts = [part for part, path in enumerate(paths) if path == column or path.startswith(f"{column}.")]
    found = []
    for number in range(about.num_row_groups):
        group = about.row_group(number)
        found.append((group.num_rows, sum(group.column(part).total_uncompressed_size for part in parts)))
    return found


def _stamp(root: str) -> int:
    """Return the time of a file's last change, by which what is kept of it is known; 0 at a URL."""
    return 0 if is_url(root) else os.stat(root).st_mtime_ns


@lru_cache(maxsize=64)
def _arrow(root: str, stamp: int) -> pa.Table:
    source: Any = pa.BufferReader(byte_files.content(root)) if is_url(root) else pa.memory_map(root)
    try:
        return pa.ipc.open_stream(source).read_all()  # as Hugging Face writes them
    except pa.ArrowInvalid:
        source.seek(0)
        return pa.ipc.open_file(source).read_all()


def _group(root: str, stamp: int, column: str, number: int, size: int) -> pa.ChunkedArray:
    if is_arrow(root):  # mapped, and rows are read where they are
        return _bytes_in(mapped(root).column(column))
    return _KEPT.get((root, stamp, column, number), size, lambda: _row_group(root, column, number, size))


def _row_group(root: str, column: str, number: int, size: int) -> pa.ChunkedArray:
    most = int(host_memory() * _MOST_OF_MEMORY)
    if size > most:
        what, how = "a row group, which is read whole,", "write the table again, with row_group_size=1000"
        raise errors.no_room(what, size, most, byte_files.shown(root), how)

    def work(_: Any) -> pa.ChunkedArray:
        with parquet.ParquetFile(byte_files.opened(root)) as file:
            return file.read_row_group(number, columns=[column]).column(0)

    return _bytes_in(byte_files.retried(work) if is_url(root) else work(None))


def _bytes_in(found: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of bytes."""
    if pa.types.is_struct(found.type):
        return found.flatten()[found.type.get_field_index("bytes")]  # Hugging Face's, beside `path`
    return found
