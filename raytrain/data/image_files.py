"""The files of an ImageFolder: folders of images, their bytes and pixels, and the disk cache of the pixels."""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from raytrain import errors
from raytrain.data import cache, decode, tables  # noqa: F401  (tables for `Manifest`, by `with_pillow`)
from raytrain.data.packs import opened as opened_pack  # noqa: F401  (for `Packed`, by `with_pillow`)
from raytrain.data.source import Index

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""The suffixes of images, as in torchvision's ImageFolder. Other files and hidden files are reported as ignored."""


def content(path: str) -> bytes:
    """Return the bytes of a file.

    Raises:
        BadSample: it cannot be read.
    """
    try:
        return _bytes(path)
    except (ValueError, OSError) as error:
        raise errors.BadSample(path, getattr(error, "strerror", None) or str(error)) from error


def probe(path: str, channels: int) -> errors.BadSample | None:
    """Look at both ends of a file, and decode it if it looks damaged; return why it cannot be read, if it cannot."""
    try:
        with _opened(path) as descriptor:
            size = _size(descriptor)
            head = os.pread(descriptor, 32, 0)
            if decode.suspicious(head, os.pread(descriptor, 64, max(0, size - 64))):
                decode.pixels(_bytes(path), channels)
    except (ValueError, OSError) as error:
        return errors.BadSample(path, getattr(error, "strerror", None) or str(error))
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


def string_array(names: list[str]) -> pa.StringArray:
    """Return names as one array.

    Raises:
        UnicodeEncodeError: a name is not UTF-8.
    """
    return pa.array(names)


def cache_folder(name: str) -> Path:
    """Return the folder of the disk cache; `auto` is the default one."""
    return cache.default_folder() if name == "auto" else Path(name).expanduser()


def cache_entry(folder: Path, index: Index, root: str, size: int, channels: int) -> Path:
    """Return the cache entry for the pixels of some files, decoded to one size."""
    return cache.entry(folder, index, repr((root, size, channels, decode.VERSION, decode.libraries())))


def known_bad(entry: Path, index: Index) -> list[errors.BadSample] | None:
    """Return the files that could not be read when the cache entry was written; None if it is not there."""
    known = cache.load_bad(entry, index)
    return None if known is None else [errors.BadSample(path, reason) for _, path, reason in known]


class Folder(NamedTuple):
    """A folder's own images, in order, with their sizes and times; its other files; the folders in it."""

    images: list[str]
    sizes: list[int]
    times: list[int]
    ignored: list[str]
    folders: list[str]


def class_folders(root: Path, name: str) -> list[Folder]:
    """Return the folder of a class and all folders below it, links followed, in the order of their names."""
    found, names = {}, [name]
    for folder in names:  # grows in the loop
        found[folder] = _folder(root, folder)
        names += found[folder].folders
    return [found[folder] for folder in sorted(found)]


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: reported when it is read
        return False


def _folder(root: Path, name: str) -> Folder:
    images, ignored, folders, sizes, times = [], [], [], [], []
    hidden = os.sep + "." in name
    for entry in os.scandir(root / name):
        file = entry.name
        if is_folder(entry):
            (ignored if _leads_back(entry) else folders).append(file)
        elif file.lower().endswith(EXTENSIONS) and not file.startswith(".") and not hidden:
            images.append(file)
        else:
            ignored.append(file)
    images.sort()
    with _opened(root / name) as descriptor:  # names below an open folder are found faster than whole paths
        for file in images:
            try:
                status = os.stat(file, dir_fd=descriptor)
                sizes.append(status.st_size)
                # Not st_mtime: a file that replaces another may keep its old time.
                times.append(status.st_ctime_ns)
            except OSError:  # a dangling link: reported when it is read
                sizes.append(0)
                times.append(0)
    images, ignored, folders = ([f"{name}{os.sep}{file}" for file in files] for files in (images, ignored, folders))
    return Folder(images, sizes, times, ignored, folders)


def _leads_back(entry: os.DirEntry[str]) -> bool:
    """Return whether a folder is a link to one of its parents, which would never end."""
    return entry.is_symlink() and any(os.path.samefile(entry.path, parent) for parent in Path(entry.path).parents)


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
