"""Tables that list images: the columns of a CSV, JSON-lines or Parquet file, as Arrow and NumPy arrays."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet
from pyarrow import json as arrow_json

from raytrain import errors
from raytrain.data import byte_files, hugging_face, spelling
from raytrain.data.table_cells import ARROW, is_arrow, mapped
from raytrain.files import is_url

_CSV, _JSON = (".csv", ".tsv"), (".jsonl", ".ndjson", ".json")
_PARQUET = ".parquet", ".pq"
_STAT, _THREADS = 200_000, 8
"""Files whose size and time are looked up, and the threads that do so."""
LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_TEXTS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_CODES = pa.dictionary(pa.int32(), pa.string())
Kind = Literal["label", "split", "path", "group", "value", "number"]
"""What a column is for: few texts or numbers; few texts; texts; names; names or numbers; numbers."""
_FILES: dict[str, tuple[str, ...]] = {}


def files(root: str, fresh: bool = False) -> tuple[str, ...]:
    """Return the tables that a path, a URL or a pattern names (`byte_files.files`), in order. A process looks for them
    once.

    Raises:
        UserError: there is none, or they are no tables.
    """
    if fresh or root not in _FILES:
        how = "give a .csv, .tsv, .jsonl, .parquet or .arrow file"
        if not is_url(root) and not os.path.exists(root) and "*" not in root and "{" not in root:
            raise errors.no_such_file(root, "file")
        try:
            found = hugging_face.data_files(root, [one.path for one in byte_files.files(root, (*_PARQUET, *ARROW))])
        except (OSError, ValueError) as error:
            if is_url(root):
                raise byte_files.refused(root, error) from None
            raise errors.UserError("no table is there", root, how) from None
        for one in found:
            if not _name(one).endswith((*_CSV, *_JSON, *_PARQUET, *ARROW)):
                raise errors.UserError("the manifest is not a table", byte_files.shown(one), how)
        _FILES[root] = tuple(found)
    return _FILES[root]


def schema(root: str) -> pa.Schema:
    """Return the columns of a table; of a CSV file from its first block.

    Raises:
        UserError: the file is no table.
    """
    return _opened(root, lambda: _schema(root))


def holds_bytes(root: str) -> bool:
    """Return whether a table may hold bytes."""
    return _name(root).endswith((*_PARQUET, *ARROW))


def stamps(root: str) -> list[tuple[int, int]]:
    """Return size and time of the last change, in ns, of each table that may hold bytes."""
    held = [one for one in files(root) if holds_bytes(one)]
    return [(one.size or 0, one.time) for table in held for one in byte_files.files(table, ())]


def _name(root: str) -> str:
    return byte_files.shown(root).lower()


def _opened(root: str, work: Any) -> Any:
    try:
        return work()
    except (pa.ArrowException, OSError) as error:
        if is_url(root) and isinstance(error, OSError):
            raise byte_files.refused(root, error) from None
        reason, where = errors.one_line(str(error), 200), byte_files.shown(root)
        how = "write an object a line" if "to array in row 0" in reason else "mend the file"
        if "\0" in str(error) or "invalid UTF8" in str(error):  # as half of each character of UTF-16, or of Latin-1
            how = "write the file again, in UTF-8"
        elif "Expected 1 columns" in reason:
            mark = "tabs" if _name(root).endswith(".tsv") else "commas"
            how = f"separate its columns with {mark}, and write 1.5 for 1,5"
        raise errors.UserError(f"the manifest cannot be read as a table: {reason}", where, how) from None


def _delimiter(root: str) -> csv.ParseOptions:
    return csv.ParseOptions(delimiter="\t" if _name(root).endswith(".tsv") else ",", newlines_in_values=True)


def _schema(root: str) -> pa.Schema:
    if is_arrow(root):
        return mapped(root).schema
    if _name(root).endswith(_JSON):
        return _json(root).schema
    source = byte_files.opened(root)
    if _name(root).endswith(_PARQUET):
        return parquet.read_schema(source)
    with csv.open_csv(source, parse_options=_delimiter(root)) as file:
        return file.schema


def _columns(root: str, kinds: dict[str, Kind]) -> pa.Table:
    names, is_json = list(kinds), _name(root).endswith(_JSON)
    known = _json(root) if is_json else _schema(root)
    found: list[str] = known.column_names if is_json else known.names
    _check_names(found, root, names)
    if is_json:
        return known.select(names)
    if is_arrow(root):
        return mapped(root).select(names)
    texts = {field.name for field in known if any(kind(field.type) for kind in _TEXTS)}
    coded = [name for name, kind in kinds.items() if kind in ("label", "split")]
    few = [name for name in coded if name in texts]  # as numbers, many rows of them take a fraction of the memory
    if _name(root).endswith(_PARQUET):
        source = byte_files.opened(root)
        whole = parquet.ParquetFile(source, read_dictionary=few, pre_buffer=is_url(root)).read(names)
        for place, one in enumerate(whole.schema):
            if one.name in few and one.type != _CODES:  # another type of text
                column = whole.column(place).cast(pa.string()).dictionary_encode()
                whole = whole.set_column(place, one.name, column)
        return whole
    types = {name: pa.string() for name, kind in kinds.items() if kind == "path"}
    return _read_csv(root, names, types | {name: _CODES for name in coded if name in few or kinds[name] == "split"})


def _json(root: str) -> pa.Table:
    """Return the table in a file of JSON lines. Text in which Arrow sees times, such as 2021-05-02, stays as it is."""
    found = arrow_json.read_json(_source(root))
    texts = [one.with_type(kind) for one in found.schema if (kind := _without_times(one.type)) != one.type]
    if not texts:
        return found
    options = arrow_json.ParseOptions(explicit_schema=pa.schema(texts))
    return arrow_json.read_json(_source(root), parse_options=options).select(found.column_names)


def _without_times(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    return pa.string() if pa.types.is_temporal(kind) else kind


def _source(root: str) -> Any:
    return pa.BufferReader(byte_files.content(root)) if is_url(root) else root


def _read_csv(root: str, names: list[str], types: dict[str, pa.DataType]) -> pa.Table:
    convert = csv.ConvertOptions(include_columns=names, column_types=types)
    return csv.read_csv(_source(root), parse_options=_delimiter(root), convert_options=convert)


def _check_names(found: list[str], root: str, names: list[str]) -> None:
    lacking = [name for name in names if name not in found]
    if lacking:
        what, how = f"the manifest has no column {lacking[0]!r}", "give all tables the same columns"
        raise errors.UserError(what, byte_files.shown(root), how)


def joined(tables: tuple[str, ...], kinds: dict[str, Kind]) -> tuple[pa.Table, list[int], list[pa.Schema]]:
    """Return columns of several tables, one after the other, and the number of rows and the columns of each.

    Args:
        kinds: what each column is for. Paths and splits are text even where a CSV file has numbers in them.

    Raises:
        UserError: a file is no table, or lacks a column or has it in another type.
    """

    def read(one: str) -> pa.Table:
        found = _opened(one, lambda: _columns(one, kinds))
        for name, kind in kinds.items():
            _check(found[name], name, kind, byte_files.shown(one))
        return found

    found = _alike(tables, list(byte_files.at_once(read, list(tables))))
    try:
        whole = pa.concat_tables(found, promote_options="permissive")
    except pa.ArrowException as error:
        what = f"the tables have different columns: {errors.one_line(str(error), 200)}"
        raise errors.UserError(what, byte_files.shown(tables[0]), "give all the same columns") from None
    return _spelled(tables, whole, kinds), [len(one) for one in found], [one.schema for one in found]


def _alike(tables: tuple[str, ...], found: list[pa.Table]) -> list[pa.Table]:
    """Return tables, in which columns that are text in some CSV files are text in all: Arrow guesses file by file."""
    types = [{field.name: field.type for field in one.schema} for one in found]
    text = {
        name: kind for wanted in (pa.string(), _CODES) for one in types for name, kind in one.items() if kind == wanted
    }
    other = [any(one[name] != kind for name, kind in text.items()) for one in types]
    if not any(other) or not all(_name(one).endswith(_CSV) for one in tables):
        return found
    return [_read_csv(tables[k], list(types[k]), text) if other[k] else one for k, one in enumerate(found)]


def _check(column: pa.ChunkedArray, name: str, kind: Kind, where: str) -> None:
    """Check that text is in UTF-8, and that labels fit int64."""
    wanted = pa.string() if "binary" in str(column.type) and not column.type.num_fields else None
    wanted = pa.int64() if kind == "label" and pa.types.is_uint64(column.type) else wanted
    if wanted is None or kind == "number":
        return
    try:
        column.cast(wanted)
    except pa.ArrowException:
        what = "must be text in UTF-8" if wanted == pa.string() else "must be whole numbers of at most 2**63 - 1"
        how = "write the file again, in UTF-8" if wanted == pa.string() else "write the classes' names"
        raise errors.UserError(f"column {name!r} {what}", where, how) from None


def _spelled(tables: tuple[str, ...], found: pa.Table, kinds: dict[str, Kind]) -> pa.Table:
    """Return columns with the texts of CSV files, where numbers or times do not tell all of them apart."""
    ways = {"label": spelling.names, "group": spelling.names, "value": spelling.values}
    read = [one.name for one in found.schema if spelling.is_read(one.type) and kinds[one.name] in ways]
    if not read or not all(_name(one).endswith(_CSV) for one in tables):
        return found
    types = dict.fromkeys(read, pa.string())
    parts = byte_files.at_once(lambda one: _opened(one, lambda: _read_csv(one, read, types)), list(tables))
    texts = pa.concat_tables(list(parts))
    for name in read:
        column = ways[kinds[name]](found[name], texts[name])
        found = found.set_column(found.column_names.index(name), name, column)
    return found


def coded(column: pa.ChunkedArray) -> tuple[np.ndarray, list[str]]:
    """Return the number of each row's text among the sorted texts, int64 [n], and these; -1 for null, NaN and empty
    text. Floats that are all whole are written as whole numbers, and sorted as such."""
    whole = pa.types.is_floating(column.type)
    if whole:
        column, whole = spelling.whole(column)
    chunks = column if column.type == _CODES else column.cast(pa.string()).dictionary_encode()
    encoded = chunks.unify_dictionaries().combine_chunks()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    texts = encoded.dictionary.to_pylist()
    names = sorted((text for text in texts if text), key=int if whole else None)
    places = {name: place for place, name in enumerate(names)}
    return np.array([*(places.get(text, -1) for text in texts), -1], np.int64)[codes], names


def integers(column: pa.ChunkedArray) -> np.ndarray | None:
    """Return whole numbers, int64 [n], with -1 for null; None for a column of another type."""
    if not pa.types.is_integer(column.type):
        return None
    return column.cast(pa.int64()).fill_null(-1).to_numpy().astype(np.int64)


def release() -> None:
    """Return memory that Arrow has freed to the system: of 10 million rows it keeps up to 0.9 GB."""
    pa.default_memory_pool().release_unused()


def strings(column: pa.ChunkedArray) -> pa.StringArray:
    """Return text as one array."""
    found = column.cast(pa.string()).combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def below(folders: np.ndarray, paths: pa.StringArray) -> pa.StringArray:
    """Return paths with the folder of each (str [n]) before them; absolute paths and URLs stay as they are."""
    found = (
        path if not folder or is_url(path) else os.path.join(folder, path)
        for folder, path in zip(folders, paths.to_pylist(), strict=True)
    )
    return pa.array(found, pa.string())


def values(column: pa.ChunkedArray) -> np.ndarray:
    """Return numbers as they are, and any other type as text, [n]."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return column.to_numpy()
    return column.cast(pa.string()).to_numpy().astype(np.str_)


def numbers(columns: list[pa.ChunkedArray]) -> np.ndarray | None:
    """Return one or more columns of numbers, or a column of equally long lists of them, float32 [n] or [n, k]; None
    for other columns. An empty cell becomes NaN."""
    first = columns[0]
    if len(columns) == 1 and any(kind(first.type) for kind in LISTS):
        flat = first.combine_chunks()
        values = numbers([pa.chunked_array([flat.flatten()])]) if len(flat) else None
        equal = values is not None and not flat.null_count and len(set(flat.value_lengths().unique().to_pylist())) == 1
        return values.reshape(len(flat), -1) if equal and values is not None else None
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    if not all(any(kind(one.type) for kind in kinds) for one in columns):
        return None
    columns = [one.cast(pa.float64()) if pa.types.is_decimal(one.type) else one for one in columns]
    found = [one.cast(pa.float32(), safe=False).to_numpy().astype(np.float32) for one in columns]
    return found[0] if len(found) == 1 else np.stack(found, axis=1)


def status(base: str, paths: pa.StringArray) -> tuple[np.ndarray, np.ndarray] | None:
    """Return sizes and times of files, int64 [n] each, 0 for missing ones; None for more than 200,000 files and
    for files at URLs."""
    if len(paths) > _STAT or is_url(base):
        return None
    if any(map(is_url, paths.to_pylist())):
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
