"""ImageFolder: a folder for each class, a file for each image."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from raytrain import errors
from raytrain.config import check
from raytrain.data.checks import classes_differ
from raytrain.data.hold_out import FRACTION, hold_out, told, with_train
from raytrain.data.images import SPLITS, FileImages, split_folders
from raytrain.data.late import with_pillow
from raytrain.data.source import Index
from raytrain.files import is_url, reason

_LAYOUT = "give a folder with train/<class>/*.jpg and val/<class>/*.jpg, or with <class>/*.jpg alone"


@dataclass(frozen=True)
class ImageFolder(FileImages):
    """Images in ROOT/train|val|test/<class>/ (also training, valid, validation, testing, trainset, valset and testset,
    in any case), or in ROOT/<class>/ with a part of each class held out."""

    val_fraction: float = 0.2
    """Share of each class that is held out for validation if there is no val folder."""
    split_seed: int = 0
    """Seed that chooses the held-out images."""
    verify: Literal["auto", "all"] = field(default="auto", kw_only=True)
    """How a start notices changes among 20,000 files and more, whose list is kept in `cache`. auto takes the list if no
    folder's time has changed, so files that were added, removed or renamed are always noticed, and looks for 5 s at
    files that may have been written to in place; all lists the folders again and looks at each file."""

    def __post_init__(self) -> None:
        check(self, val_fraction=FRACTION)
        super().__post_init__()

    def index(self) -> dict[str, Index]:
        """Return the files of each split, classes and files in the order of their names."""
        if not self.root:
            raise errors.no_root("ImageFolder")
        tree = with_pillow().trees.tree(self.root)
        root = tree.root
        try:
            found = with_train(self, _split_folders(tree))
            if "train" not in found and found:
                raise errors.UserError("no train folder there", root, _layout(tree, found))
            folders = found or {"train": ""}
            splits = self._listed(tree, folders)
        except OSError as error:
            raise errors.UserError(f"the file is broken: {reason(error)}", error.filename, "make it readable") from None
        for split, index in splits.items():
            if index.classes != splits["train"].classes:
                raise classes_differ(splits["train"].classes, index.classes, split, root)
        if "val" not in splits and not self.folds.count:
            rest, held_out = hold_out(self, splits["train"].labels)
            if not len(held_out):
                raise errors.UserError("no class with two images there", root, "give it a val folder, or more images")
            whole = splits["train"]
            splits["train"], splits["val"] = whole.take(rest), replace(whole.take(held_out), split="val", ignored=())
        return {split: splits[split] for split in SPLITS if split in splits}

    def notes(self) -> list[str]:
        """Return notes for the plan: that a part of train/ is held out, and that decoded images cannot be cached."""
        return [*self._held_out(), *super().notes()]

    def size_notes(self, index: Index) -> list[str]:
        """Return what becomes of the images' pixels, and that not all files were looked at."""
        unseen = f"not all {len(index):,} files could be looked at in {with_pillow().listing.SECONDS:.0f} s: contents"
        unseen += " that changed in place may go unnoticed, and decoded images are not cached (--data.verify all)"
        partly = index.times is None and type(self).index is ImageFolder.index
        return [*super().size_notes(index), *([unseen] if partly else [])]

    def _listed(self, tree: Any, folders: dict[str, str]) -> dict[str, Index]:
        """Return the files of each split, as they were kept by an earlier start, or listed now."""
        listing, shape = with_pillow().listing, (self.channels, self.size, self.size)
        folder = None if self.cache == "off" else self._cache_folder()
        if folder is not None and self.verify == "auto" and (known := listing.load(folder, tree, folders, shape)):
            if known.all_seen:
                return known.splits
            return {split: replace(index, times=None) for split, index in known.splits.items()}
        splits = {split: self._scan(tree, name, split) for split, name in folders.items()}
        if folder is not None:
            listing.store(folder, tree, folders, splits)
        return splits

    def _held_out(self) -> list[str]:
        there = is_url(self.root) or os.path.isdir(os.path.expanduser(self.root))
        if not there or self.folds.count:
            return []
        tree = with_pillow().trees.tree(self.root)
        found = _split_folders(tree)
        if not found and any(tree.entries("").values()):  # folders of classes
            return [f"{self.root} has no folders of splits: {told(self)}"]
        if "train" not in found or "val" in found:
            return []
        share = told(self, f"each class of {found['train']} is")
        test = "; test is left for `raytrain evaluate --split test`" if "test" in found else ""
        return [f"{self.root} has no val folder: {share}{test}"]

    def _scan(self, tree: Any, folder: str, split: str) -> Index:
        files, ignored, classes = with_pillow().image_files, [], []
        base = os.path.join(tree.root, folder) if folder else str(tree.root)
        for name, inside in tree.entries(folder).items():
            (classes if inside and not name.startswith(".") else ignored).append(name)
        paths, labels, sizes, times = [], [], [], []
        below = tree.below([os.path.join(folder, name) for name in classes])
        for label, (name, found) in enumerate(zip(classes, below, strict=True)):
            before, strays = len(paths), len(ignored)
            if train := split_folders(os.path.basename(inside) for inside in found[0].folders).get("train"):
                how = f"did you mean {os.path.join(base, name)}?"
                raise errors.UserError(f"a class folder has a folder {train}", os.path.join(base, name), how)
            for images in found:
                paths += images.images
                sizes += images.sizes
                times += images.times
                ignored += [os.path.relpath(path, folder) if folder else path for path in images.ignored]
            if len(classes) == 1 and not found[0].images:
                _check_one_class(os.path.join(base, name), [os.path.basename(one) for one in found[0].folders])
            if len(paths) == before and len(classes) > 1:
                raise _empty_class(os.path.join(base, name), *_wrong_kinds(ignored[strays:]))
            labels.append(np.full(len(paths) - before, label, np.int64))
        if not paths:
            how = _layout(tree, _split_folders(tree) if folder else {})
            raise errors.UserError("no class folders with images there", base, how)
        return Index(
            np.concatenate(labels),
            tuple(classes),
            (self.channels, self.size, self.size),
            split,
            paths=files.string_array(paths, str(tree.root)),
            sizes=np.array(sizes, np.int64),
            times=np.array(times, np.int64),
            ignored=tuple(os.fsencode(os.path.join(folder, name)).decode(errors="replace") for name in ignored),
        )


def _split_folders(tree: Any) -> dict[str, str]:
    """Return the names of the splits' folders that exist."""
    return split_folders(name for name, inside in tree.entries("").items() if inside)


def _layout(tree: Any, splits: dict[str, str]) -> str:
    """Return how the folders are to lie; if others are beside those of the splits, also what to do with classes that
    are called like splits."""
    names = sorted(splits.values())
    others = [name for name, inside in tree.entries("").items() if inside and name not in names and name[0] != "."]
    if not names or not others:
        return _LAYOUT
    return (
        f"{_LAYOUT}; if {errors.listed(names)} and {others[0]} are classes, put all class folders into one called train"
    )


def _wrong_kinds(files: list[str]) -> list[str]:
    """Return the suffixes of images of kinds that are not read, the most frequent first."""
    other = with_pillow().trees.OTHER_KINDS
    kinds = Counter(suffix for file in files if (suffix := Path(file).suffix.lower()) in other)
    return [kind for kind, _ in kinds.most_common(3)]


def _check_one_class(folder: str, inside: list[str]) -> None:
    """Check that the only class, without images of its own, is not the folder that holds the classes."""
    names = sorted(name for name in inside if not name.startswith("."))
    if len(names) > 1:
        what = f"there is one class, whose images are in {len(names)} folders: {errors.listed(names, 3)}"
        raise errors.UserError(what, folder, f"did you mean {folder}?")


def _empty_class(folder: Path | str, *kinds: str) -> errors.UserError:
    convert = f"convert its {' and '.join(kinds)} files to .jpg or .png" if kinds else "put its images there"
    return errors.UserError("a class folder has no images", folder, f"remove the folder or {convert}")
