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
from raytrain.data.webdataset import COMPRESSED
from raytrain.files import is_url

VERSION = 5
"""Increase it with every change of the members that are found: entries of the cache are named by it."""
_EOF = tarfile.EOFHeaderError  # type: ignore[attr-defined]
_HeaderError, _ReadError = tarfile.HeaderError, tarfile.ReadError
_MOST_TEXT = 1 << 20
"""Bytes of the largest text member that is read for a label."""
_LEFT_OUT: dict[str, list[Any]] = {}
"""Of the lists that this process has read: how many samples have a label and no image, and a name of one."""


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
        UserError: there is none, one is missing, or is compressed.
    """
    try:
        try:
            found = byte_files.files(root, (".tar",))
        except FileNotFoundError:  # perhaps all are compressed
            found = byte_files.files(root, COMPRESSED)
    except FileNotFoundError as error:
        how = "check the spelling: give a .tar file, a folder of them, or a pattern such as train-{000..010}.tar"
        where = error.filename or str(error)
        raise errors.UserError("no shard is there", byte_files.shown(where), how) from None
    except (OSError, ValueError) as error:
        if is_url(root):
            raise byte_files.refused(root, error) from None
        raise errors.UserError(f"the shards cannot be read: {error}", root, "make them readable") from None
    for one in found:
        if kind := next((kind for kind in COMPRESSED if byte_files.shown(one.path).lower().endswith(kind)), ""):
            how = "unpack it and the others to .tar files" + (": gunzip *.gz" if kind == ".tar.gz" else "")
            raise errors.UserError(f"the shard is compressed ({kind})", byte_files.shown(one.path), how)
    # macOS writes such a file beside each file on a disk of another kind.
    found = [one for one in found if not os.path.basename(byte_files.shown(one.path)).startswith("._")]
    if not found:
        raise errors.UserError(
            "no shard is there, but files ._NAME of macOS", byte_files.shown(root), "copy the shards"
        )
    return found


def left_out(files: list[byte_files.File], label: str, image: str) -> tuple[int, str]:
    """Return how many samples have a label and no image, and a name of one, once `members` has read the shards."""
    count, name = _LEFT_OUT.get(_digest(files, label, image), [0, ""])
    return count, name


def _digest(files: list[byte_files.File], label: str, image: str) -> str:
    recipe = repr((VERSION, label, image, [(os.path.abspath(one.path), one.size, one.time) for one in files]))
    return hashlib.sha256(recipe.encode(errors="surrogateescape")).hexdigest()[:32]


def members(files: list[byte_files.File], label: str, image: str, folder: Path | None) -> pa.Table:
    """Return the samples of shards: `shard` (int32), `name`, `offset`, `size` (int64) of the image and `label`, a
    text or null. It is read from the tar headers, and kept in a folder.

    Args:
        label: suffix of the member with the label, in lower case, or `json.NAME`.
        image: suffix of the member with the image, in lower case; empty where each sample has only one image.

    Raises:
        UserError: a shard is no tar file or cannot be read, a sample has several images or is there twice, or its label
            is no text or number.
    """
    digest = _digest(files, label, image)
    path = None if folder is None else folder / f"{digest}.tars"
    if path is not None and (batches := kept.load(path)):
        _LEFT_OUT[digest] = json.loads(batches[0].schema.metadata[b"left out"])
        return pa.Table.from_batches(batches)
    found = list(byte_files.at_once(lambda one: _samples(one.path, label, image), files))
    tables = [
        part.append_column("shard", pa.array(np.full(len(part), n, np.int32))) for n, (part, _) in enumerate(found)
    ]
    missing = [(one, key) for one, (_, keys) in zip(files, found, strict=True) for key in keys]
    name = f"{os.path.basename(byte_files.shown(missing[0][0].path))}: {missing[0][1]}" if missing else ""
    _LEFT_OUT[digest] = [len(missing), name]
    table = pa.concat_tables(tables).replace_schema_metadata({"left out": json.dumps(_LEFT_OUT[digest])})
    if path is not None and len(table):
        kept.store(path, table.combine_chunks().to_batches())
    return table


def _samples(path: str, label: str, image: str) -> tuple[pa.Table, list[str]]:
    try:
        if is_url(path):
            return byte_files.retried(lambda sign: _scan(path, label, image, sign))
        return _scan(path, label, image, lambda: None)
    except (tarfile.TarError, EOFError) as error:
        reason = errors.one_line(str(error)) or type(error).__name__
        raise errors.UserError(
            f"the shard is no tar file, or damaged: {reason}", byte_files.shown(path), "write it again, uncompressed"
        ) from None
    except OSError as error:
        if is_url(path):
            raise byte_files.refused(path, error) from None
        raise errors.UserError(f"the shard cannot be read: {error.strerror}", path, "make it readable") from None


def _scan(path: str, label: str, image: str, sign: Any) -> tuple[pa.Table, list[str]]:
    """Return the samples of one shard, in their order, and those with a label and without an image. Members whose names
    are equal up to the first dot after the last slash are one sample (WebDataset's rule)."""
    suffix, entry = parted(label)
    images: dict[str, list[_Image]] = {}
    labels: dict[str, str | None] = {}
    crowded = None
    with (
        byte_files.stream(path) as source,
        tarfile.open(fileobj=source, mode="r:" if source.seekable() else "r|", tarinfo=_Member) as tar,
    ):
        for member in tar:
            sign()
            tar.members = []  # type: ignore[misc]  # it would keep all
            if not (member.isfile() or member.islnk()) or os.path.basename(member.name).startswith("."):
                continue
            key, kind = _key(path, member.name)
            if crowded is not None and key != crowded:
                break  # an error, which names all images of that sample
            found = images.setdefault(key, [])
            if kind == suffix and member.size <= _MOST_TEXT:
                if key in labels:
                    raise _twice(path, key, kind)
                if member.islnk():
                    labels[key] = _linked(path, member, labels.get(_key(path, member.linkname)[0], ...))
                elif text := tar.extractfile(member):
                    labels[key] = _label(text.read(), entry, path, key)
            elif kind == image or f".{kind}".endswith(EXTENSIONS):
                if any(one.kind == kind for one in found):
                    raise _twice(path, key, kind)
                place = member.offset_data, member.size
                if member.islnk():
                    known = images.get(_key(path, member.linkname)[0], [])
                    of = next((one for one in known if one.name == member.linkname), ...)
                    place = _linked(path, member, of)[2:]
                found.append(_Image(kind, member.name, *place))
                crowded = key if len(found) > 1 and not image else crowded
        else:
            _check_end(path, source)
    chosen = {key: _chosen(path, key, found, image) for key, found in images.items() if found}
    columns = {
        "name": pa.array([_text(one.name) for one in chosen.values()], pa.string()),
        "offset": pa.array([one.offset for one in chosen.values()], pa.int64()),
        "size": pa.array([one.size for one in chosen.values()], pa.int64()),
        "label": pa.array([labels.get(key) for key in chosen], pa.string()),
    }
    return pa.table(columns), [_text(key) for key in labels if key not in chosen]


class _Member(tarfile.TarInfo):
    """A member of a shard. tarfile alone takes a header that is damaged or missing for the end of the shard."""

    @classmethod
    def fromtarfile(cls, tarfile: Any) -> _Member:
        """Return the next member.

        Raises:
            ReadError: its header is damaged, or the shard ends without the empty block of an archive's end.
        """
        try:
            return super().fromtarfile(tarfile)
        except _EOF:
            raise
        except _HeaderError as error:
            cut = "it is empty" if not tarfile.offset else "it is cut: an archive's end is missing"
            reason = cut if str(error) == "empty header" else str(error)
            raise _ReadError(f"{reason} (at byte {tarfile.offset:,})") from None


def _check_end(path: str, source: Any) -> None:
    """Check that nothing follows the first empty block of a shard on this machine, which tarfile takes for its end."""
    while not is_url(path) and (rest := source.read(_MOST_TEXT)):
        if rest.strip(b"\0"):
            more = source.tell() - len(rest.lstrip(b"\0"))
            raise _ReadError(f"an empty block ends it, and at byte {more:,} more data follows")


def parted(label: str) -> tuple[str, str]:
    """Return the suffix of the member with the label, and the entry in it: of json.NAME alone; v1.cls is a suffix."""
    first, _, entry = label.partition(".")
    return (first, entry) if first == "json" else (label, "")


def _key(path: str, name: str) -> tuple[str, str]:
    """Return the sample of a member's name, and its suffix in lower case."""
    folder, slash, own = name.rpartition("/")
    first, _, kind = own.partition(".")
    return folder + slash + first, kind.lower()


def _linked(path: str, member: tarfile.TarInfo, known: Any) -> Any:
    """Return what a hard link leads to, if a member before it has that."""
    if known is ...:
        what = f"{member.name!r} is a hard link to {member.linkname!r}, which is no such member before it"
        how = "write the shard again, with a copy of the file: tar --hard-dereference"
        raise errors.UserError(what, byte_files.shown(path), how)
    return known


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
    listed, where = errors.listed([f".{kind}" for kind in kinds], 3), byte_files.shown(path)
    if image:
        how = f"--data.image {kinds[0]} takes that one; or leave the sample out"
        raise errors.UserError(f"the sample {key!r} has no image .{image}, but {listed}", where, how)
    how = f"name the one that is to be read, --data.image {' or '.join(kinds[:3])}"
    if len(kinds) > 3:  # as of img.000.jpg, img.001.jpg, ...
        how += "; or write no dots into the names of samples, which end at the first dot"
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
    return None if value is None else _text(str(value))


def _text(name: str) -> str:
    """Return a text that UTF-8 can hold, of a name in another encoding, such as Latin-1."""
    return name if name.isascii() else name.encode(errors="surrogateescape").decode(errors="replace")
