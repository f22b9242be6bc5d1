"""What is in a data source: counts, classes, sizes, damaged and equal samples, mean and deviation, pictures."""

from __future__ import annotations

import hashlib
import io
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from raytrain import errors
from raytrain.data import Data, Field, Images, Index, decode
from raytrain.data.blocks import bad_text, read_part
from raytrain.data.checks import checked_further, checked_indices
from raytrain.data.font import font
from raytrain.data.image_files import pixel_size_of
from raytrain.data.masks import IGNORED
from raytrain.data.overlay import overlaid
from raytrain.driver import data_notes
from raytrain.order import spread
from raytrain.user_code.places import calling

_CHUNK, _THREADS = 16, 4
"""Samples that a thread reads at a time, and the threads."""
_TILE, _TEXT = 96, 12
"""Pixels of a picture's side on the sheet, and of the line below it."""
_TILES = 64


@dataclass
class Values:
    """The values of one field, over the samples that were read.

    Attributes:
        nan: how many of its numbers are NaN or infinite; low, high, mean and std leave them out.
        mean, std: one for each channel of an image, in units of the full range; else one for all.
        pixels: of a mask of bytes, how many pixels have each number.
    """

    of: Field
    low: float | None = None
    high: float | None = None
    nan: int = 0
    mean: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)
    pixels: dict[int, int] = field(default_factory=dict)


@dataclass
class Description:
    """What is in a data source.

    Attributes:
        counts: samples of each split.
        classes: for each class its samples in each split, in the order of the splits.
        ignored: how many files are no samples.
        bytes: of all files, where they are known.
        columns: for each column of texts or whole numbers, such as one of patients, how many different ones there are
            (`values`), and how many are in train and in another split (`train_and_val`, `train_and_test`).
        notes: what the source says of its samples, as the plan shows it.
        wanted: how many samples were to be read.
        read: how many were read before the time was over; all figures below are about these.
        sides: width and height of encoded images, int64 [k, 2].
        bad: the samples that cannot be read, with the reason.
        equal: groups of samples with the same bytes, each (split, name, label).
        values: of each field, mean and std from the training samples.
    """

    source: str
    count: int
    counts: dict[str, int]
    classes: dict[str, list[int]]
    ignored: int
    bytes: int | None
    columns: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    wanted: int = 0
    read: int = 0
    sides: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    bad: list[tuple[str, str]] = field(default_factory=list)
    equal: list[list[tuple[str, str, str]]] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)


class _Sums:
    """Sums of a field's values, from which the mean and the standard deviation follow."""

    def __init__(self, of: Field):
        self.values, self.scale = Values(of), 1.0
        kind = np.dtype(of.dtype)
        if of.kind == "image" and kind.kind in "iu":
            self.scale = float(np.iinfo(kind).max)
        self.channels = of.shape[0] if of.kind == "image" else 1
        self.sums, self.squares = np.zeros(self.channels), np.zeros(self.channels)
        self.count = np.zeros(self.channels)

    def add(self, array: np.ndarray, train: bool) -> None:
        """Add some samples, [k, ...]."""
        rows = array.reshape(len(array), self.channels, -1).astype(np.float64) / self.scale
        good, known = np.isfinite(rows), self.values
        known.nan += int(rows.size - good.sum())
        if good.any():
            low, high = rows[good].min() * self.scale, rows[good].max() * self.scale
            known.low = low if known.low is None else min(known.low, low)
            known.high = high if known.high is None else max(known.high, high)
        if known.of.kind == "mask" and array.dtype == np.uint8:
            numbers, counts = np.unique(array, return_counts=True)
            for number, count in zip(numbers.tolist(), counts.tolist(), strict=True):
                known.pixels[number] = known.pixels.get(number, 0) + count
        if train:
            rows = np.where(good, rows, 0)
            self.sums += rows.sum((0, 2))
            self.squares += np.square(rows).sum((0, 2))
            self.count += good.sum((0, 2))

    def ended(self) -> Values:
        """Return the values, without mean and deviation if no sample could be read."""
        if not self.count.any():
            return self.values
        count = np.maximum(self.count, 1)
        mean = self.sums / count
        self.values.mean = mean.tolist()
        self.values.std = np.sqrt(np.maximum(self.squares / count - mean**2, 0)).tolist()
        return self.values


def describe(data: Data, samples: int, seconds: float) -> tuple[Description, Image.Image | None]:
    """Return what is in a source, and a sheet of its training images; None if it has none.

    Args:
        samples: how many are read, evenly chosen over all splits.
        seconds: after which no further samples are read.

    Raises:
        UserError: the data is not there, or does not parse.
    """
    data = data.absolute()
    indices = checked_indices(data)
    count = sum(map(len, indices.values()))
    train = indices["train"]
    counts = {split: len(index) for split, index in indices.items()}
    ignored = sum(len(index.ignored) for index in indices.values())
    found = Description(_named(data), count, counts, _classes(indices), ignored, _bytes(indices))
    found.columns = _columns(indices)
    found.notes = [*data.notes(), *train.notes, *data_notes.doubts(data, indices)]
    sums, digests, sides = [_Sums(one) for one in train.fields], {}, []
    share = min(1.0, samples / count)
    tiles = _tiles(train, _chosen(train, share))
    found.wanted = sum(len(_chosen(index, share)) for index in indices.values())
    shown = [train.input, *(one for one in train.fields if one.kind == "mask" and one.shape == train.input.shape[1:])]
    pictures: dict[int, list[np.ndarray]] = {}
    until = time.monotonic() + seconds
    for split, index, rows, arrays, keys, sizes in _read(data, indices, share, until):
        good = np.array([not text for text in arrays["bad"]], bool)
        found.bad += [tuple(str(text).split("\0")[:2]) for text in arrays["bad"] if text]  # type: ignore[misc]
        for one in sums:
            if good.any() and one.values.of in index.fields:
                one.add(arrays[one.values.of.name][good], split == "train")
        sides += sizes
        for place in np.flatnonzero(good).tolist():
            row = int(rows[place])
            digests.setdefault(keys[place], []).append((split, row))
            if split == "train" and row in tiles:
                pictures[row] = [arrays[one.name][place].copy() for one in shown]
        found.read += len(rows)
    found.values = [one.ended() for one in sums]
    found.sides = np.array(sides, np.int64).reshape(-1, 2)
    found.equal = [
        [(split, indices[split].name(row), _label(indices[split], row)) for split, row in group]
        for group in digests.values()
        if len(group) > 1
    ]
    return found, _sheet(train, pictures)


def _read(data: Data, indices: dict[str, Index], share: float, until: float) -> Iterator[Any]:
    """Yield (split, index, rows, arrays with `bad`, a digest of each sample, (width, height) of encoded images), read
    by threads, until a time."""
    parts = (
        (split, index, rows[start : start + _CHUNK])
        for start in range(0, max(map(len, indices.values())), _CHUNK)  # all splits in turn, should time run out
        for split, index in indices.items()
        if len(rows := _chosen(index, share)) > start
    )
    pool = ThreadPoolExecutor(_THREADS)
    try:
        ahead = [pool.submit(_part, data, *one) for one in islice(parts, 2 * _THREADS)]
        while ahead:
            yield ahead.pop(0).result()
            if time.monotonic() < until:
                ahead += [pool.submit(_part, data, *one) for one in islice(parts, 1)]
    finally:
        pool.shutdown(cancel_futures=True)


def _part(data: Data, split: str, index: Index, rows: np.ndarray) -> tuple[Any, ...]:
    if not isinstance(data, Images) or not data.decodes:
        arrays = read_part(data, index, rows)
        keys = [
            hashlib.sha256(b"".join(arrays[one.name][row].tobytes() for one in index.fields)).digest()
            for row in range(len(rows))
        ]
        return split, index, rows, arrays, keys, []
    arrays: dict[str, Any] = {**index.empty(len(rows)), "bad": np.full(len(rows), "", object)}
    keys, sizes = [], []
    for place, row in enumerate(rows):
        raw, one = b"", np.array([row])
        try:
            with calling(f"{type(data).__name__}.encoded of {index.name(int(row))},"):
                (raw,) = data.encoded(index, one)
            channels, size, _ = index.input.shape
            image = decode.square(raw, size, channels, data.resampling, data.squashed)
            arrays[index.input.name][place] = image
            more = data.beside(index, one, [raw]) if data.masked else checked_further(data, index, one)
            for name, array in more.items():
                arrays[name][place] = array[0]
            sizes.append(pixel_size_of(raw) or (0, 0))
        except errors.BadSample as error:
            arrays["bad"][place] = bad_text(error, index, int(row))
        except ValueError as error:
            arrays["bad"][place] = bad_text(errors.BadSample(data.where(index, int(row)), str(error)), index, int(row))
        keys.append(hashlib.sha256(raw).digest())
    return split, index, rows, arrays, keys, sizes


def _chosen(index: Index, share: float) -> np.ndarray:
    """Return samples of a split, evenly chosen, int64 [k]."""
    return spread(len(index), max(1, round(len(index) * share)))


def _named(data: Data) -> str:
    root = str(getattr(data, "root", "")).partition("?")[0]
    return f"{type(data).__name__} {root}".rstrip()


def _classes(indices: dict[str, Index]) -> dict[str, list[int]]:
    """Return for each class its samples in each split."""
    train = indices["train"]
    if train.labels is None:
        return {}
    labels = [index.labels if index.labels is not None else np.zeros(0, np.int64) for index in indices.values()]
    known = [np.bincount(one, minlength=len(train.classes)) for one in labels]
    return {name: [int(one[label]) for one in known] for label, name in enumerate(train.classes)}


def _columns(indices: dict[str, Index]) -> dict[str, dict[str, int]]:
    """Return `Description.columns`."""
    found = {}
    for name, column in indices["train"].columns.items():
        if column.dtype.kind in "iuU":
            values = {split: np.unique(index.columns[name]) for split, index in indices.items()}
            found[name] = {"values": len(np.unique(np.concatenate(list(values.values()))))}
            for split in list(values)[1:]:
                found[name][f"train_and_{split}"] = len(np.intersect1d(values["train"], values[split]))
    return found


def _bytes(indices: dict[str, Index]) -> int | None:
    sizes = [index.sizes for index in indices.values()]
    return sum(int(one.sum()) for one in sizes if one is not None) if all(one is not None for one in sizes) else None


def _label(index: Index, row: int) -> str:
    return "" if index.labels is None else index.classes[index.labels[row]]


def _tiles(index: Index, rows: np.ndarray) -> set[int]:
    """Return which of some samples are shown: as many of each class as there is room for, evenly chosen."""
    first = index.fields[0]
    if first.kind != "image" or first.shape[0] not in (1, 3):
        return set()
    labels = np.zeros(len(rows), np.int64) if index.labels is None else index.labels[rows]
    present = np.unique(labels)[:_TILES]
    chosen: set[int] = set()
    for label in present:
        members = rows[labels == label]
        chosen |= set(members[np.linspace(0, len(members) - 1, _TILES // len(present)).astype(np.int64)].tolist())
    return chosen


def _sheet(index: Index, pictures: dict[int, list[np.ndarray]]) -> Image.Image | None:
    """Return pictures in rows, those of a class together, with their classes below; right of each image the same one
    with its mask over it, and the numbers that the mask has."""
    if not pictures:
        return None
    rows = sorted(pictures, key=lambda row: (0 if index.labels is None else int(index.labels[row]), row))
    wide = len(pictures[rows[0]]) * (_TILE + 4)
    across = min(8, len(rows))
    sheet = Image.new("RGB", (across * wide, -(-len(rows) // across) * (_TILE + _TEXT + 4)), "white")
    draw, letters = ImageDraw.Draw(sheet), font()
    for place, row in enumerate(rows):
        left, top = place % across * wide, place // across * (_TILE + _TEXT + 4)
        image, *masks = pictures[row]
        seen = _picture(image)
        sheet.paste(seen.resize((_TILE, _TILE)), (left, top))
        draw.text((left, top + _TILE), _label(index, row)[:16], "black", letters)
        for number, mask in enumerate(masks, 1):
            beside = left + number * (_TILE + 4)
            over = overlaid(seen, np.where(mask == IGNORED, -1, mask.astype(np.int64)))
            sheet.paste(over.resize((_TILE, _TILE)), (beside, top))
            draw.text((beside, top + _TILE), errors.listed(np.unique(mask).tolist())[:16], "black", letters)
    return sheet


def _picture(array: np.ndarray) -> Image.Image:
    """Return an image of [channels, height, width] in any dtype."""
    if array.dtype != np.uint8:
        full = float(np.iinfo(array.dtype).max) if array.dtype.kind in "iu" else 1.0
        array = np.nan_to_num(np.clip(array.astype(np.float64) / full, 0, 1) * 255).astype(np.uint8)
    return Image.fromarray(np.ascontiguousarray(array.repeat(3 // len(array), axis=0).transpose(1, 2, 0)))


def png(sheet: Image.Image) -> bytes:
    """Return the sheet as a PNG file."""
    file = io.BytesIO()
    sheet.save(file, "png")
    return file.getvalue()
