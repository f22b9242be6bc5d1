"""Targets of a table: numbers to predict, and several classes of a sample."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from raytrain import errors
from raytrain.data.late import with_pillow
from raytrain.data.source import Field, Index

_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")


@dataclass(frozen=True, eq=False)
class TargetIndex(Index):
    """The samples of one split with numbers as targets; `rows` are places in the targets of all splits.

    Attributes:
        targets: float32 or uint8 [all, ...].
    """

    targets: np.ndarray = None  # type: ignore[assignment]

    def fingerprint(self) -> str:
        """Return a hash of the samples and their targets."""
        targets = hashlib.sha256(np.ascontiguousarray(self.targets[self.rows]).tobytes())
        return f"{super().fingerprint()}-{targets.hexdigest()[:16]}"


def of_numbers(
    table: dict[str, Any], columns: tuple[str, ...], image: Field, name: str, where: str, row: Callable[[int], str]
) -> TargetIndex:
    """Return the index of all rows with numbers as targets, float32 [n] or [n, k].

    Args:
        table: the columns, by name.
        columns: those of numbers, or one of lists of them.
        name: of the field.
        where: what messages call the table.
        row: gives what they call a row, by its number from 0.

    Raises:
        UserError: they are not numbers, or one is missing.
    """
    targets = _numbers(table, columns, where, row, "use label for classes")
    fields = (image, Field(name, targets.shape[1:], "float32"))
    return TargetIndex(rows=np.arange(len(targets)), fields=fields, targets=targets)


def with_inputs(
    index: Index, table: dict[str, Any], columns: tuple[str, ...], where: str, row: Callable[[int], str]
) -> Index:
    """Return the index of all rows with numbers that a model gets besides the image: a further field `inputs`, float32
    [columns], whose values are columns of the index.

    Raises:
        UserError: as `of_numbers`.
    """
    known = {name: _numbers(table, (name,), where, row, "write 0 and 1") for name in columns}
    fields = (*index.fields, Field("inputs", (len(columns),), "float32"))
    return replace(index, shape=None, fields=fields, columns={**known, **index.columns})


def _numbers(
    table: dict[str, Any], columns: tuple[str, ...], where: str, row: Callable[[int], str], otherwise: str
) -> np.ndarray:
    """Return finite numbers, float32 [n] or [n, k].

    Raises:
        UserError: they are not numbers, or one is missing.
    """
    found = with_pillow().tables.numbers([table[column] for column in columns])
    if found is None:
        wrong = [name for name in columns if with_pillow().tables.numbers([table[name]]) is None] or columns
        named, text = f"column {', '.join(map(repr, wrong))}", _first_text(table[wrong[0]], row)
        what = f"{named} must hold numbers, or lists of them that are equally long{text}"
        raise errors.UserError(what, where, f"write numbers such as 1.5, name other columns, or {otherwise}")
    bad = ~np.isfinite(found).reshape(len(found), -1)
    if bad.any():
        first, place = map(int, np.argwhere(bad)[0])
        what = f"{row(first)} has no number in column {columns[place if len(columns) > 1 else 0]!r}"
        raise errors.UserError(what, where, "fill it, or remove the row")
    return found


def _first_text(column: Any, row: Callable[[int], str]) -> str:
    """Return ", got TEXT in line N" with the first text that is no number; nothing where the column has none."""
    for number, value in enumerate(column.to_pylist()):
        if isinstance(value, str) and not _NUMBER.fullmatch(value):
            return f", got {errors.one_line(value, 60)!r} in {row(number)}"
    return ""


def of_names(column: Any, separator: str, image: Field, where: str) -> TargetIndex:
    """Return the index of all rows with several classes each, as a 1 for each class that a row has, uint8 [n, classes]
    in the field `labels`. Classes are in the order of their names, or of their numbers.

    Args:
        column: an Arrow column of text, or of lists.
        separator: what stands between the names in a text.
        where: what messages call the table.

    Raises:
        UserError: the table names no class.
    """
    rows, names = with_pillow().table_labels.several(column, separator)
    if not names:
        raise errors.UserError("no row names a class", where, "name another column: --data.labels COLUMN")
    targets = np.zeros((len(column), len(names)), np.uint8)
    targets[rows[:, 0], rows[:, 1]] = 1
    fields = (image, Field("labels", (len(names),), "uint8"))
    return TargetIndex(rows=np.arange(len(column)), classes=tuple(names), fields=fields, targets=targets)
