"""ImageFolder: a folder a class, a file an image."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from raytrain import errors, order
from raytrain.config import above, at_least, check
from raytrain.data import decode
from raytrain.data.source import Data, Index

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""The file names that are images, as in torchvision's ImageFolder; all others, and hidden ones, are reported as
ignored."""

_SPLITS = {"train": ("train", "trainset"), "val": ("val", "valset"), "test": ("test", "testset")}
_LAYOUT = "give --data.root a folder with train/<class>/*.jpg and val/<class>/*.jpg, or with <class>/*.jpg alone"
_PROBES = 20_000


@dataclass(frozen=True)
class ImageFolder(Data):
    """Images in ROOT/train|val|test/<class>/ (or trainset, valset, testset), or in ROOT/<class>/ with a part of each
    class held out."""

    root: str = ""
    """The folder."""
    size: int = 256
    """Side at which images are kept: the central square of each, resized."""
    crop: int | None = 224
    """Side of the square that the model sees, cut from the stored image; None takes all of it."""
    channels: Literal[1, 3] = 3
    """3 for RGB, 1 for grey."""
    val_fraction: float = 0.2
    """Share of each class that validates, where there is no val folder."""
    split_seed: int = 0
    """Chooses which images those are."""
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    """Mean of the pixels; ImageNet's by default."""
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    """Standard deviation of the pixels; ImageNet's by default."""

    def __post_init__(self) -> None:
        per_channel = (
            lambda values: len(values) in (1, self.channels),
            f"of 1 number or one a channel ({self.channels})",
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
        found = {
            split: next((name for name in names if (root / name).is_dir()), None) for split, names in _SPLITS.items()
        }
        if found["train"] is None and (found["val"] or found["test"]):
            raise errors.no_data(root, "train folder", _LAYOUT)
        folders = {split: name for split, name in found.items() if name} or {"train": ""}
        try:
            splits = {split: self._scan(root, name, split) for split, name in folders.items()}
        except OSError as error:
            raise errors.broken_file(error.filename, error.strerror or str(error), "make it readable") from None
        for split, index in splits.items():
            if index.classes != splits["train"].classes:
                raise errors.classes_differ(splits["train"].classes, index.classes, split, root)
        if "val" not in splits:
            rest, held_out = order.stratified(splits["train"].labels, self.val_fraction, self.split_seed)
            if not len(held_out):
                raise errors.no_data(root, "class with two images", "give it a val folder, or more images")
            whole = splits["train"]
            splits["train"], splits["val"] = whole.take(rest), replace(whole.take(held_out), split="val", ignored=())
        return splits

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        """Decodes files to their central squares, [k, channels, size, size]."""
        assert index.paths is not None
        images = np.empty((len(samples), *index.shape), np.uint8)
        for image, sample in zip(images, samples, strict=True):
            path = os.path.join(os.path.expanduser(self.root), index.name(sample))
            try:
                with open(path, "rb") as file:
                    image[:] = decode.square(file.read(), self.size, self.channels)
            except (ValueError, OSError) as error:
                raise errors.BadSample(path, getattr(error, "strerror", None) or str(error)) from None
        return images

    def probe(self, index: Index) -> list[errors.BadSample]:
        """Looks at both ends of each file (of 20,000 evenly chosen ones, where there are more), and decodes those
        that look damaged."""
        chosen = np.unique(np.linspace(0, len(index) - 1, min(len(index), _PROBES)).astype(np.int64))
        with ThreadPoolExecutor(8) as pool:
            return [bad for bad in pool.map(lambda sample: self._probe(index, sample), chosen) if bad]

    def _probe(self, index: Index, sample: int) -> errors.BadSample | None:
        path = os.path.join(os.path.expanduser(self.root), index.name(sample))
        try:
            with open(path, "rb") as file:
                head = file.read(32)
                file.seek(max(0, os.fstat(file.fileno()).st_size - 64))
                if decode.suspicious(head, file.read()):
                    file.seek(0)
                    decode.pixels(file.read(), self.channels)
        except (ValueError, OSError) as error:
            return errors.BadSample(path, getattr(error, "strerror", None) or str(error))
        return None

    def _scan(self, root: Path, folder: str, split: str) -> Index:
        import pyarrow as pa

        base, ignored = root / folder, []
        classes = []
        for entry in sorted(os.scandir(base), key=lambda entry: entry.name):
            (classes if entry.is_dir() and not entry.name.startswith(".") else ignored).append(entry.name)
        paths, labels, sizes = [], [], []
        for label, name in enumerate(classes):
            images = []
            for path, size in _files(base / name, os.path.join(folder, name)):
                if path.lower().endswith(EXTENSIONS) and os.sep + "." not in path:
                    images.append((path, size))
                else:
                    ignored.append(os.path.relpath(path, folder) if folder else path)
            if not images and len(classes) > 1:
                raise errors.empty_class(base / name)
            images.sort(key=lambda image: os.path.split(image[0]))  # a folder's own files, then those below it
            paths += [path for path, _ in images]
            sizes += [size for _, size in images]
            labels += [label] * len(images)
        if not paths:
            raise errors.no_data(base, "class folders with images", _LAYOUT)
        try:
            names = pa.array(paths)
        except UnicodeEncodeError as error:
            raise errors.broken_file(root / error.object, "its name is not UTF-8", "rename it") from None
        return Index(
            np.array(labels, np.int64),
            tuple(classes),
            (self.channels, self.size, self.size),
            split,
            paths=names,
            sizes=np.array(sizes, np.int64),
            ignored=tuple(os.fsencode(os.path.join(folder, name)).decode(errors="replace") for name in ignored),
        )


def _files(folder: Path, prefix: str) -> Iterator[tuple[str, int]]:
    """(path below the root, size in bytes) of all files below a folder, links followed."""
    for entry in os.scandir(folder):
        path = os.path.join(prefix, entry.name)
        if entry.is_dir():
            yield from _files(Path(entry.path), path)
        else:
            try:
                yield path, entry.stat().st_size
            except OSError:  # a dangling link: reading it will say so
                yield path, 0
