"""ImageFolder: a folder a class, a file an image."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from raytrain import errors, order
from raytrain.config import at_least, check
from raytrain.data.checks import classes_differ
from raytrain.data.source import Data, Index

_SPLITS = {
    "train": ("train", "training", "trainset"),
    "val": ("val", "valid", "validation", "valset"),
    "test": ("test", "testing", "testset"),
}
_LAYOUT = "give --data.root a folder with train/<class>/*.jpg and val/<class>/*.jpg, or with <class>/*.jpg alone"
_CROP = 224
"""The largest side that `crop=auto` takes."""
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's RGB images."""
_GREY = (0.449,), (0.226,)
"""The same for grey: the means of the three."""
_MEASURED = 32
"""Files whose size in pixels the plan looks up."""
_ENLARGED = 1.5
"""Ratio of enlargement above which the plan suggests a smaller size."""
_PROBES = 20_000
_THREADS = 8


@dataclass(frozen=True)
class ImageFolder(Data):
    """Images in ROOT/train|val|test/<class>/ (also training, valid, validation, testing, trainset, valset and testset,
    in any case), or in ROOT/<class>/ with a part of each class held out."""

    root: str = ""
    """The folder."""
    size: int = 256
    """Side of the stored images: the central square of each image, resized."""
    crop: int | Literal["auto"] | None = field(default="auto", kw_only=True)  # type: ignore[override]
    """Side of the square that the model sees, cut from the stored image. auto takes 224, or all of a smaller image;
    None takes all of any image."""
    channels: Literal[1, 3] = 3
    """3 for RGB, 1 for grey."""
    cache: str = "auto"
    """Folder that caches the decoded images, so that the next run on the same files starts without decoding. `auto` is
    $XDG_CACHE_HOME/raytrain or ~/.cache/raytrain; `off` caches nothing. It holds at most 20 GiB, or a tenth of the free
    disk, and may be removed at any time."""
    val_fraction: float = 0.2
    """Share of each class that is held out for validation if there is no val folder."""
    split_seed: int = 0
    """Seed that chooses the held-out images."""
    mean: tuple[float, ...] | None = field(default=None, kw_only=True)  # type: ignore[override]
    """Mean of the pixels. None takes ImageNet's: (0.485, 0.456, 0.406) for RGB, 0.449 for grey."""
    std: tuple[float, ...] | None = field(default=None, kw_only=True)  # type: ignore[override]
    """Standard deviation of the pixels. None takes ImageNet's: (0.229, 0.224, 0.225) for RGB, 0.226 for grey."""

    def __post_init__(self) -> None:
        per_channel = (
            lambda values: len(values) in (1, self.channels),
            f"of 1 number or one per channel ({self.channels}), or None for ImageNet's",
        )
        check(
            self,
            size=at_least(1),
            mean=per_channel,
            std=per_channel,
            val_fraction=(lambda share: 0 < share < 1, "between 0 and 1"),
        )
        super().__post_init__()

    @property
    def input_side(self) -> int | None:
        """Side of the square that the model sees; None is the whole stored image."""
        return min(_CROP, self.size) if self.crop == "auto" else self.crop

    def normalisation(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and std for images of that many channels, ImageNet's where they are None."""
        mean, std = _IMAGENET if channels == 3 else _GREY
        return self.mean or mean, self.std or std

    def index(self) -> dict[str, Index]:
        """Return the files of each split, classes and files in the order of their names."""
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
        """Decode files to their central squares, uint8 [k, channels, size, size]."""
        square, images = _files().square, np.empty((len(samples), *index.shape), np.uint8)
        root = os.path.expanduser(self.root)
        for image, name in zip(images, index.names(samples), strict=True):
            image[:] = square(os.path.join(root, name), self.size, self.channels)
        return images

    def notes(self) -> list[str]:
        """Return notes for the plan: that a part of train/ is held out, and that decoded images cannot be cached."""
        return [*self._held_out(), *self._uncached()]

    def _held_out(self) -> list[str]:
        found = _split_folders(root) if (root := Path(self.root).expanduser()).is_dir() else {}
        if "train" not in found or "val" in found:
            return []
        share = (
            f"{self.val_fraction:.0%} of each class of {found['train']} is used for validation (--data.val_fraction)"
        )
        test = "; test is left for `raytrain evaluate --split test`" if "test" in found else ""
        return [f"{self.root} has no val folder: {share}{test}"]

    def size_notes(self, index: Index) -> list[str]:
        """Return what becomes of the files' pixels, and a size that fits if they are enlarged much."""
        if index.paths is None or type(self).read is not ImageFolder.read:
            return []
        chosen = np.unique(np.linspace(0, len(index) - 1, min(len(index), _MEASURED)).astype(np.int64))
        root = os.path.expanduser(self.root)
        found = [_files().pixel_size(os.path.join(root, name)) for name in index.names(chosen)]
        found = sorted((size for size in found if size), key=min)
        if not found:
            return []
        width, height = found[len(found) // 2]
        side = self.input_side or self.size
        seen = "" if side == self.size else f", of which the model sees {side} x {side}"
        note = f"files of about {width} x {height} pixels become {self.size} x {self.size}{seen}"
        short = min(width, height)
        if self.size > _ENLARGED * short:
            fits = f"--data.size {short}" + (" --data.crop auto" if self.crop != "auto" and side > short else "")
            note += f": enlarged {self.size / short:.1f} times, and {fits} would fit"
        return [note]

    def _uncached(self) -> list[str]:
        if self.cache == "off":
            return []
        folder = self._cache_folder()
        there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            return []
        return [f"decoded images cannot be kept in {folder}: the next run decodes them again (--data.cache FOLDER)"]

    def cache_entry(self, index: Index) -> Path | None:
        """Return the cache entry, named by the files, their times and how they are decoded."""
        if self.cache == "off" or index.times is None or type(self).read is not ImageFolder.read:
            return None
        root = os.path.abspath(os.path.expanduser(self.root))
        return _files().cache_entry(self._cache_folder(), index, root, self.size, self.channels)

    def _cache_folder(self) -> Path:
        return _files().cache_folder(self.cache)

    def probe(self, index: Index) -> list[errors.BadSample]:
        """Look at both ends of each file (at most 20,000, evenly chosen), and decode files that look damaged. The disk
        cache answers for a split that it has."""
        files, entry = _files(), self.cache_entry(index)
        known = None if entry is None else files.known_bad(entry, index)
        if known is not None:
            return known
        chosen = np.unique(np.linspace(0, len(index) - 1, min(len(index), _PROBES)).astype(np.int64))
        root, names = os.path.expanduser(self.root), index.names(chosen)
        shares = [names[start : start + 500] for start in range(0, len(names), 500)]  # a future for each costs more
        with ThreadPoolExecutor(_THREADS) as pool:
            probed = pool.map(
                lambda share: [files.probe(os.path.join(root, name), self.channels) for name in share], shares
            )
            return [bad for share in probed for bad in share if bad]

    def _scan(self, root: Path, folder: str, split: str) -> Index:
        files, base, ignored = _files(), root / folder, []
        classes = []
        for entry in sorted(os.scandir(base), key=lambda entry: entry.name):
            (classes if files.is_folder(entry) and not entry.name.startswith(".") else ignored).append(entry.name)
        paths, labels, sizes, times = [], [], [], []
        for label, name in enumerate(classes):
            before, strays = len(paths), len(ignored)
            found = files.class_folders(root, os.path.join(folder, name))
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
            names = files.string_array(paths)
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


def _files():
    """Return the module that reads the files, imported late: Pillow and pyarrow would slow down `--help`."""
    from raytrain.data import image_files

    return image_files


def _split_folders(root: Path) -> dict[str, str]:
    """Return the names of the splits' folders that exist."""
    return _splits_of(entry.name for entry in os.scandir(root) if _files().is_folder(entry))


def _splits_of(names: Iterable[str]) -> dict[str, str]:
    folders = {name.lower(): name for name in names}
    found = {split: next((name for name in known if name in folders), None) for split, known in _SPLITS.items()}
    return {split: folders[name] for split, name in found.items() if name}


def _wrong_kinds(files: list[str]) -> list[str]:
    """Return the suffixes of files that are not images, the most frequent first."""
    kinds = Counter(suffix for file in files if (suffix := Path(file).suffix.lower()))
    return [kind for kind, _ in kinds.most_common(3)]


def _empty_class(folder: Path | str, *kinds: str) -> errors.UserError:
    convert = f"convert its {' and '.join(kinds)} files to .jpg or .png" if kinds else "put its images there"
    return errors.UserError("a class folder has no images", folder, f"remove the folder or {convert}")
