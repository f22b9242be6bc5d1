"""The folders of an ImageFolder or a MaskFolder, on this machine or at a URL: the same files in the same order."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from raytrain import errors
from raytrain.data import byte_files
from raytrain.files import is_url

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""The suffixes of images, as in torchvision's ImageFolder. Other files and hidden files are reported as ignored."""
OTHER_KINDS = frozenset(
    f".{kind}" for kind in "gif jfif jpe heic heif avif jxl jp2 tga psd svg dng cr2 nef dcm".split()
)
"""Suffixes of images that are not read, and can be renamed or converted."""


class Folder(NamedTuple):
    """A folder's own images, in order, with their sizes and times; its other files; the folders in it."""

    images: list[str]
    sizes: list[int]
    times: list[int]
    ignored: list[str]
    folders: list[str]


class LocalTree:
    """Folders on this machine.

    Attributes:
        began: when the first of them was listed, in ns.
        seen: the stamps of those that were listed, from before.
    """

    def __init__(self, root: Path, suffixes: tuple[str, ...] = EXTENSIONS):
        self.root, self.suffixes, self.began = root, suffixes, time.time_ns()
        self.seen: dict[str, list[int]] = {}

    def entries(self, folder: str) -> dict[str, bool]:
        """Return the names in a folder, sorted, and whether each is a folder or a link to one that does not lead back.

        Raises:
            OSError: it cannot be read; of a URL a UserError.
        """
        self.seen[folder] = stamp(self.root, folder)
        found = sorted(os.scandir(self.root / folder), key=lambda one: one.name)
        return {one.name: _is_folder(one) and not _leads_back(one) for one in found}

    def below(self, names: list[str]) -> Iterator[list[Folder]]:
        """Yield for each of some folders itself and all folders below it, links followed, in the order of their names.

        Raises:
            OSError: one cannot be read; of a URL a UserError.
        """
        for name in names:
            found, inside = {}, [name]
            for folder in inside:  # grows in the loop
                self.seen[folder] = stamp(self.root, folder)
                found[folder] = _folder(self.root, folder, self.suffixes)
                inside += found[folder].folders
            yield [found[folder] for folder in sorted(found)]


class UrlTree:
    """Folders at a URL, several of which are listed at once."""

    def __init__(self, url: str, suffixes: tuple[str, ...] = EXTENSIONS):
        self.url, self.root, self.suffixes = url, byte_files.shown(url), suffixes

    def entries(self, folder: str) -> dict[str, bool]:
        """Return the names in a folder, as `LocalTree.entries` does."""
        found = self._listed(folder, recursive=False)
        return {one.path: one.size is None for one in found}

    def below(self, names: list[str]) -> Iterator[list[Folder]]:
        """Yield folders, as `LocalTree.below` does."""
        listings = byte_files.at_once(lambda name: self._listed(name, recursive=True), names)
        for name, files in zip(names, listings, strict=True):
            found = {name: Folder([], [], [], [], [])}
            for file in files:
                inside, _, own = file.path.rpartition("/")
                folder = f"{name}/{inside}" if inside else name
                for above in _parents(name, inside):
                    if above not in found:
                        found[above] = Folder([], [], [], [], [])
                        found[above.rpartition("/")[0]].folders.append(above)
                _sort_in(found[folder], f"{folder}/{own}", own, file, self.suffixes)
            yield [found[folder] for folder in sorted(found)]

    def _listed(self, folder: str, recursive: bool) -> list[byte_files.File]:
        try:
            url = byte_files.joined(self.url, folder) if folder else self.url
            return byte_files.listed(url, recursive, first=not folder)
        except (OSError, ValueError) as error:
            raise byte_files.refused(self.url, error) from None


def tree(root: str, suffixes: tuple[str, ...] = EXTENSIONS) -> LocalTree | UrlTree:
    """Return the folders of a root.

    Args:
        suffixes: those of the files that count as images, in lower case.

    Raises:
        UserError: there is no such folder, it is a file, or out of reach; a URL is noticed when it is listed.
    """
    if is_url(root):
        return UrlTree(root, suffixes)
    path = Path(os.path.expanduser(root))
    if os.path.isfile(path):
        raise errors.UserError(
            "this is a file, and not a folder of images", path, "give the folder that holds the images"
        )
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise errors.no_such_file(path, "folder") from None
    except OSError as error:
        raise errors.UserError(f"the folder cannot be read: {error.strerror}", path, "make it readable") from None
    return LocalTree(path, suffixes)


def parted(entries: dict[str, bool]) -> tuple[list[str], list[str]]:
    """Return the names of the files in a folder, and of the folders that are not hidden.

    Args:
        entries: what `LocalTree.entries` returns.
    """
    folders = [name for name, is_folder in entries.items() if is_folder and not name.startswith(".")]
    return [name for name, is_folder in entries.items() if not is_folder], folders


def stamp(root: Path, folder: str) -> list[int]:
    """Return what changes when an entry of a folder is added, removed or renamed: its number, and its times of change
    in ns; nothing for one that is gone."""
    try:
        status = os.stat(root / folder)
    except OSError:
        return []
    return [status.st_ino, status.st_mtime_ns, status.st_ctime_ns]


def _parents(name: str, inside: str) -> list[str]:
    """Return the folders from a class's first one on down to a folder inside it."""
    parts = inside.split("/") if inside else []
    return ["/".join([name, *parts[: number + 1]]) for number in range(len(parts))]


def _is_image(path: str, name: str, suffixes: tuple[str, ...]) -> bool:
    return name.lower().endswith(suffixes) and os.sep + "." not in path


def _sort_in(folder: Folder, path: str, name: str, file: byte_files.File, suffixes: tuple[str, ...]) -> None:
    if not _is_image(path, name, suffixes):
        folder.ignored.append(path)
        return
    folder.images.append(path)
    folder.sizes.append(file.size or 0)
    folder.times.append(file.time)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: reported when it is read
        return False


def _folder(root: Path, name: str, suffixes: tuple[str, ...]) -> Folder:
    images, ignored, folders, sizes, times = [], [], [], [], []
    for entry in os.scandir(root / name):
        file = entry.name
        if _is_folder(entry):
            (ignored if _leads_back(entry) else folders).append(file)
        elif _is_image(f"{name}{os.sep}{file}", file, suffixes):
            images.append(file)
        else:
            ignored.append(file)
    images.sort()
    ignored.sort()
    descriptor = os.open(root / name, os.O_RDONLY | os.O_DIRECTORY)
    try:  # names below an open folder are found faster than whole paths
        for file in images:
            try:
                status = os.stat(file, dir_fd=descriptor)
                sizes.append(status.st_size)
                # Not st_mtime: a file that replaces another may keep its old time.
                times.append(status.st_ctime_ns)
            except OSError:  # a dangling link: reported when it is read
                sizes.append(0)
                times.append(0)
    finally:
        os.close(descriptor)
    images, ignored, folders = ([f"{name}{os.sep}{file}" for file in files] for files in (images, ignored, folders))
    return Folder(images, sizes, times, ignored, folders)


def _leads_back(entry: os.DirEntry[str]) -> bool:
    """Return whether a folder is a link to one of its parents, which would never end."""
    parents = Path(os.path.abspath(entry.path)).parents
    return entry.is_symlink() and any(os.path.samefile(entry.path, parent) for parent in parents)
