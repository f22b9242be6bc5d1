"""Tables that list images: the columns of a CSV, JSON-lines or Parquet file, as Arrow and NumPy arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet
from pyarrow import json as arrow_json

from raytrain import errors

_CSV, _JSON, _PARQUET = (".csv", ".tsv"), (".jsonl", ".ndjson", ".json"), (".parquet", ".pq")
_STAT, _THREADS = 200_000, 8
"""Files whose size and time are looked up, and the threads that do so."""


def schema(root: str) -> pa.Schema:
    """Return the columns of a table; for JSON lines and CSV from its first block.

    Raises:
        UserError: the file is no table.
    """
    return _opened(root, lambda: _schema(root))


def columns(root: str, names: list[str], strings: Iterable[str]) -> pa.Table:
    """Return columns of a table; those in `strings` are text even where a CSV file has numbers in them.

    Raises:
        UserError: the file is no table.
    """
    return _opened(root, lambda: _columns(root, names, strings))


def is_parquet(root: str) -> bool:
    """Return whether a table may hold bytes."""
    return root.lower().endswith(_PARQUET)


def _opened(root: str, work: Any) -> Any:
    if not root.lower().endswith((*_CSV, *_JSON, *_PARQUET)):
        how = "give a .csv, .tsv, .jsonl or .parquet file"
        raise errors.UserError("the manifest is not a table", root, how)
    try:
        return work()
    except FileNotFoundError:
        raise errors.no_such_file(root, "file") from None
    except (pa.ArrowException, OSError) as error:
        reason = errors.one_line(str(error), 200)
        raise errors.UserError(f"the manifest cannot be read as a table: {reason}", root, "mend the file") from None


def _delimiter(root: str) -> csv.ParseOptions:
    return csv.ParseOptions(delimiter="\t" if root.lower().endswith(".tsv") else ",", newlines_in_values=True)


def _schema(root: str) -> pa.Schema:
    if is_parquet(root):
        return parquet.read_schema(root)
    if root.lower().endswith(_CSV):
        with csv.open_csv(root, parse_options=_delimiter(root)) as file:
            return file.schema
    with arrow_json.open_json(root) as file:
        return file.schema


def _columns(root: str, names: list[str], strings: Iterable[str]) -> pa.Table:
    if is_parquet(root):
        return parquet.ParquetFile(root).read(columns=names)
    if root.lower().endswith(_CSV):
        convert = csv.ConvertOptions(include_columns=names, column_types=dict.fromkeys(strings, pa.string()))
        return csv.read_csv(root, parse_options=_delimiter(root), convert_options=convert)
    return arrow_json.read_json(root).select(names)


def class_names(root: str, found: pa.Schema, column: str) -> tuple[str, ...] | None:
    """Return the names of a column's classes by Hugging Face's metadata; None without it."""
    try:
        features = json.loads((found.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[column]["names"])
    except (KeyError, TypeError, ValueError):
        return None


def coded(column: pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    """Return the number of each row's text among the sorted texts, int64 [n], and these; -1 for null and for empty
    text."""
    encoded = column.cast(pa.string()).combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    texts = encoded.dictionary.to_pylist()
    names = sorted(text for text in texts if text)
    places = {name: place for place, name in enumerate(names)}
    return np.array([*(places.get(text, -1) for text in texts), -1], np.int64)[codes], names


def integers(column: pa.ChunkedArray) -> np.ndarray | None:
    """Return whole numbers, int64 [n], with -1 for null; None for a column of another type."""
    if not pa.types.is_integer(column.type):
        return None
    return column.cast(pa.int64()).fill_null(-1).to_numpy().astype(np.int64)


def strings(column: pa.ChunkedArray) -> pa.StringArray:
    """Return text as one array."""
    found = column.cast(pa.string()).combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def values(column: pa.ChunkedArray) -> np.ndarray:
    """Return numbers as they are, and any other type as text, [n]."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return column.to_numpy()
    return column.cast(pa.string()).to_numpy().astype(np.str_)


def status(base: str, paths: pa.StringArray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return sizes and times of files, int64 [n] each, 0 for missing ones; None for more than 200,000 files."""
    if len(paths) > _STAT:
        return None

    def look(share: list[str]) -> list[tuple[int, int]]:
        found = []
        for path in share:
            try:
                one = os.stat(os.path.join(base, path))
                found.append((one.st_size, one.st_ctime_ns))
            except (OSError, ValueError):  # reported when it is read
                found.append((0, 0))
        return found

    shares = [paths[start : start + 500].to_pylist() for start in range(0, len(paths), 500)]
    with ThreadPoolExecutor(_THREADS) as pool:
        found = np.array([one for share in pool.map(look, shares) for one in share], np.int64).reshape(-1, 2)
    return found[:, 0].copy(), found[:, 1].copy()


def cells(root: str, column: str, rows: np.ndarray) -> Iterator[bytes | None]:
    """Yield the bytes in some rows (int64 [k]) of a Parquet file, in their order. The row groups that were read last
    are kept, since neighbours are mostly asked for together."""
    stamp = os.stat(root).st_mtime_ns
    starts = _starts(root, stamp)
    groups = np.searchsorted(starts, rows, side="right") - 1
    found: dict[int, bytes | None] = {}
    for group in np.unique(groups):
        kept = _group(root, stamp, column, int(group))
        for row in rows[groups == group]:
            found[int(row)] = kept[int(row - starts[group])].as_py()
    return (found[int(row)] for row in rows)


@lru_cache(maxsize=4)
def _starts(root: str, stamp: int) -> np.ndarray:
    about = parquet.read_metadata(root)
    return np.cumsum([0, *(about.row_group(group).num_rows for group in range(about.num_row_groups))])[:-1]


@lru_cache(maxsize=2)
def _group(root: str, stamp: int, column: str, group: int) -> pa.ChunkedArray:
    with parquet.ParquetFile(root) as file:
        found = file.read_row_group(group, columns=[column]).column(0)
    if pa.types.is_struct(found.type):
        return found.flatten()[found.type.get_field_index("bytes")]  # Hugging Face's, beside `path`
    return found
