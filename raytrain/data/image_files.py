"""The files of images: their bytes, a quick look at them, and the disk cache of their pixels."""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from raytrain import errors, files
from raytrain.data import byte_files, cache, decode
from raytrain.data.source import Index
from raytrain.files import is_url

_AT_URL = 64
"""Images at a URL that a probe looks at."""


def content(path: str) -> bytes:
    """Return the bytes of a file.

    Raises:
        BadSample: it cannot be read.
    """
    try:
        return byte_files.content(path, decode.MAX_BYTES) if is_url(path) else _bytes(path)
    except (ValueError, OSError) as error:
        raise errors.BadSample(byte_files.shown(path), files.reason(error)) from error


def contents(base: str, names: list[str]) -> Iterator[bytes]:
    """Yield the bytes of files below a folder; of a URL, several are fetched at once.

    Raises:
        BadSample: one of them cannot be read.
    """
    paths = [byte_files.joined(base, name) for name in names]
    return byte_files.at_once(content, paths) if any(map(is_url, paths)) else map(content, paths)


def part(place: tuple[str, int, int]) -> bytes:
    """Return the bytes of an image inside a file.

    Args:
        place: the file's path or URL, where the image begins, and its bytes.

    Raises:
        BadSample: it cannot be read.
    """
    path, offset, length = place
    try:
        if length > decode.MAX_BYTES:
            raise ValueError(f"{length:,} bytes are more than {decode.MAX_BYTES:,}")
        return byte_files.part(path, offset, length)
    except (ValueError, OSError) as error:
        raise errors.BadSample(byte_files.shown(path), files.reason(error)) from error


def parts(places: list[tuple[str, int, int]]) -> Iterator[bytes]:
    """Yield the bytes of images inside files at a URL, several of which are fetched at once; see `part`."""
    return byte_files.at_once(part, places)


def probe_some(base: str, names: list[str], channels: int) -> list[errors.BadSample]:
    """Look at some images at a URL, evenly chosen; return which of them cannot be read.

    Raises:
        UserError: storage does not answer, or refuses the credentials.
    """
    first = next(path for path in (byte_files.joined(base, name) for name in names) if is_url(path))
    try:  # one before the others, since the user waits: each of them would fail, after several attempts
        byte_files.opened(first).close()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise byte_files.refused(first, error) from None

    def look(name: str) -> errors.BadSample | None:
        try:
            decode.check(content(byte_files.joined(base, name)), channels)
        except errors.BadSample as error:
            return error
        except ValueError as error:
            return errors.BadSample(byte_files.shown(byte_files.joined(base, name)), str(error))
        return None

    step = -(-len(names) // _AT_URL) or 1
    return [bad for bad in byte_files.at_once(look, names[::step]) if bad]


def probe(path: str, channels: int) -> errors.BadSample | None:
    """Look at both ends of a file, and decode it if it looks damaged; return why it cannot be read, if it cannot."""
    try:
        with _opened(path) as descriptor:
            size = _size(descriptor)
            head = os.pread(descriptor, 32, 0)
            if decode.suspicious(head, os.pread(descriptor, 64, max(0, size - 64))):
                decode.pixels(_bytes(path), channels)
    except (ValueError, OSError) as error:
        return errors.BadSample(path, files.reason(error))
    return None


def pixel_size(path: str) -> tuple[int, int] | None:
    """Return an image's width and height from its header; None if it cannot be read."""
    try:
        with _opened(path) as descriptor:
            _size(descriptor)
            with open(os.dup(descriptor), "rb") as file:
                return decode.pixel_size(file)
    except (ValueError, OSError):
        return None


def pixel_size_of(raw: bytes) -> tuple[int, int] | None:
    """Return the width and height of an encoded image; None if it is damaged."""
    try:
        return decode.pixel_size(io.BytesIO(raw))
    except ValueError:
        return None


def string_array(names: list[str] | list[str | None], root: str = "") -> pa.StringArray:
    """Return the names of files below a folder, or their paths, as one array.

    Raises:
        UserError: a name is not UTF-8.
    """
    try:
        return pa.array(names, pa.string())
    except UnicodeEncodeError as error:
        where = os.path.join(root, error.object)
        raise errors.UserError("the file is broken: its name is not UTF-8", where, "rename it") from None


def cache_entry(
    folder: Path, index: Index, root: str, size: int, channels: int, resampling: str, squashed: bool
) -> Path:
    """Return the cache entry for the pixels of some files, decoded to one size."""
    named = [root, size, channels, decode.VERSION, decode.libraries()]
    named += [resampling] if resampling != "bilinear" else []
    named += ["squashed"] if squashed else []
    return cache.entry(folder, index, repr(tuple(named)))


def known_bad(entry: Path, index: Index) -> list[errors.BadSample] | None:
    """Return the files that could not be read when the cache entry was written; None if it is not there."""
    known = cache.load_bad(entry, index)
    return None if known is None else [errors.BadSample(path, reason) for _, path, reason in known]


@contextlib.contextmanager
def _opened(path: str | Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # without O_NONBLOCK, a named pipe would wait for a writer
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _size(descriptor: int) -> int:
    """Return the size of an open file in bytes.

    Raises:
        ValueError: it is a pipe, a device or a folder, or too large for an image.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if status.st_size > decode.MAX_BYTES:
        raise ValueError(f"{status.st_size:,} bytes are more than {decode.MAX_BYTES:,}")
    return status.st_size


def _bytes(path: str) -> bytes:
    """Return a file's bytes, with fewer system calls than `open`."""
    with _opened(path) as descriptor:
        left, parts = _size(descriptor), []
        while left and (part := os.read(descriptor, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
