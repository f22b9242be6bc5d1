"""The members of tar shards as WebDataset writes them: where each image is, and its label."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raytrain import errors
from raytrain.data import byte_files, kept
from raytrain.data.source import Index
from raytrain.data.trees import EXTENSIONS

VERSION = 3
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


def members(files: list[byte_files.File], label: str, image: str, folder: Path | None) -> pa.Table:
    """Return the samples of shards: `shard` (int32), `name`, `offset`, `size` (int64) of the image and `label`, a
    text or null. It is read from the tar headers, and kept in a folder.

    Args:
        label: suffix of the member with the label, or `json.NAME`.
        image: suffix of the member with the image, in lower case; empty where each sample has only one image.

    Raises:
        UserError: a shard is no tar file or cannot be read, a sample has several images or is there twice, or its label
            is no text or number.
    """
    recipe = repr((VERSION, label, image, [(os.path.abspath(one.path), one.size, one.time) for one in files]))
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:32]
    path = None if folder is None else folder / f"{digest}.tars"
    if path is not None and (batches := kept.load(path)):
        return pa.Table.from_batches(batches)
    found = list(byte_files.at_once(lambda one: _samples(one.path, label, image), files))
    tables = [part.append_column("shard", pa.array(np.full(len(part), n, np.int32))) for n, part in enumerate(found)]
    table = pa.concat_tables(tables)
    if path is not None and len(table):
        kept.store(path, table.combine_chunks().to_batches())
    return table


def _samples(path: str, label: str, image: str) -> pa.Table:
    try:
        if byte_files.is_url(path):
            return byte_files.retried(lambda sign: _scan(path, label, image, sign))
        return _scan(path, label, image, lambda: None)
    except (tarfile.TarError, EOFError) as error:
        reason = errors.one_line(str(error)) or type(error).__name__
        raise errors.UserError(
            f"the shard is no tar file, or damaged: {reason}", byte_files.shown(path), "write it again, uncompressed"
        ) from None
    except OSError as error:
        if byte_files.is_url(path):
            raise byte_files.refused(path, error) from None
        raise errors.UserError(f"the shard cannot be read: {error.strerror}", path, "make it readable") from None


def _scan(path: str, label: str, image: str, sign: Any) -> pa.Table:
    """Return the samples of one shard, in their order: members whose names are equal up to the first dot after the
    last slash are one sample (WebDataset's rule)."""
    suffix, _, entry = label.partition(".")
    images: dict[str, list[_Image]] = {}
    labels: dict[str, str | None] = {}
    crowded = None
    with (
        byte_files.stream(path) as source,
        tarfile.open(fileobj=source, mode="r:" if source.seekable() else "r|") as tar,
    ):
        for member in tar:
            sign()
            tar.members = []  # type: ignore[misc]  # it would keep all
            folder, slash, own = member.name.rpartition("/")
            if not member.isfile() or own.startswith("."):
                continue
            name, _, kind = own.partition(".")
            key, kind = folder + slash + name, kind.lower()
            if crowded is not None and key != crowded:
                break  # an error, which names all images of that sample
            found = images.setdefault(key, [])
            if kind == suffix and member.size <= _MOST_TEXT and (text := tar.extractfile(member)):
                if key in labels:
                    raise _twice(path, key, kind)
                labels[key] = _label(text.read(), entry, path, key)
            elif kind == image or f".{kind}".endswith(EXTENSIONS):
                if any(one.kind == kind for one in found):
                    raise _twice(path, key, kind)
                found.append(_Image(kind, member.name, member.offset_data, member.size))
                crowded = key if len(found) > 1 and not image else crowded
    chosen = {key: _chosen(path, key, found, image) for key, found in images.items() if found}
    columns = {
        "name": pa.array([one.name for one in chosen.values()], pa.string()),
        "offset": pa.array([one.offset for one in chosen.values()], pa.int64()),
        "size": pa.array([one.size for one in chosen.values()], pa.int64()),
        "label": pa.array([labels.get(key) for key in chosen], pa.string()),
    }
    return pa.table(columns)


class _Image(NamedTuple):
    """A member that is an image: its suffix, its name, and where its bytes are."""

    kind: str
    name: str
    offset: int
    size: int


def _chosen(path: str, key: str, found: list[_Image], image: str) -> _Image:
    """Return the image of a sample."""
    named = [one for one in found if one.kind == image] if image else found
    if len(named) == 1:
        return named[0]
    kinds = sorted((one.kind for one in found), key=lambda kind: (kind.count("."), kind))
    listed, where = errors.listed([f".{kind}" for kind in kinds]), byte_files.shown(path)
    if image:
        how = f"--data.image {kinds[0]} takes that one; or leave the sample out"
        raise errors.UserError(f"the sample {key!r} has no image .{image}, but {listed}", where, how)
    how = f"name the one that is to be read, --data.image {' or '.join(kinds)}"
    raise errors.UserError(f"the sample {key!r} has several images, {listed}", where, how)


def _twice(path: str, key: str, kind: str) -> errors.UserError:
    what = f"the sample {key!r} is there twice, with two members .{kind}"
    return errors.UserError(what, byte_files.shown(path), "give each sample of a shard a name of its own")


def _label(raw: bytes, entry: str, path: str, key: str) -> str | None:
    """Return the label in a text member, or in an entry of a JSON member; None without it."""
    try:
        if not entry:
            return raw.decode().strip() or None
        value = json.loads(raw)[entry]
    except (ValueError, KeyError, TypeError):
        return None
    if isinstance(value, list | dict):
        text = errors.one_line(json.dumps(value), 60)
        what = f"the label {entry!r} of the sample {key!r} is {text}, not a text or number"
        how = "name an entry that is one: --data.label json.NAME"
        raise errors.UserError(what, byte_files.shown(path), how)
    return None if value is None else str(value)
