"""Masks beside images: files or cells of a table with a number for each pixel, which become the pixels' classes."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from raytrain import errors
from raytrain.config import check
from raytrain.data.images import SPLITS, FileImages
from raytrain.data.late import with_pillow
from raytrain.data.source import Field, Index
from raytrain.order import spread

IGNORED = 255
"""What pixels without a class have in a mask; `Segmentation.ignore_index` by default."""
_LOOKED_AT = 16
"""Masks that the plan looks at."""
_SHOWN = 24
"""Numbers of masks that a note names."""
_TEST = list(SPLITS).index("test")
_AT_ONCE = 256
"""Rows of a table with bytes in which a mask is looked for at a time."""


@dataclass(frozen=True, eq=False)
class MaskIndex(Index):
    """The samples of one split with a mask each.

    Attributes:
        masks: the path of each sample's mask below the root, null for a sample without one; None for masks in a table.
        mask_sizes: int64 [n], bytes of each mask's file, 0 for missing ones; None where nothing was looked at.
        values: the number of each class in the masks; empty if that is the class's number.
        missing: the number that the pixels of samples without a mask have; None where each has one.
    """

    masks: pa.StringArray | None = None
    mask_sizes: np.ndarray | None = None
    values: tuple[int, ...] = ()
    missing: int | None = None

    @property
    def lacking(self) -> np.ndarray:
        """Which samples have no mask, bool [n]; none as far as is known of masks in a table."""
        return np.zeros(len(self), bool) if self.masks is None else self.masks.is_null().to_numpy(zero_copy_only=False)

    def take(self, samples: np.ndarray) -> MaskIndex:
        """Return the index of some samples (int64 [k]), in their order."""
        found: MaskIndex = super().take(samples)  # type: ignore[assignment]
        masks = None if self.masks is None else self.masks.take(samples)
        return replace(found, masks=masks, mask_sizes=None if self.mask_sizes is None else self.mask_sizes[samples])

    def fingerprint(self) -> str:
        """Return a hash of the samples and their masks' names and sizes, and of what stands for missing ones."""
        masks = ""
        if self.masks is not None:
            masks = Index(paths=self.masks.fill_null(""), sizes=self.mask_sizes).fingerprint()
        told = self.missing is not None and (self.masks is None or self.masks.null_count > 0)
        what = (self.values, masks, self.missing) if told else (self.values, masks)  # as before there was `missing`
        return f"{super().fingerprint()}-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}"


@dataclass(frozen=True)
class MaskedImages(FileImages):
    """The base of sources whose images may have masks: files that `MaskIndex.masks` names, unless a subclass returns
    others from `encoded_masks`."""

    mask_values: tuple[int, ...] = field(default=(), kw_only=True)
    """The numbers of the classes 0, 1, ... in the masks, such as 0 255; pixels of other numbers have no class. Empty:
    the numbers are those of the classes."""
    missing_mask: int | None = field(default=None, kw_only=True)
    """The number of all pixels of an image without a mask, as if it had one: 0 where images without a mask show
    background alone. None: such an image is an error."""

    def __post_init__(self) -> None:
        check(
            self,
            mask_values=(lambda values: len(set(values)) == len(values) < IGNORED, "of at most 254 different ones"),
            missing_mask=(
                lambda number: number in (self.mask_values or range(IGNORED)),
                "that is one of mask_values, or without them a class from 0 to 254",
            ),
        )
        if self.masked and self.whole:
            what = "masks are cut with their images' central squares"
            raise errors.UserError(what, "in data.whole", "leave whole out")
        super().__post_init__()

    @property
    def masked(self) -> bool:
        """Whether each image has a mask, by default."""
        return True

    def encoded_masks(self, index: Any, samples: np.ndarray) -> Iterator[bytes | None]:
        """Yield the encoded masks of some samples (int64 [k]), None for a sample without one."""
        names = index.masks.take(samples).to_pylist()
        found = with_pillow().image_files.contents(self._base(), [name for name in names if name is not None])
        return (None if name is None else next(found) for name in names)

    def beside(self, index: Any, samples: np.ndarray, raws: list[Any]) -> dict[str, np.ndarray]:  # type: ignore[override]
        """Return what is `further`, and with masks the classes of the pixels of some samples, uint8 [k, size, size], as
        `mask`."""
        more = self.further(index, samples)
        if not self.masked:
            return more
        where = [self.where(index, int(sample)) for sample in samples]
        if index.masks is not None:
            files = with_pillow().byte_files
            names = index.masks.take(samples).to_pylist()
            where = [
                image if name is None else files.shown(files.joined(self._base(), name))
                for name, image in zip(names, where, strict=True)
            ]
        encoded = self.encoded_masks(index, samples)
        masks = squares(encoded, raws, where, self.size, self.mask_values, self.missing_mask, self.squashed)
        return {"mask": masks, **more}

    def probe(self, index: Index) -> list[errors.BadSample]:
        """Look at both ends of each image's file, and whether its mask is there."""
        return [*super().probe(index), *missing(index, self._base())]

    def size_notes(self, index: Index) -> list[str]:
        """Return what becomes of the images' pixels, and which numbers some masks have."""
        notes = super().size_notes(index)
        if self.masked and isinstance(index, MaskIndex):
            there = np.flatnonzero(~index.lacking)
            with contextlib.suppress(errors.BadSample):  # training says so, or skips it
                raws = list(self.encoded_masks(index, there[spread(len(there), _LOOKED_AT)]))
                found = [raw for raw in raws if raw is not None]
                notes += [note(found, self.mask_values)] if found else []
                if len(found) < len(raws):  # of a table with bytes, where no other note tells
                    what = f"{len(raws) - len(found)} of {len(raws)} images that were looked at have no mask"
                    notes.append(f"{what}: {_meaning(self.missing_mask)}")
        return notes

    def missing_notes(self, found: dict[str, Any]) -> tuple[str, ...]:
        """Return a note about images without a mask, if there are: how many of each split, and one of them."""
        lacking = {split: rows for split, index in found.items() if (rows := index.lacking).any()}
        if not lacking:
            return ()
        counts = [f"{rows.sum():,} of {len(rows):,} images of {split}" for split, rows in lacking.items()]
        split, rows = next(iter(lacking.items()))
        first = errors.one_line(found[split].name(int(rows.argmax())), 80)
        return (f"{errors.listed(counts)} have no mask, such as {first}: {_meaning(self.missing_mask)}",)


def check_columns(data: Any) -> None:
    """Check the settings of a source with a column of masks.

    Raises:
        UserError: they contradict each other.
    """
    given = [name for name in ("target", "labels", "mask") if getattr(data, name)]
    if len(given) > 1:
        how = f"leave {given[0]} or {given[1]} out"
        raise errors.UserError(f"{given[0]} and {given[1]} are both what is to be predicted", "in data", how)
    for name in ("target", "inputs"):
        columns = getattr(data, name)
        if twice := [one for number, one in enumerate(columns) if one in columns[:number]]:
            raise errors.UserError(f"column {twice[0]!r} is named twice", f"in data.{name}", "leave one out")
    if data.mask and data.mask in (data.bytes, data.path, data.split):
        raise errors.UserError(f"column {data.mask!r} has something else", "in data.mask", "name the column of masks")
    wanted = (*data.target, data.labels, data.mask) if given else (data.label,)
    if taken := {*data.inputs} & {*wanted, data.bytes, data.path, data.split}:
        what = f"column {min(taken)!r} is no further input: it has something else"
        raise errors.UserError(what, "in data.inputs", "leave it out")


def of_rows(
    data: Any, image: Field, table: dict[str, pa.ChunkedArray], splits: np.ndarray, row: Callable[[int], str]
) -> MaskIndex:
    """Return the index of a table's rows, with square masks as large as their images; with a note if no row of test
    has a mask, and test is left out. Its masks are the cells as they are, null for empty ones.

    Args:
        data: the source.
        table: the columns; of masks that are files, empty cells are filled.
        splits: the number of each row's split in `SPLITS`, [n].
        row: gives what messages call a row, by its number from 0.

    Raises:
        UserError: another row has an empty cell, and the source has no `missing_mask`; or no row of a split has a mask.
    """
    found = MaskIndex(fields=(image, beside(image)), count=len(splits), values=data.mask_values)
    found = replace(found, missing=data.missing_mask)
    if data.bytes:  # which are read with the samples
        if data.missing_mask is not None and not _has_mask(data, replace(found, rows=np.arange(len(splits)))):
            raise errors.UserError(
                f"no row has a mask in column {data.mask!r}", data.root, "name another by --data.mask"
            )
        return found
    tables, test = with_pillow().tables, splits == _TEST
    paths = tables.spelling.given(table[data.mask])
    empty = paths.is_null().to_numpy()
    left_out = bool(test.any()) and bool(empty[test].all())
    lacking = empty & ~test if left_out else empty
    for number in np.unique(splits[lacking]):
        rows = splits == number
        if data.missing_mask is None or lacking[rows].all():
            rest = f"; {hint(data)}" if data.missing_mask is None and not lacking[rows].all() else ""
            what = f"{row(int((lacking & rows).argmax()))} has no mask in column {data.mask!r}"
            what += f" ({lacking[rows].sum():,} of {rows.sum():,} rows of {list(SPLITS)[number]} have none)"
            raise errors.UserError(what, data.root, f"give it one, or remove the row{rest}")
    table[data.mask] = paths.fill_null("-")
    notes = (f"{data.root}: no row of test has a mask, so test is left out",) if left_out else ()
    return replace(found, masks=tables.strings(paths), notes=notes)


def _has_mask(data: Any, index: MaskIndex) -> bool:
    """Return whether a sample of a table with bytes has a mask; rows are read until one has."""
    starts = range(0, len(index), _AT_ONCE)
    parts = (np.arange(start, min(start + _AT_ONCE, len(index))) for start in starts)
    return any(raw is not None for part in parts for raw in data.encoded_masks(index, part))


def with_files(index: MaskIndex, paths: pa.StringArray, sizes: np.ndarray | None) -> MaskIndex:
    """Return an index of `of_rows` with the paths of the masks' files and their sizes, in place of the cells."""
    lacking = index.lacking
    if lacking.any():
        names = [None if no else name for no, name in zip(lacking, paths.to_pylist(), strict=True)]
        paths = pa.array(names, pa.string())
        sizes = None if sizes is None else np.where(lacking, 0, sizes)
    return replace(index, masks=paths, mask_sizes=sizes)


def hint(data: MaskedImages) -> str:
    """Return how an error says that images without a mask may be meant."""
    return f"if images without a mask show background alone, use --data.missing_mask {(*data.mask_values, 0)[0]}"


def beside(image: Field) -> Field:
    """Return the field of square masks as large as their images."""
    return Field("mask", image.shape[1:], "uint8", kind="mask", fill=IGNORED)


def squares(
    raws: Iterable[bytes | None],
    images: list[bytes],
    where: list[str],
    side: int,
    values: tuple[int, ...],
    missing: int | None,
    squashed: bool = False,
) -> np.ndarray:
    """Return the classes of the pixels of images' central squares, or of whole images that are `squashed`, uint8 [k,
    side, side]: the number at the middle of each pixel.

    Args:
        raws: the encoded masks; None for a missing one.
        images: the encoded images, which have the same shape.
        where: what messages call the masks.
        values, missing: see `MaskIndex`.

    Raises:
        BadSample: a mask cannot be decoded, does not fit its image, or has numbers above 255 without `values`.
    """
    decode, found = with_pillow().decode, np.empty((len(images), side, side), np.uint8)
    for row, (raw, image) in enumerate(zip(raws, images, strict=True)):
        if raw is None:
            found[row] = _classes(np.array([missing]), values)
            continue
        try:
            numbers, (width, height) = decode.numbers(raw), decode.upright_size(image)
            high, wide = numbers.shape
            if high * width != wide * height:
                raise ValueError(f"it has {wide} x {high} pixels, and its image {width} x {height}")
            top, left, *sizes = decode.box(None, high, wide, squashed)
            down, across = (((np.arange(side) + 0.5) * (size / side)).astype(np.int64) for size in sizes)
            found[row] = _classes(numbers[np.ix_(top + down, left + across)], values)
        except ValueError as error:
            raise errors.BadSample(where[row], f"mask: {error}") from error
    return found


def missing(index: Index, base: str) -> list[errors.BadSample]:
    """Return the samples whose masks are not there, where their files were looked at.

    Args:
        base: the folder that their paths are relative to.
    """
    if not isinstance(index, MaskIndex) or index.masks is None or index.mask_sizes is None:
        return []
    names = index.masks.take(np.flatnonzero((index.mask_sizes == 0) & ~index.lacking)).to_pylist()
    return [errors.BadSample(os.path.join(base, name), "mask: there is no such file, or it is empty") for name in names]


def note(raws: Iterable[bytes], values: tuple[int, ...]) -> str:
    """Return what numbers some masks have, and what to do where they are no classes' numbers."""
    seen = numbers(raws)
    found = f"masks have the numbers {errors.listed(sorted(seen), _SHOWN)}"
    if values:
        others = seen - set(values)
        rest = f", of which {errors.listed(sorted(others), _SHOWN)} do not count" if others else ""
        return f"{found}{rest}"
    if seen <= {0, IGNORED} and IGNORED in seen:
        return f"{found}, and {IGNORED} does not count: --data.mask_values 0 {IGNORED} makes them the classes 0 and 1"
    return f"{found}; {IGNORED} does not count (task.ignore_index)" if IGNORED in seen else found


def numbers(raws: Iterable[bytes]) -> set[int]:
    """Return the numbers in some masks; those that cannot be decoded have none."""
    seen: set[int] = set()
    for raw in raws:
        with contextlib.suppress(ValueError):  # training says so, or skips it
            seen |= set(np.unique(with_pillow().decode.numbers(raw)).tolist())
    return seen


def _meaning(missing: int | None) -> str:
    """Return what becomes of images without a mask, for notes."""
    return f"all of their pixels have the number {missing} (data.missing_mask)"


def _classes(numbers: np.ndarray, values: tuple[int, ...]) -> np.ndarray:
    """Return the classes of pixels, uint8 of the same shape."""
    if not values:
        if numbers.size and not 0 <= numbers.min() <= numbers.max() <= IGNORED:
            raise ValueError(
                f"it has the number {numbers.max()}, and classes are 0 to {IGNORED}: give data.mask_values"
            )
        return numbers.astype(np.uint8)
    order = np.argsort(values)
    known = np.array(values)[order]
    places = np.searchsorted(known, numbers).clip(max=len(known) - 1)
    return np.where(known[places] == numbers, order[places], IGNORED).astype(np.uint8)
