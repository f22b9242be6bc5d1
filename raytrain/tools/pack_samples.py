"""What a shard holds: the bytes of a range of samples, as a codec stores them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from raytrain import errors
from raytrain.data import Data, Images, Index, decode, decode_torch
from raytrain.data.checks import checked_further, checked_read
from raytrain.data.image_files import pixel_size_of

ROWS, _ROWS_BYTES = 64, 16 << 20
"""Samples, and bytes of raw ones, that a thread reads at a time."""


class Part(NamedTuple):
    """The samples of a shard: a range of those of a split."""

    number: int
    split: str
    start: int
    stop: int


@dataclass(frozen=True)
class Job:
    """All that writes shards.

    Attributes:
        recipe: a hash of all that decides the pack's bytes.
        strict: the recipe with `on_bad_sample="error"`: its shards have no bad samples, and serve `skip` as well.
    """

    data: Data
    codec: str
    size: int | None
    quality: int
    parts: tuple[Part, ...]
    recipe: str
    strict: str


Found = tuple[int, "tuple[bytes | memoryview, ...] | errors.BadSample"]
"""A row, and its bytes in pieces or why it cannot be read."""


def samples(job: Job, index: Index, row: int, stop: int) -> Iterator[Found]:
    """Yield a range of samples as they are packed, in their order."""
    yield from (_raw if job.codec == "raw" else _encoded)(job, index, row, stop)


def _encoded(job: Job, index: Index, row: int, stop: int) -> Iterator[Found]:
    """Yield the encoded images of a range of samples, each with its further arrays."""
    assert isinstance(job.data, Images)
    while row < stop:
        last = min(row + ROWS, stop)
        try:
            for raw in job.data.encoded(index, np.arange(row, last)):
                try:
                    found = _stored(job, raw, job.data)
                except ValueError as error:
                    yield row, errors.BadSample(job.data.where(index, row), str(error))
                else:
                    more = checked_further(job.data, index, np.array([row])) if index.fields[1:] else {}
                    yield row, (found, *(array.tobytes() for array in more.values()))
                row += 1
            if row != last:
                what = f"encoded() ends before sample {row}"
                raise errors.UserError(what, f"in {type(job.data).__name__}", "yield the bytes of all samples")
        except errors.BadSample as error:
            yield row, error
            row += 1


def _stored(job: Job, raw: bytes, data: Images) -> bytes:
    """Return an image with a shorter side of `job.size`; one that is not larger, or with `original`, as it is.

    Raises:
        ValueError: it cannot be decoded; an image that stays as it is, is decoded only if it looks damaged.
    """
    channels, sides = data.channels or 3, pixel_size_of(raw) if job.size is not None else None
    if job.size is None or (sides is not None and min(sides) <= job.size):
        decode.check(raw, channels)
        return raw
    image = decode_torch.shortened(decode.pixels(raw, channels), job.size, data.resampling)
    return decode_torch.jpeg(image, job.quality)


def _raw(job: Job, index: Index, row: int, stop: int) -> Iterator[Found]:
    """Yield the arrays of a range of samples."""
    most = max(1, min(ROWS, _ROWS_BYTES // max(1, index.sample_bytes)))
    for start in range(row, stop, most):
        rows = np.arange(start, min(start + most, stop))
        try:
            yield from _pieces(job, index, rows)
        except errors.BadSample:
            for one in rows:
                try:
                    yield from _pieces(job, index, np.array([one]))
                except errors.BadSample as error:
                    yield int(one), error


def _pieces(job: Job, index: Index, rows: np.ndarray) -> Iterator[Found]:
    arrays = checked_read(job.data, index, rows)  # all of it before the first yield
    flat = [arrays[field.name].reshape(len(rows), -1).view(np.uint8) for field in index.fields]
    for place, row in enumerate(rows):
        yield int(row), tuple(one[place].data for one in flat)
