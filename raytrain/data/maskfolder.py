"""MaskFolder: a folder of images, and one of masks with the same names."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice, takewhile
from typing import Any, NamedTuple

import numpy as np

from raytrain import errors
from raytrain.config import check
from raytrain.data.hold_out import FRACTION, hold_out, told, with_train
from raytrain.data.images import SPLITS, split_folders
from raytrain.data.late import with_pillow
from raytrain.data.masks import MaskedImages, MaskIndex, beside, hint
from raytrain.data.source import Field, Index
from raytrain.files import reason

_SHOWN = 3
"""Files that a note names."""
_TRIED = 50
"""Masks whose names are compared with that of an image without one."""

Entries = Callable[[str], dict[str, bool]]
"""The names in a folder below the root, and whether each is a folder."""


class _Side(NamedTuple):
    """The images of a split, or its masks.

    Attributes:
        what: image or mask.
        folder: below the root.
        ending: what the files' names end in.
    """

    what: str
    folder: str
    ending: str

    def name(self, path: str) -> str | None:
        """Return a file's path below the folder without its suffix and ending; None for one that ends otherwise."""
        for whole in (os.path.splitext(path)[0], path):
            if whole.lower().endswith(self.ending.lower()):
                return whole[len(self.folder) + 1 : len(whole) - len(self.ending)]
        return None

    def is_of(self, path: str, other: _Side) -> bool:
        """Return whether a file in this folder is of the other side, whose folder is the same one, or lies in it."""
        if other.folder != self.folder:
            return path.startswith(f"{other.folder}/") and other.folder.startswith(f"{self.folder}/")
        longer = len(other.ending) > len(self.ending)
        return other.name(path) is not None and (longer or self.name(path) is None)


class _Files(NamedTuple):
    """The files of a side.

    Attributes:
        rows: the row of each in the other columns, by its name; in order.
        twice: a further file of the same name.
        unnamed: files that end otherwise.
        ignored: files of other kinds.
    """

    paths: list[str]
    sizes: np.ndarray
    times: np.ndarray
    rows: dict[str, int]
    twice: dict[str, str]
    unnamed: list[str]
    ignored: list[str]


@dataclass(frozen=True)
class MaskFolder(MaskedImages):
    """Images in ROOT/images/ and a mask for each in ROOT/masks/, for `Segmentation`: the same path below both folders,
    as images/a/1.jpg and masks/a/1.png. Splits are folders below these, as images/train/ and masks/train/, or above
    them, as train/images/ and train/masks/ (train, val and test, or the names that `ImageFolder` knows). Without val a
    part is held out."""

    images: str = field(default="images", kw_only=True)
    """The folder of images below `root`, or below each split's."""
    masks: str = field(default="masks", kw_only=True)
    """The folder of masks. A mask has its image's shape and a number for each pixel (PNG, GIF or TIFF, grey or with a
    palette): the pixel's class, or 255 if it has none."""
    image_ending: str = field(default="", kw_only=True)
    """What the images' names end in after what they share with the masks', as _leftImg8bit; it may include the suffix,
    as .jpg. Other images are left out."""
    mask_ending: str = field(default="", kw_only=True)
    """What the masks' names end in, as _mask or _gtFine_labelIds."""
    val_fraction: float = field(default=0.2, kw_only=True)
    """Share of the images that is held out for validation if there is no val folder."""
    split_seed: int = field(default=0, kw_only=True)
    """Seed that chooses the held-out images."""

    def __post_init__(self) -> None:
        inside = (
            lambda name: bool(_parts(name)) and ".." not in _parts(name) and name[0] != "/",
            "that is a folder below data.root",
        )
        check(self, val_fraction=FRACTION, images=inside, masks=inside)
        if _parts(self.images) == _parts(self.masks) and self.image_ending == self.mask_ending:
            what = f"images and masks are both in {self.images!r}, and their names end alike"
            raise errors.UserError(what, "in data", "say how the names end: --data.mask_ending _mask")
        super().__post_init__()

    def index(self) -> dict[str, Index]:
        """Return the images of each split, in the order of their names."""
        if not self.root:
            raise errors.no_root("MaskFolder")
        tree = with_pillow().trees.tree(self.root)
        try:
            splits = {split: self._scan(tree, split, *folders) for split, folders in self._folders(tree).items()}
        except OSError as error:
            raise errors.UserError(f"the file is broken: {reason(error)}", error.filename, "make it readable") from None
        notes = [note for index in splits.values() if index is not None for note in index.notes]
        if splits.get("test", self) is None:
            notes.append(f"{tree.root}: no image of test has a mask, so test is left out")
        found = {split: replace(index, notes=()) for split, index in splits.items() if index is not None}
        if "val" not in found and not self.folds.count:
            whole = found["train"]
            rest, held_out = hold_out(self, np.zeros(len(whole), np.int64))
            if not len(held_out):
                raise errors.UserError("there is one image alone", tree.root, "give it a val folder, or more images")
            found["train"], found["val"] = whole.take(rest), replace(whole.take(held_out), split="val", ignored=())
            notes.insert(0, f"{tree.root} has no val folder: {told(self, 'the images is')}")
        found["train"] = replace(found["train"], notes=(*notes, *self.missing_notes(found)))
        return {split: found[split] for split in SPLITS if split in found}

    def fitted(self) -> MaskFolder | None:
        """Return the source, with the endings that give each image of train its mask if no names are equal and there is
        one way; None if no image has a mask."""
        try:
            tree = with_pillow().trees.tree(self.root)
            images, own = self._sides(*self._folders(tree)["train"])
            files, of_masks = self._files(tree, images, own), self._files(tree, own, images)
        except (errors.UserError, OSError):  # reported when it is read
            return None
        if files.rows.keys() & of_masks.rows.keys():
            return self
        found = _endings(files, of_masks) if files.rows else []
        return self._ending(*found[0]) if len(found) == 1 else None

    def _ending(self, image: str, mask: str) -> MaskFolder:
        """Return the source with further endings before its own."""
        return replace(self, image_ending=image + self.image_ending, mask_ending=mask + self.mask_ending)

    def _folders(self, tree: Any) -> dict[str, tuple[str, str]]:
        """Return the folders of images and of masks of each split, that of test's masks perhaps missing; without
        splits those of train.

        Raises:
            UserError: a folder is missing.
            OSError: one cannot be read.
        """
        entries = cache(tree.entries)
        images, own = "/".join(_parts(self.images)), "/".join(_parts(self.masks))
        above = split_folders(_inside(entries, "") or ())
        if _inside(entries, images) is None and any(
            _inside(entries, f"{name}/{images}") is not None for name in above.values()
        ):
            found, start = {split: (f"{name}/{images}", f"{name}/{own}") for split, name in above.items()}, ""
        else:
            names = split_folders(_there(tree, entries, images, "images"))
            others = split_folders(_there(tree, entries, own, "masks"))
            found = {split: (f"{images}/{name}", f"{own}/{others.get(split, name)}") for split, name in names.items()}
            found, start = found or {"train": (images, own)}, images
        found = with_train(self, found)
        if "train" not in found:
            where = os.path.join(tree.root, start) if start else tree.root
            raise errors.UserError("no train folder there", where, f"give it one beside {errors.listed(found)}")
        for split, (one, other) in found.items():
            _there(tree, entries, one, "images")
            if split != "test":
                _there(tree, entries, other, "masks")
        return found

    def _sides(self, images: str, own: str) -> tuple[_Side, _Side]:
        return _Side("image", images, self.image_ending), _Side("mask", own, self.mask_ending)

    def _files(self, tree: Any, side: _Side, other: _Side) -> _Files:
        """Return the files of a side; none if its folder is not there."""
        if side.what == "mask":
            tree = with_pillow().trees.tree(self.root, _suffixes())
        there = _inside(tree.entries, side.folder) is not None
        folders = next(iter(tree.below([side.folder]))) if there else []
        paths = [path for folder in folders for path in folder.images]
        sizes, times = (
            np.array([one for each in folders for one in getattr(each, name)], np.int64) for name in ("sizes", "times")
        )
        rows, twice, unnamed = dict[str, int](), dict[str, str](), list[str]()
        for row, path in enumerate(paths):
            if side.is_of(path, other):
                continue
            name = side.name(path)
            if name is None:
                unnamed.append(path)
            elif rows.setdefault(name, row) != row:
                twice[name] = path
        ignored = [path for folder in folders for path in folder.ignored if not side.is_of(path, other)]
        return _Files(paths, sizes, times, rows, twice, unnamed, ignored)

    def _scan(self, tree: Any, split: str, images_folder: str, masks_folder: str) -> MaskIndex | None:
        """Return the images of a split with their masks; None for a test without any mask.

        Raises:
            UserError: there are no images, or one has no mask, or two.
            OSError: a folder cannot be read.
        """
        images, own = self._sides(images_folder, masks_folder)
        files, of_masks = self._files(tree, images, own), self._files(tree, own, images)
        if not files.rows:
            raise _nothing(tree, images, files)
        lacking = [name for name in files.rows if name not in of_masks.rows]
        if split == "test" and len(lacking) == len(files.rows):
            return None
        if not of_masks.rows:
            raise _nothing(tree, own, of_masks)
        meant = self.missing_mask is not None and len(lacking) < len(files.rows) and not _endings(files, of_masks)
        if lacking and not meant:
            raise self._no_mask(tree, own, files, of_masks, lacking)
        for name in files.rows if files.twice or of_masks.twice else ():
            _check_one(tree, files, of_masks, name)
        rows, of = np.array([*files.rows.values()]), np.array([of_masks.rows.get(name, -1) for name in files.rows])
        alone = [of_masks.paths[row] for name, row in of_masks.rows.items() if name not in files.rows]
        string_array = with_pillow().image_files.string_array
        image = Field("image", (self.channels, self.size, self.size), kind="image")
        return MaskIndex(
            fields=(image, beside(image)),
            count=len(rows),
            values=self.mask_values,
            missing=self.missing_mask,
            split=split,
            paths=string_array([files.paths[row] for row in rows], str(tree.root)),
            sizes=files.sizes[rows],
            times=np.maximum(files.times[rows], np.where(of < 0, 0, of_masks.times[of])),
            masks=string_array([None if row < 0 else of_masks.paths[row] for row in of], str(tree.root)),
            mask_sizes=np.where(of < 0, 0, of_masks.sizes[of]),
            ignored=tuple(map(_shown, files.ignored)),
            notes=(
                *_left_out("masks without an image", alone),
                *_left_out(f"images whose names do not end in {self.image_ending!r}", files.unnamed),
            ),
        )

    def _no_mask(self, tree: Any, own: _Side, files: _Files, of_masks: _Files, lacking: list[str]) -> errors.UserError:
        """Return the error for images without a mask."""
        what = f"the image has no mask ({len(lacking):,} of {len(files.rows):,} have none)"
        meant = [self._ending(*found) for found in _endings(files, of_masks)]
        flags = [
            " ".join(
                f"--data.{name} {value}" for name in ("image_ending", "mask_ending") if (value := getattr(one, name))
            )
            for one in meant
        ]
        how = errors.did_you_mean(flags)
        if not how and len(lacking) == len(files.rows):
            mask = os.path.basename(next(iter(of_masks.paths)))
            how = f"masks are called such as {mask}: names must be equal but for endings (--data.mask_ending); or "
        wanted = os.path.join(own.folder, lacking[0] + own.ending)
        wanted += "" if os.path.splitext(wanted)[1].lower() in _suffixes() else ".png"
        where = os.path.join(tree.root, files.paths[files.rows[lacking[0]]])
        may_be = self.missing_mask is None and len(lacking) < len(files.rows)
        rest = f"; {hint(self)}" if may_be else ""
        return errors.UserError(what, where, f"{how}add {wanted}, or remove the image{rest}")


def recognised(place: str, tree: Any) -> MaskFolder | None:
    """Return the source that a folder with images/ and masks/ is, also below train/; None for another folder. Beside
    images/ there may also be one folder alone, of any name, if its files have the images' names.

    Args:
        place: the folder or its URL.
        tree: its folders.

    Raises:
        OSError: one of them cannot be read.
    """
    top = _inside(tree.entries, "") or []
    train = split_folders(top).get("train")
    for names in (top, _inside(tree.entries, train) or [] if train else []):
        known = {name.lower(): name for name in names}
        if "images" not in known or ("masks" not in known and len(known) != 2):
            continue
        images = known.pop("images")
        found = MaskFolder(place, images=images, masks=known.get("masks") or next(iter(known.values())))
        return found.fitted() or (found if "masks" in known else None)
    return None


def _suffixes() -> tuple[str, ...]:
    """Return the suffixes of masks: those of images, and one whose palette holds numbers."""
    return (*with_pillow().trees.EXTENSIONS, ".gif")


def _parts(folder: str) -> list[str]:
    """Return the names in a path."""
    return [name for name in folder.split("/") if name not in ("", ".")]


def _inside(entries: Entries, path: str) -> list[str] | None:
    """Return the names of the folders in one below the root that are not hidden; None if it is not there."""
    folder = ""
    for name in path.split("/") if path else ():
        if not entries(folder).get(name):
            return None
        folder = f"{folder}/{name}" if folder else name
    return with_pillow().trees.parted(entries(folder))[1]


def _there(tree: Any, entries: Entries, path: str, field: str) -> list[str]:
    """Return the names of the folders in one below the root.

    Raises:
        UserError: it is not there.
    """
    if (found := _inside(entries, path)) is not None:
        return found
    above, name, names = path, "", None
    while names is None:
        above, _, name = above.rpartition("/")
        names = _inside(entries, above)
    flag = f"--data.{field}"
    how = f"{errors.nearest(name, names)}the folders are {errors.listed(names)}: name one by {flag}"
    where = os.path.join(tree.root, above) if above else tree.root
    raise errors.UserError(
        f"no folder {name!r} there", where, how if names else f"it has none: give the folder above it, or {flag}"
    )


def _nothing(tree: Any, side: _Side, files: _Files) -> errors.UserError:
    """Return the error for a folder without images, or without masks."""
    where, flag = os.path.join(tree.root, side.folder), f"--data.{side.what}"
    if files.unnamed:
        what = f"no {side.what}'s name ends in {side.ending!r}"
        return errors.UserError(what, where, f"they are such as {os.path.basename(files.unnamed[0])}: {flag}_ending")
    kinds = Counter(os.path.splitext(path)[1].lower() for path in files.ignored)
    found = [kind for kind, _ in kinds.most_common(3) if kind]
    how = f"convert its {' and '.join(found)} files to .png" if found else "put them there"
    return errors.UserError(f"no {side.what}s there", where, f"{how}, or name another folder by {flag}s")


def _check_one(tree: Any, images: _Files, of_masks: _Files, name: str) -> None:
    """Check that an image has one mask, and a mask one image."""
    image, mask = images.paths[images.rows[name]], of_masks.paths[of_masks.rows[name]]
    if other := of_masks.twice.get(name):
        what = f"the image has two masks, {mask} and {other}"
        raise errors.UserError(what, os.path.join(tree.root, image), "remove one, or give --data.mask_ending")
    if other := images.twice.get(name):
        what = f"the mask is that of two images, {image} and {other}"
        raise errors.UserError(what, os.path.join(tree.root, mask), "remove one, or give --data.image_ending")


def _left_out(what: str, paths: list[str]) -> list[str]:
    """Return a note about files that are left out, if there are any."""
    return [f"{what} are left out: {errors.listed(map(_shown, paths), _SHOWN)}"] if paths else []


def _shown(path: str) -> str:
    """Return a path as it may be printed, if its name is not UTF-8."""
    return os.fsencode(path).decode(errors="replace")


def _endings(images: _Files, of_masks: _Files) -> list[tuple[str, str]]:
    """Return the endings of the names of images and of masks with which the most images, and more than half of them,
    would have their masks. One of the first images without a mask may have none at all."""
    names = list(images.rows)
    firsts = islice((name for name in names if name not in of_masks.rows), 3)
    had = {
        (image, own): sum(name.endswith(image) and name.removesuffix(image) + own in of_masks.rows for name in names)
        for image, own in dict.fromkeys(ending for first in firsts for ending in _endings_of(first, of_masks))
    }
    return [one for one, count in had.items() if count == max(had.values()) and 2 * count > len(names)]


def _endings_of(first: str, of_masks: _Files) -> Iterator[tuple[str, str]]:
    """Yield the endings with which an image would have one of the masks whose names begin most like its own."""
    folder = os.path.dirname(first)
    start = len(folder) + 1 if folder else 0
    shared = {name: _alike(first, name) for name in of_masks.rows if os.path.dirname(name) == folder}
    most = max(shared.values(), default=0)
    for mask in islice((name for name, length in shared.items() if length == most > start), _TRIED):
        word = re.search(r"(?<=.)[\W_]+[^\W_]*$", first[start:most])  # an ending begins with a whole word
        end = start + word.start() if word and first[most:] and mask[most:] else most
        yield first[end:], mask[end:]


def _alike(one: str, other: str) -> int:
    """Return with how many equal letters two names begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
