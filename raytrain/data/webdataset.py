"""WebDataset: tar shards that hold an image and a label for each sample."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from raytrain import errors
from raytrain.config import check
from raytrain.data.hold_out import FRACTION, hold_out, told, with_train
from raytrain.data.images import SPLITS, Images, splits_of
from raytrain.data.late import with_pillow
from raytrain.data.source import Index
from raytrain.files import is_url

COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
"""Suffixes of shards that must be unpacked first: images are read by their offsets."""


@dataclass(frozen=True)
class WebDataset(Images):
    """Images in tar shards, as WebDataset writes them: members 000.jpg and 000.cls are one sample."""

    root: str = ""
    """A shard, a folder of shards or a pattern such as shards/train-{000..010}.tar, on this machine or at a URL."""
    label: str = "cls"
    """Suffix of the member with the label, a class's name or number, such as cls or v1.cls; `json.NAME` is entry NAME
    of a .json member."""
    image: str = field(default="", kw_only=True)
    """Suffix of the member with the image, such as jpg, where samples have several images."""
    classes: tuple[str, ...] = ()
    """Names of the classes, where the labels are numbers from 0."""
    val_fraction: float = 0.2
    """Share of each class that is held out for validation if no shard's name tells that it is of val."""
    split_seed: int = 0
    """Seed that chooses the held-out images."""

    def __post_init__(self) -> None:
        check(self, val_fraction=FRACTION)
        super().__post_init__()
        if self._label_suffix.startswith("json") and not self._label_suffix.startswith("json."):
            raise errors.UserError("label names a .json member, but no entry", "in WebDataset", 'write "json.label"')

    @property
    def _label_suffix(self) -> str:
        """`label` as the suffixes of members are compared with it: in lower case, but for the NAME of `json.NAME`."""
        suffix, dot, entry = self.label.lstrip(".").partition(".")
        return suffix.lower() + dot + (entry if suffix.lower() == "json" else entry.lower())

    @property
    def _image_suffix(self) -> str:
        """`image` as the suffixes of members are compared with it."""
        return self.image.lower().lstrip(".")

    def index(self) -> dict[str, Index]:
        """Return the samples of each split, in the order of the shards. A shard's split is told by its name."""
        if not self.root:
            raise errors.no_root("WebDataset")
        tars = with_pillow().tars
        files = tars.shards(self.root)
        kept = None if self.cache == "off" else self._cache_folder()
        table = tars.members(files, self._label_suffix, self._image_suffix, kept)
        if not len(table):
            how = "give shards with members such as 000.jpg and 000.cls"
            raise errors.UserError("no shard holds an image", tars.byte_files.shown(self.root), how)
        shard = table["shard"].to_numpy()
        labels, classes = self._labels(table, files)
        sizes = table["size"].to_numpy()
        paths = with_pillow().tables.strings(table["name"])
        splits = self._splits(files)
        whole = tars.TarIndex(
            labels,
            classes,
            (self.channels, self.size, self.size),
            rows=np.arange(len(table)),
            paths=paths,
            sizes=sizes,
            times=np.array([one.time for one in files], np.int64)[shard],
            shards=tuple(one.path if is_url(one.path) else os.path.abspath(one.path) for one in files),
            shard=shard,
            offset=table["offset"].to_numpy(),
            length=sizes,
        )
        of = splits[shard]
        found = {
            split: replace(whole.take(np.flatnonzero(of == number)), split=split)
            for number, split in enumerate(SPLITS)
            if (of == number).any()
        }
        found = with_train(self, found)
        if "train" not in found:
            raise errors.UserError("no shard is of the split train", self.root, "put train into its name")
        if "val" not in found and not self.folds.count:
            rest, held_out = hold_out(self, found["train"].labels)
            if not len(held_out):
                raise errors.UserError("no class has two images", self.root, "add shards of val, or more images")
            train = found["train"]
            found |= {"train": train.take(rest), "val": replace(train.take(held_out), split="val")}
        return {split: found[split] for split in SPLITS if split in found}

    def encoded(self, index: Any, samples: np.ndarray) -> Iterator[bytes]:  # type: ignore[override]
        """Yield the bytes of some images, from their places in the shards."""
        rows = index.rows[samples]
        numbers, shards = index.shard[rows].tolist(), index.shards
        wanted = [
            (shards[number], offset, length)
            for number, offset, length in zip(
                numbers, index.offset[rows].tolist(), index.length[rows].tolist(), strict=True
            )
        ]
        images = with_pillow().image_files
        return images.parts(wanted) if is_url(self.root) else map(images.part, wanted)

    def where(self, index: Any, sample: int) -> str:  # type: ignore[override]
        """Return a sample's shard and the name of its image in it."""
        shard = index.shards[index.shard[index.rows[sample]]]
        return f"{with_pillow().byte_files.shown(shard)}: {index.name(sample)}"

    def notes(self) -> list[str]:
        """Return notes for the plan: that samples are left out, that a part is held out, and that decoded images cannot
        be cached."""
        tars = with_pillow().tars
        files, found = tars.shards(self.root), []
        count, first = tars.left_out(files, self._label_suffix, self._image_suffix)
        if count:
            samples = ("samples have", "are") if count > 1 else ("sample has", "is")
            kinds = " ".join(tars.EXTENSIONS)
            left = f"{count:,} {samples[0]} a label and no image, and {samples[1]} left out"
            found = [f"{left}: {first}{' ...' if count > 1 else ''} (images are {kinds})"]
        if 1 not in self._splits(files) and not self.folds.count:
            found.append(f"no shard's name tells that it is of val: {told(self)}")
        return [*found, *super().notes()]

    def cache_entry(self, index: Index) -> Path | None:
        """Return the cache entry, named by the shards, their times and how images are decoded."""
        if self.cache == "off" or not self.decodes or self.own_code:
            return None
        entry, folder = with_pillow().image_files.cache_entry, self._cache_folder()
        return entry(folder, index, self.root, self.size, self.channels, self.resampling, self.squashed)

    def _splits(self, files: list[Any]) -> np.ndarray:
        """Return the number of each shard's split in SPLITS, int64 [shards]; train if no name tells one."""
        found = splits_of([with_pillow().byte_files.shown(one.path) for one in files])
        return np.zeros(len(files), np.int64) if found is None else found

    def _labels(self, table: Any, files: list[Any]) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return each sample's label, int64 [n], and the classes."""
        tars = with_pillow().tars
        codes, names = with_pillow().tables.coded(table["label"])
        shown = with_pillow().byte_files.shown
        if (codes < 0).any():
            row = int(codes.argmin())
            suffix, entry = tars.parted(self._label_suffix)
            name = table["name"][row].as_py()
            what = f"{name!r} has no label" + (f" {entry!r} in its .json" if entry else "")
            # Of 0.v1.jpg the suffix is v1.jpg: the label is probably in 0.v1.cls.
            between_ = name.rpartition("/")[2].split(".")[1:-1]
            other = ".".join([*between_, suffix]) if between_ and not entry else "json.label"
            how = f"add a member of the suffix .{suffix}, or name another: --data.label {other}"
            raise errors.UserError(what, shown(files[table["shard"][row].as_py()].path), how)
        if not all(name.isdecimal() for name in names):
            if self.classes and sorted(self.classes) != names:
                how = "name all classes of the labels, or leave classes out"
                raise errors.UserError(f"the labels are {errors.listed(names)}", "in data.classes", how)
            order_ = {name: place for place, name in enumerate(self.classes or names)}
            return np.array([order_[name] for name in names], np.int64)[codes], self.classes or tuple(names)
        numbers = np.array([int(name[:40]) for name in names], object)  # perhaps larger than int64 holds
        count = len(self.classes) or int(numbers.max()) + 1
        if numbers.max() >= count or (not self.classes and len(set(numbers)) < count):
            what = f"the labels must be 0 to n - 1 without gaps, got {errors.listed(sorted(numbers.tolist()))}"
            how = "number the classes from 0" if not self.classes else "name a class for each number"
            raise errors.UserError(what, shown(self.root), f"{how}, or give data.classes")
        return numbers.astype(np.int64)[codes], self.classes or tuple(str(number) for number in range(count))
