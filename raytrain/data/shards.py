"""The format of packed data: shards of samples' bytes, an index for each split, and a manifest with checksums.

A pack is a folder, or a place at a URL:

    manifest.json       version, codec, source, splits, shards, with size and sha256 of each file; written last
    index-train.arrow   for each sample: shard, offset, length, crc32, and its label, name and columns; memory-mapped
    shard-00000.bin     the bytes of a range of one split's samples, back to back

A sample of the codecs `original` and `jpeg` is an encoded image, and after it the arrays of further fields. One of the
codec `raw` is the arrays of all fields. Arrays follow each other in C order and in little-endian bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from raytrain import errors, files
from raytrain.data.pack_index import Table, index_name
from raytrain.data.source import Field

VERSION = 1
"""Number of the format; a reader takes no other."""
MANIFEST = "manifest.json"
CODECS = ("original", "jpeg", "raw")
FORMAT = "raytrain pack"
_AGAIN = "copy the pack again, or pack the data anew"
_DAMAGED = "its bytes are damaged: their checksum differs"
_VECTORS = 1024
"""Buffers that one system call fills (IOV_MAX of Linux)."""
_RUN = 64 << 20
"""Bytes that one system call reads at most."""
_OPEN = 512
"""Shards that a process keeps open, or a quarter of its files if that is less."""


def shard_name(number: int) -> str:
    """Return the name of a shard's file."""
    return f"shard-{number:05d}.bin"


def manifest_text(values: Mapping[str, Any]) -> str:
    """Return a manifest's text, with its checksum."""
    return json.dumps({**values, "sha256": _digest(values)}, indent=1) + "\n"


def parsed(text: bytes, where: object) -> dict[str, Any]:
    """Return a manifest's values.

    Raises:
        UserError: it is damaged, none of a pack, or of another version or codec.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise errors.UserError("the pack's manifest is damaged: it is no JSON", where, _AGAIN) from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise errors.UserError("this is no pack's manifest", where, "give a folder that `raytrain pack` wrote")
    if values.get("version") != VERSION:
        what = f"the pack has version {values.get('version')!r}, and this raytrain reads version {VERSION}"
        raise errors.UserError(what, where, "use the raytrain that packed it, or pack the data anew")
    if values.get("codec") not in CODECS:
        known = f"{errors.nearest(str(values.get('codec')), CODECS)}the codecs are {errors.listed(CODECS)}"
        raise errors.UserError(f"the pack has an unknown codec {values.get('codec')!r}", where, known)
    if values.pop("sha256", None) != _digest(values):
        raise errors.UserError("the pack's manifest is damaged: its checksum differs", where, _AGAIN)
    names = [one["file"] for one in values["shards"]]
    indices = {split: one["index"]["file"] for split, one in values["splits"].items()}
    # No other names: files of a pack at a URL are written under them.
    if names != [shard_name(number) for number in range(len(names))] or not all(
        split.isidentifier() and name == index_name(split) for split, name in indices.items()
    ):
        raise errors.UserError("the pack's manifest has unknown names of files", where, _AGAIN)
    return values


def _digest(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


class Place(Protocol):
    """Where the files of a pack are."""

    @property
    def where(self) -> str:
        """The folder or the URL, for messages."""
        ...

    @property
    def remote(self) -> bool:
        """Whether shards are fetched before they are read."""
        ...

    def room(self) -> int | None:
        """Return the bytes that fetched shards may take on this machine; None where none are fetched."""
        ...

    def file(self, name: str, size: int, sha256: str) -> Path | None:
        """Return a file on this machine; None for a shard that is read in ranges, as there is no room for it."""
        ...

    def bring(self, wanted: list[dict[str, Any]], split: str, all_of_it: list[dict[str, Any]], count: int) -> None:
        """Fetch shards, before `count` samples of them are read, and all shards of the split ahead of need."""
        ...

    def range(self, name: str, offset: int, length: int) -> bytes:
        """Return a part of such a shard."""
        ...


class Pack:
    """A pack that this process reads; its methods may be called from several threads at once."""

    def __init__(self, place: Place, values: dict[str, Any]):
        self.place, self.values, self.raw = place, values, values["codec"] == "raw"
        self.digest = _digest(values)
        self._tables: dict[str, Table] = {}
        self._files: dict[int, _File] = {}
        self._lock = threading.Lock()
        self._most = max(8, min(_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))

    def notes(self) -> list[str]:
        """Return notes for the plan: that there is no room for all shards."""
        total = sum(one["bytes"] for one in self.values["shards"])
        room = self.place.room()
        if room is None or room >= total:
            return []
        rest = "the samples of the others are read from the URL one by one (--data.fetched, --data.cache)"
        return [f"the pack has {files.size(total)}, and shards of {files.size(room)} fit into the cache: {rest}"]

    def table(self, split: str) -> Table:
        """Return the samples of a split.

        Raises:
            UserError: the index file is damaged.
        """
        if split not in self._tables:
            known = self.values["splits"][split]["index"]
            where = f"{self.place.where}/{known['file']}"
            try:
                path = self.place.file(known["file"], known["bytes"], known["sha256"])
                assert path is not None
                if path.stat().st_size != known["bytes"]:
                    raise damaged_file(where, f"it has {path.stat().st_size:,} bytes instead of {known['bytes']:,}")
                self._tables[split] = Table(path)
            except (OSError, pa.ArrowException, KeyError) as error:
                raise damaged_file(where, getattr(error, "strerror", None) or str(error)) from None
        return self._tables[split]

    def name(self, split: str, row: int) -> str:
        """Return where a sample is: its shard and its name."""
        table = self.table(split)
        named = self.values["splits"][split]["names"]
        sample = table.batch.column("name")[row].as_py() if named else f"sample {row} of {split}"
        return f"{self.place.where}/{shard_name(int(table.shard[row]))}: {sample}"

    def encoded(self, split: str, rows: np.ndarray, further: dict[str, np.ndarray]) -> Iterator[bytes]:
        """Yield the encoded images of some samples (int64 [k]).

        Args:
            further: filled with the arrays of the further fields, [k, ...] each.

        Raises:
            BadSample: they are damaged or cannot be read.
        """
        table = self.table(split)
        self._bring(split, table.shard[rows])
        parts = [array.reshape(len(rows), -1).view(np.uint8) for array in further.values()]
        for place, row in enumerate(rows):
            found = self._bytes(table, split, int(row))
            if zlib.crc32(found) != table.crc[row]:  # under 1% of the time that decoding takes
                raise errors.BadSample(self.name(split, int(row)), _DAMAGED)
            end = len(found) - sum(part.shape[1] for part in parts)
            image, start = found[:end], end
            for part in parts:
                part[place] = np.frombuffer(found, np.uint8, part.shape[1], start)
                start += part.shape[1]
            yield image

    def arrays(
        self, split: str, rows: np.ndarray, fields: tuple[Field, ...], out: dict[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Return the arrays of some raw samples (int64 [k]), [k, ...] by the fields' names: `out` if it is given.

        Raises:
            BadSample: they are damaged or cannot be read.
        """
        table, count, size = self.table(split), len(rows), sum(field.bytes for field in fields)
        found = out or {field.name: np.empty((count, *field.shape), field.dtype) for field in fields}
        if not count:
            return found
        flat = [array.reshape(count, -1).view(np.uint8) for array in found.values()]
        shards, offsets = table.shard[rows], table.offset[rows]
        self._bring(split, shards)
        # One call reads the samples that follow each other both in the batch and in a shard.
        apart = np.flatnonzero((np.diff(shards) != 0) | (np.diff(offsets) != size)) + 1
        most = max(1, min(_RUN // max(1, size), _VECTORS if len(flat) == 1 else _VECTORS // len(flat)))
        bounds = [0, *apart.tolist(), count]
        done = 0
        if len(bounds) == count + 1:
            with contextlib.suppress(OSError, ValueError):  # `_fill` says which
                held = {shard: self._file(shard) for shard in np.unique(shards).tolist()}
                done = _fill_each(held, shards.tolist(), offsets.tolist(), flat, size)
        for first, last in pairwise(bounds[done:]):
            for start in range(first, last, most):
                stop = min(start + most, last)
                self._fill(int(shards[start]), int(offsets[start]), flat, slice(start, stop), split, rows)
        for place in np.flatnonzero(~table.checked[rows]):
            crc = 0
            for one in flat:
                crc = zlib.crc32(one[place], crc)
            if crc != table.crc[rows[place]]:
                raise errors.BadSample(self.name(split, int(rows[place])), _DAMAGED)
        table.checked[rows] = True
        return found

    def at_hand(self, split: str, rows: np.ndarray, fields: tuple[Field, ...], out: dict[str, np.ndarray]) -> int:
        """Fill the arrays of raw samples, as `arrays`, up to the first one that is not at hand: this process has not
        checked it yet, the system does not have it in memory, or `arrays` reads it together with the next one.

        Returns:
            How many are filled.
        """
        table, size = self.table(split), sum(field.bytes for field in fields)
        shards, offsets = table.shard[rows], table.offset[rows]
        left, behind = ~table.checked[rows], (np.diff(shards) == 0) & (np.diff(offsets) == size)
        left[:-1] |= behind
        left[1:] |= behind
        count = int(left.argmax()) if left.any() else len(rows)
        flat = [array[:count].reshape(count, -1).view(np.uint8) for array in out.values()] if count else []
        with self._lock:
            held = {shard: self._files.get(shard) for shard in np.unique(shards[:count]).tolist()}
        return _fill_each(held, shards[:count].tolist(), offsets[:count].tolist(), flat, size, os.RWF_NOWAIT)

    def _bring(self, split: str, shards: np.ndarray) -> None:
        """Let the shards of the coming samples (int32 [k]) be fetched, if they are not here."""
        if self.place.remote:
            known = self.values["shards"]
            wanted = [known[number] for number in np.unique(shards).tolist() if number not in self._files]
            self.place.bring(wanted, split, [one for one in known if one["split"] == split], len(shards))

    def _fill(self, shard: int, offset: int, flat: list[np.ndarray], part: slice, split: str, rows: np.ndarray) -> None:
        """Read consecutive samples into the rows `part` of the fields' bytes."""
        parts: list[Any] = [one[part] for one in flat]
        wanted = sum(one.nbytes for one in parts)
        buffers: list[Any] = parts if len(parts) == 1 else [one[i] for i in range(len(parts[0])) for one in parts]
        got, cause = 0, None
        try:
            file = self._file(shard)
            if file is not None:
                got = os.preadv(file.descriptor, buffers, offset)
            if got != wanted:  # read in ranges, or interrupted
                content = np.frombuffer(self._range(shard, offset, wanted), np.uint8)
                got, start = len(content), 0
                for buffer in buffers if got == wanted else ():
                    buffer.reshape(-1)[:] = content[start : start + buffer.nbytes]
                    start += buffer.nbytes
        except (OSError, ValueError) as error:
            cause = error
        if got != wanted:
            raise errors.BadSample(self.name(split, int(rows[part][0])), _reason(cause)) from cause

    def _bytes(self, table: Table, split: str, row: int) -> bytes:
        shard, offset, length = int(table.shard[row]), int(table.offset[row]), int(table.length[row])
        try:
            file = self._file(shard)
            found = b"" if file is None else os.pread(file.descriptor, length, offset)
            if len(found) != length:
                found = self._range(shard, offset, length)
        except (OSError, ValueError) as error:
            raise errors.BadSample(self.name(split, row), _reason(error)) from error
        if len(found) != length:
            raise errors.BadSample(self.name(split, row), _reason(None))
        return found

    def _range(self, shard: int, offset: int, length: int) -> bytes:
        """Return a part of a shard, in as many pieces as it comes; shorter at the shard's end."""
        file = self._file(shard)
        if file is None:
            return self.place.range(shard_name(shard), offset, length)
        pieces = []
        while length and (piece := os.pread(file.descriptor, length, offset)):
            pieces.append(piece)
            offset, length = offset + len(piece), length - len(piece)
        return b"".join(pieces)

    def _file(self, number: int) -> _File | None:
        with self._lock:
            file = self._files.pop(number, None)
            if file is not None:
                self._files[number] = file  # the last used is the last
                return file
        known = self.values["shards"][number]
        path = self.place.file(known["file"], known["bytes"], known["sha256"])
        if path is None:
            return None
        file = _File(path)
        with self._lock:
            self._files[number] = file
            while len(self._files) > self._most:  # a thread that still reads it holds it open
                del self._files[next(iter(self._files))]
        return file


class _File:
    """A shard that is open for reading, until nothing refers to it."""

    descriptor = -1

    def __init__(self, path: Path):
        self.descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.descriptor >= 0:
            close(self.descriptor)


def _fill_each(
    held: Mapping[int, _File | None],
    shards: list[int],
    offsets: list[int],
    flat: list[np.ndarray],
    size: int,
    flags: int = 0,
) -> int:
    """Read samples that are apart; return how many, up to the first that cannot be read like this. The loop is short:
    the thread that trains waits while it runs Python.

    Args:
        held: the shards by their numbers.
        flags: of `os.preadv`.
    """
    done = 0
    with contextlib.suppress(OSError):
        for shard, offset, *buffers in zip(shards, offsets, *flat, strict=True):
            file = held[shard]
            if file is None or os.preadv(file.descriptor, buffers, offset, flags) != size:
                break
            done += 1
    return done


def _reason(error: BaseException | None) -> str:
    return getattr(error, "strerror", None) or str(error or "the shard ends before it")


def damaged_file(where: object, reason: str) -> errors.UserError:
    """Return the error for a file of a pack that is not what the manifest says."""
    return errors.UserError(f"a file of the pack is damaged: {reason}", where, _AGAIN)
