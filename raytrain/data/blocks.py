"""Blocks of samples: their arrays, and which of them cannot be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from raytrain import errors
from raytrain.data.checks import checked_read
from raytrain.data.crops import Crops
from raytrain.data.source import Data, Index

if TYPE_CHECKING:
    from raytrain.data.decode_gpu import Decoder

Arrays = dict[str, np.ndarray]
"""The arrays of some samples, by the names of their fields."""


class Bad(NamedTuple):
    """A sample that cannot be read.

    Attributes:
        row: its row in the index or in its block.
        path: its name in messages.
        reason: why it cannot be read.
        lasting: whether the file itself is damaged, rather than its storage out of reach.
    """

    row: int
    path: str
    reason: str
    lasting: bool


def read_part(
    data: Data,
    index: Index,
    chosen: np.ndarray,
    out: Arrays | None = None,
    crops: Crops | None = None,
    decoder: Decoder | None = None,
) -> Arrays:
    """Return the arrays of some samples, perhaps in the place of `out`, and `bad`, a text for each. If a sample is bad,
    read all again, one by one, to find it. `crops` and `decoder` are as for `checked_read`."""
    bad = np.full(len(chosen), "", object)
    try:
        arrays = checked_read(data, index, chosen, out, crops, decoder)
    except errors.BadSample:
        arrays = index.empty(len(chosen))
        for row in range(len(chosen)):
            part = slice(row, row + 1)
            try:
                one = checked_read(data, index, chosen[part], None, crops and crops.rows(part), decoder)
                for name, array in one.items():
                    arrays[name][row] = array[0]
            except errors.BadSample as error:
                bad[row] = bad_text(error, index, int(chosen[row]))
    return {**arrays, "bad": bad}


def bad_text(error: errors.BadSample, index: Index, sample: int) -> str:
    """Return the text in `bad` for a sample: its path, the reason, and whether that lasts, with NUL between them. A
    path may be empty or have NUL too, and a text that begins with NUL is an error of a task."""
    lasting = "" if isinstance(error.__cause__, OSError) else "lasting"
    path = (str(error.path) or index.name(sample)).replace("\0", "\\x00")
    return f"{path}\0{error.reason}\0{lasting}"


def arrays_and_bad(batch: Arrays) -> tuple[Arrays, list[Bad]]:
    """Return the arrays of a block from `read_part`, and its bad samples.

    Raises:
        UserError: a task of Ray Data has put one into the block.
    """
    for text in batch["bad"]:
        if str(text).startswith("\0"):
            raise errors.UserError(*str(text).split("\0")[1:])
    bad = [(row, *str(text).split("\0")) for row, text in enumerate(batch["bad"]) if text]
    arrays = {name: array for name, array in batch.items() if name != "bad"}
    return arrays, [Bad(row, path, reason, lasting == "lasting") for row, path, reason, lasting in bad]


def check_bad(data: Data, bad: list[Bad]) -> None:
    """Check that bad samples may be skipped.

    Raises:
        UserError: a sample is bad and `on_bad_sample` is `error`.
    """
    if bad and data.on_bad_sample == "error":
        raise errors.bad_sample(bad[0].path, bad[0].reason)


def lost_sample(path: str, reason: str) -> errors.UserError:
    """Return the error for a sample that has become unreadable since the run began."""
    return errors.UserError(
        f"cannot read a sample that could be read when the run began: {reason}",
        path,
        "restore it and resume the run, or train a new one",
    )


def count(arrays: Arrays) -> int:
    """Return the number of samples."""
    return len(next(iter(arrays.values())))


def rows_of(arrays: Arrays, rows: slice | np.ndarray) -> Arrays:
    """Return the arrays of some of the samples."""
    return {name: array[rows] for name, array in arrays.items()}


def joined(parts: list[Arrays]) -> Arrays:
    """Return the arrays of several blocks, one after the other."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
