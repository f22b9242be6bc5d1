"""ImageFolder: a folder a class, a file an image."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from raytrain import errors, order
from raytrain.config import above, at_least, check
from raytrain.data import decode
from raytrain.data.checks import classes_differ
from raytrain.data.source import Data, Index

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""The file names that are images, as in torchvision's ImageFolder; all others, and hidden ones, are reported as
ignored."""

_SPLITS = {
    "train": ("train", "training", "trainset"),
    "val": ("val", "valid", "validation", "valset"),
    "test": ("test", "testing", "testset"),
}
_LAYOUT = "give --data.root a folder with train/<class>/*.jpg and val/<class>/*.jpg, or with <class>/*.jpg alone"
_GREY = ", such as --data.mean 0.449 --data.std 0.226 for grey images"
_PROBES = 20_000
_THREADS = 8


@dataclass(frozen=True)
class ImageFolder(Data):
    """Images in ROOT/train|val|test/<class>/ (also training, valid, validation, testing, trainset, valset and testset,
    in any case), or in ROOT/<class>/ with a part of each class held out."""

    root: str = ""
    """The folder."""
    size: int = 256
    """Side at which images are kept: the central square of each, resized."""
    crop: int | None = field(default=224, kw_only=True)
    """Side of the square that the model sees, cut from the stored image; None takes all of it."""
    channels: Literal[1, 3] = 3
    """3 for RGB, 1 for grey."""
    cache: str = "auto"
    """Folder that keeps the decoded images, so that the next run on the same files starts without decoding; `auto` is
    $XDG_CACHE_HOME/raytrain or ~/.cache/raytrain, `off` keeps none. It holds at most 20 GiB, or a tenth of the free
    disk, and may be removed at any time."""
    val_fraction: float = 0.2
    """Share of each class that validates, where there is no val folder."""
    split_seed: int = 0
    """Chooses which images those are."""
    mean: tuple[float, ...] = field(default=(0.485, 0.456, 0.406), kw_only=True)
    """Mean of the pixels; ImageNet's by default."""
    std: tuple[float, ...] = field(default=(0.229, 0.224, 0.225), kw_only=True)
    """Standard deviation of the pixels; ImageNet's by default."""

    def __post_init__(self) -> None:
        per_channel = (
            lambda values: len(values) in (1, self.channels),
            f"of 1 number or one a channel ({self.channels})" + (_GREY if self.channels == 1 else ""),
        )
        check(
            self,
            size=at_least(1),
            mean=per_channel,
            std=per_channel,
            val_fraction=(lambda share: 0 < share < 1, "between 0 and 1"),
            crop=above(0),
        )
        super().__post_init__()

    def index(self) -> dict[str, Index]:
        """Lists the files of each split, classes and files in the order of their names."""
        if not self.root:
            raise errors.no_root("ImageFolder")
        root = Path(self.root).expanduser()
        if not root.is_dir():
            raise errors.no_such_file(root, "folder")
        try:
            found = _split_folders(root)
            if "train" not in found and found:
                raise errors.UserError("no train folder there", root, _LAYOUT)
            folders = found or {"train": ""}
            splits = {split: self._scan(root, name, split) for split, name in folders.items()}
        except OSError as error:
            raise errors.UserError(
                f"the file is broken: {error.strerror or str(error)}", error.filename, "make it readable"
            ) from None
        for split, index in splits.items():
            if index.classes != splits["train"].classes:
                raise classes_differ(splits["train"].classes, index.classes, split, root)
        if "val" not in splits:
            rest, held_out = order.stratified(splits["train"].labels, self.val_fraction, self.split_seed)
            if not len(held_out):
                raise errors.UserError("no class with two images there", root, "give it a val folder, or more images")
            whole = splits["train"]
            splits["train"], splits["val"] = whole.take(rest), replace(whole.take(held_out), split="val", ignored=())
        return {split: splits[split] for split in _SPLITS if split in splits}

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        """Decodes files to their central squares, [k, channels, size, size]."""
        images = np.empty((len(samples), *index.shape), np.uint8)
        root = os.path.expanduser(self.root)
        for image, name in zip(images, index.names(samples), strict=True):
            path = os.path.join(root, name)
            try:
                image[:] = decode.square(_bytes(path), self.size, self.channels)
            except (ValueError, OSError) as error:
                raise errors.BadSample(path, getattr(error, "strerror", None) or str(error)) from error
        return images

    def notes(self) -> list[str]:
        """Return what to know before a run: that a part of train/ validates, that decoded images cannot be kept."""
        return [*self._held_out(), *self._uncached()]

    def _held_out(self) -> list[str]:
        found = _split_folders(root) if (root := Path(self.root).expanduser()).is_dir() else {}
        if "train" not in found or "val" in found:
            return []
        share = f"{self.val_fraction:.0%} of each class of {found['train']} validates (--data.val_fraction)"
        return [f"{self.root} has no val folder: {share}"]

    def _uncached(self) -> list[str]:
        if self.cache == "off":
            return []
        folder = self._cache_folder()
        there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            return []
        return [f"decoded images cannot be kept in {folder}: the next run decodes them again (--data.cache FOLDER)"]

    def cache_entry(self, index: Index) -> Path | None:
        """An entry of the cache folder, named by the files, their times and how they are decoded."""
        if self.cache == "off" or index.times is None or type(self).read is not ImageFolder.read:
            return None
        from raytrain.data import cache

        root = os.path.abspath(os.path.expanduser(self.root))
        return cache.entry(
            self._cache_folder(), index, repr((root, self.size, self.channels, decode.VERSION, decode.libraries()))
        )

    def _cache_folder(self) -> Path:
        from raytrain.data import cache

        return cache.default_folder() if self.cache == "auto" else Path(self.cache).expanduser()

    def probe(self, index: Index) -> list[errors.BadSample]:
        """Looks at both ends of each file (of 20,000 evenly chosen ones, where there are more), and decodes those
        that look damaged. Where the disk cache has the split, it knows."""
        from raytrain.data import cache

        entry = self.cache_entry(index)
        known = None if entry is None else cache.load_bad(entry, index)
        if known is not None:
            return [errors.BadSample(path, reason) for _, path, reason in known]
        chosen = np.unique(np.linspace(0, len(index) - 1, min(len(index), _PROBES)).astype(np.int64))
        root, names = os.path.expanduser(self.root), index.names(chosen)
        shares = [names[start : start + 500] for start in range(0, len(names), 500)]  # a future for each costs more
        with ThreadPoolExecutor(_THREADS) as pool:
            probed = pool.map(lambda share: [self._probe(os.path.join(root, name)) for name in share], shares)
            return [bad for share in probed for bad in share if bad]

    def _probe(self, path: str) -> errors.BadSample | None:
        try:
            with _opened(path) as descriptor:
                size = _size(descriptor)
                head = os.pread(descriptor, 32, 0)
                if decode.suspicious(head, os.pread(descriptor, 64, max(0, size - 64))):
                    decode.pixels(_bytes(path), self.channels)
        except (ValueError, OSError) as error:
            return errors.BadSample(path, getattr(error, "strerror", None) or str(error))
        return None

    def _scan(self, root: Path, folder: str, split: str) -> Index:
        import pyarrow as pa

        base, ignored = root / folder, []
        classes = []
        for entry in sorted(os.scandir(base), key=lambda entry: entry.name):
            (classes if _is_folder(entry) and not entry.name.startswith(".") else ignored).append(entry.name)
        paths, labels, sizes, times = [], [], [], []
        for label, name in enumerate(classes):
            before, strays = len(paths), len(ignored)
            found = _class_folders(root, os.path.join(folder, name))
            if train := _splits_of(os.path.basename(inside) for inside in found[0].folders).get("train"):
                how = f"did you mean --data.root {base / name}?"
                raise errors.UserError(f"a class folder has a folder {train}", str(base / name), how)
            for images in found:
                paths += images.images
                sizes += images.sizes
                times += images.times
                ignored += [os.path.relpath(path, folder) if folder else path for path in images.ignored]
            if len(paths) == before and len(classes) > 1:
                raise _empty_class(base / name, *_wrong_kinds(ignored[strays:]))
            labels.append(np.full(len(paths) - before, label, np.int64))
        if not paths:
            raise errors.UserError("no class folders with images there", base, _LAYOUT)
        try:
            names = pa.array(paths)
        except UnicodeEncodeError as error:
            raise errors.UserError(
                "the file is broken: its name is not UTF-8", root / error.object, "rename it"
            ) from None
        return Index(
            np.concatenate(labels),
            tuple(classes),
            (self.channels, self.size, self.size),
            split,
            paths=names,
            sizes=np.array(sizes, np.int64),
            times=np.array(times, np.int64),
            ignored=tuple(os.fsencode(os.path.join(folder, name)).decode(errors="replace") for name in ignored),
        )


def _split_folders(root: Path) -> dict[str, str]:
    """Return the name of each split's folder, of those that are there."""
    return _splits_of(entry.name for entry in os.scandir(root) if _is_folder(entry))


def _splits_of(names: Iterable[str]) -> dict[str, str]:
    folders = {name.lower(): name for name in names}
    found = {split: next((name for name in known if name in folders), None) for split, known in _SPLITS.items()}
    return {split: folders[name] for split, name in found.items() if name}


def _wrong_kinds(files: list[str]) -> list[str]:
    """Return the suffixes of files that are no images, the most frequent first."""
    kinds = Counter(suffix for file in files if (suffix := Path(file).suffix.lower()))
    return [kind for kind, _ in kinds.most_common(3)]


class _Folder(NamedTuple):
    """A folder's own images, in order, with their sizes and times; its other files; the folders in it."""

    images: list[str]
    sizes: list[int]
    times: list[int]
    ignored: list[str]
    folders: list[str]


def _class_folders(root: Path, name: str) -> list[_Folder]:
    """All folders below a class's, links followed, in the order of their names; its own stands first."""
    found, names = {}, [name]
    for folder in names:  # it grows on the way
        found[folder] = _folder(root, folder)
        names += found[folder].folders
    return [found[folder] for folder in sorted(found)]


def _folder(root: Path, name: str) -> _Folder:
    images, ignored, folders, sizes, times = [], [], [], [], []
    hidden = os.sep + "." in name
    for entry in os.scandir(root / name):
        file = entry.name
        if _is_folder(entry):
            (ignored if _leads_back(entry) else folders).append(file)
        elif file.lower().endswith(EXTENSIONS) and not file.startswith(".") and not hidden:
            images.append(file)
        else:
            ignored.append(file)
    images.sort()
    with _opened(root / name) as descriptor:  # names below an open folder are found in less time than whole paths
        for file in images:
            try:
                status = os.stat(file, dir_fd=descriptor)
                sizes.append(status.st_size)
                # Not st_mtime: a file that replaces another may bring its old time along.
                times.append(status.st_ctime_ns)
            except OSError:  # a dangling link: reading it will say so
                sizes.append(0)
                times.append(0)
    images, ignored, folders = ([f"{name}{os.sep}{file}" for file in files] for files in (images, ignored, folders))
    return _Folder(images, sizes, times, ignored, folders)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: reading it will say so
        return False


def _leads_back(entry: os.DirEntry[str]) -> bool:
    """Whether a folder is a link to one that it is in, which would have no end."""
    return entry.is_symlink() and any(os.path.samefile(entry.path, parent) for parent in Path(entry.path).parents)


@contextlib.contextmanager
def _opened(path: str | Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a named pipe would else wait for somebody to write
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _size(descriptor: int) -> int:
    """Bytes of an open file.

    Raises:
        ValueError: it is a pipe, a device or a folder, or too large for an image.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is no regular file")
    if status.st_size > decode.MAX_BYTES:
        raise ValueError(f"{status.st_size:,} bytes are more than {decode.MAX_BYTES:,}")
    return status.st_size


def _bytes(path: str) -> bytes:
    """A file's bytes; `open` also asks for its position."""
    with _opened(path) as descriptor:
        left, parts = _size(descriptor), []
        while left and (part := os.read(descriptor, left)):
            parts.append(part)
            left -= len(part)
        return b"".join(parts)


def _empty_class(folder: Path | str, *kinds: str) -> errors.UserError:
    convert = f"convert its {' and '.join(kinds)} files to .jpg or .png" if kinds else "put its images there"
    return errors.UserError("a class folder has no images", folder, f"remove the folder or {convert}")
