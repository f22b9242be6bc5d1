"""The members of tar shards as WebDataset writes them: where each image is, and its label."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raytrain import errors
from raytrain.data import byte_files, cache, kept
from raytrain.data.source import Index
from raytrain.data.trees import EXTENSIONS

VERSION = 2
"""Increase it with every change of the members that are found: entries of the cache are named by it."""
_MOST_TEXT = 1 << 20
"""Bytes of the largest text member that is read for a label."""
_FILES: dict[str, list[byte_files.File]] = {}


@dataclass(frozen=True, eq=False)
class TarIndex(Index):
    """The samples of one split in tar shards; `rows` are places in the arrays of all samples of all splits.

    Attributes:
        shards: the paths or URLs of all shards.
        shard, offset: the shard of each sample, int32 [all], and where its image begins there, int64 [all].
        length: bytes of its image, int64 [all].
    """

    shards: tuple[str, ...] = ()
    shard: np.ndarray = None  # type: ignore[assignment]
    offset: np.ndarray = None  # type: ignore[assignment]
    length: np.ndarray = None  # type: ignore[assignment]


def shards(root: str) -> list[byte_files.File]:
    """Return the shards that a path, a URL or a pattern names.

    Raises:
        UserError: there is none, or one is missing.
    """
    try:
        found = byte_files.files(root, (".tar",))
    except FileNotFoundError as error:
        how = "check the spelling: give a .tar file, a folder of them, or a pattern such as train-{000..010}.tar"
        where = error.filename or str(error)
        raise errors.UserError("no shard is there", byte_files.shown(where), how) from None
    except (OSError, ValueError) as error:
        if byte_files.is_url(root):
            raise byte_files.refused(root, error) from None
        raise errors.UserError(f"the shards cannot be read: {error}", root, "make them readable") from None
    return found


def members(files: list[byte_files.File], label: str, folder: Path | None) -> pa.Table:
    """Return the samples of shards: `shard` (int32), `name`, `offset`, `size` (int64) of the image and `label`, a
    text or null. It is read from the tar headers, and kept in a folder.

    Raises:
        UserError: a shard is no tar file or cannot be read.
    """
    recipe = repr((VERSION, label, [(os.path.abspath(one.path), one.size, one.time) for one in files]))
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:32]
    path = None if folder is None else folder / f"{digest}.tars"
    if path is not None and (batches := kept.load(path)):
        return pa.Table.from_batches(batches)
    suffix, _, entry = label.partition(".")
    found = list(byte_files.at_once(lambda one: _samples(one.path, suffix, entry), files))
    tables = [part.append_column("shard", pa.array(np.full(len(part), n, np.int32))) for n, part in enumerate(found)]
    table = pa.concat_tables(tables)
    if path is not None and len(table):
        kept.store(path, table.combine_chunks().to_batches())
    return table


def cache_folder(name: str) -> Path | None:
    """Return the folder of the cache; None for `off`."""
    if name == "off":
        return None
    return cache.default_folder() if name == "auto" else Path(name).expanduser()


def _samples(path: str, suffix: str, entry: str) -> pa.Table:
    try:
        if byte_files.is_url(path):
            return byte_files.retried(lambda sign: _scan(path, suffix, entry, sign))
        return _scan(path, suffix, entry, lambda: None)
    except (tarfile.TarError, EOFError) as error:
        reason = errors.one_line(str(error)) or type(error).__name__
        raise errors.UserError(
            f"the shard is no tar file, or damaged: {reason}", byte_files.shown(path), "write it again, uncompressed"
        ) from None
    except OSError as error:
        if byte_files.is_url(path):
            raise byte_files.refused(path, error) from None
        raise errors.UserError(f"the shard cannot be read: {error.strerror}", path, "make it readable") from None


def _scan(path: str, suffix: str, entry: str, sign: Any) -> pa.Table:
    """Return the samples of one shard, in their order: members whose names are equal up to the first dot after the
    last slash are one sample (WebDataset's rule)."""
    keys: dict[str, int] = {}
    names: list[Any] = []
    offsets: list[Any] = []
    sizes: list[Any] = []
    labels: list[Any] = []
    with (
        byte_files.stream(path) as source,
        tarfile.open(fileobj=source, mode="r:" if source.seekable() else "r|") as tar,
    ):
        for member in tar:
            sign()
            folder, slash, own = member.name.rpartition("/")
            if not member.isfile() or own.startswith("."):
                continue
            key, _, kind = own.partition(".")
            number = keys.setdefault(folder + slash + key, len(keys))
            if number == len(names):
                for column, empty in ((names, None), (offsets, 0), (sizes, 0), (labels, None)):
                    column.append(empty)
            if kind.lower() == suffix and member.size <= _MOST_TEXT and (text := tar.extractfile(member)):
                labels[number] = _label(text.read(), entry)
            elif own.lower().endswith(EXTENSIONS) and names[number] is None:
                names[number], offsets[number], sizes[number] = member.name, member.offset_data, member.size
            tar.members = []  # type: ignore[misc]  # it would keep all
    types = {"name": pa.string(), "offset": pa.int64(), "size": pa.int64(), "label": pa.string()}
    table = pa.table(dict(zip(types, (names, offsets, sizes, labels), strict=True)), pa.schema(list(types.items())))
    return table.filter(table["name"].is_valid())


def _label(raw: bytes, entry: str) -> str | None:
    """Return the label in a text member, or in an entry of a JSON member; None without it."""
    try:
        if not entry:
            return raw.decode().strip() or None
        value = json.loads(raw)[entry]
        return None if value is None else str(value)
    except (ValueError, KeyError, TypeError):
        return None
