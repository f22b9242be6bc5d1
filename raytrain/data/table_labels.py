"""The labels of a Manifest's rows: names, or numbers that its files may name in different orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raytrain import errors
from raytrain.data import tables


class Table(NamedTuple):
    """One file of a manifest.

    Attributes:
        path: for messages.
        rows: how many it has.
        classes: the names that it gives its numbers; None if it gives none.
        trains: whether rows of it are in train.
    """

    path: str
    rows: int
    classes: tuple[str, ...] | None
    trains: bool


def of_rows(
    column: pa.ChunkedArray, name: str, files: list[Table], test: np.ndarray, where: str, row: Callable[[int], str]
) -> tuple[np.ndarray, tuple[str, ...], bool]:
    """Return each row's label, int64 [n], the classes, and whether no row of test has a label; these then have any.

    Args:
        name: the column's.
        test: whether each row is of test, bool [n].
        where: the manifest, for messages.
        row: gives what they call a row, by its number from 0.

    Raises:
        UserError: a row of train or val has no label, or the labels or classes are not right.
    """
    numbers = tables.integers(column)
    labels, names = (numbers, ()) if numbers is not None else tables.coded(column)
    known = _by_name(labels, name, files) if numbers is not None else None
    unlabelled = bool(test.any() and (labels[test] < 0).all())
    if unlabelled:
        labels[test] = max(labels.max(), 0)
    if (labels < 0).any():
        first = int(labels.argmin())
        if numbers is not None and known is None and not column.null_count:
            what, how = f"{row(first)} has the label {labels[first]} in column {name!r}", "number the classes from 0"
            raise errors.UserError(what, where, f"{how}, write their names, or predict them by --data.target {name}")
        what = f"{row(first)} has no label in column {name!r}"
        raise errors.UserError(what, where, "give it one, or remove the row")
    if numbers is None or known is not None:
        return labels, known or tuple(names), unlabelled
    present = np.unique(labels)
    first, last = int(present[0]), int(present[-1])
    if first > 1 or len(present) < last + 1 - first:  # numbers with gaps, such as ages, are probably no classes
        shown = errors.listed(present.tolist())
        what = f"the labels in column {name!r} must be 0 to n - 1 or 1 to n without gaps, got {shown}"
        how = f"number the classes from 0, write their names, or predict the numbers by --data.target {name}"
        raise errors.UserError(what, where, how)
    return labels - first, tuple(str(number) for number in range(first, last + 1)), unlabelled


def _by_name(labels: np.ndarray, name: str, files: list[Table]) -> tuple[str, ...] | None:
    """Return the classes of all files; None if the numbers have no names. `labels` become places among them."""
    if len({one.classes for one in files if one.classes}) < 2:
        known = files[0].classes
        if known:
            _check(labels, name, files[0]._replace(classes=known))
        return known
    known, start = _common(name, files), 0
    for one in files:
        part = labels[start : start + one.rows]
        _check(part, name, one)
        places = np.array([*map(known.index, one.classes or ()), -1], np.int64)
        part[:] = places[np.maximum(part, -1)]
        start += one.rows
    return known


def _common(name: str, files: list[Table]) -> tuple[str, ...]:
    """Return the classes of the first file of train that has those of all files."""
    how = "write the tables again, with the same classes in all"
    for one in files:
        if not one.classes:
            what = f"the file does not name the classes of column {name!r}, and those of others differ"
            raise errors.UserError(what, one.path, how)
    every = {known for one in files for known in one.classes or ()}
    train = [one for one in files if one.trains] or files
    for one in train:
        if one.classes and every.issubset(one.classes):
            return one.classes
    known = train[0].classes or ()
    other = next(one for one in files if not set(one.classes or ()).issubset(known))
    more = [repr(one) for one in other.classes or () if one not in known]
    what = f"column {name!r} names classes that {train[0].path} does not: {errors.listed(more)}"
    raise errors.UserError(what, other.path, how)


def _check(labels: np.ndarray, name: str, table: Table) -> None:
    count = len(table.classes or ())
    if len(labels) and labels.max() >= count:
        what = f"label {labels.max()} in column {name!r}, which names {count} classes"
        raise errors.UserError(what, table.path, "number the classes from 0, or write their names")


def several(column: pa.ChunkedArray, separator: str) -> tuple[np.ndarray, list[str]]:
    """Return (row, place of a name) of all names in the rows of a column, int64 [k, 2], and the names, sorted, as whole
    numbers if all are.

    Args:
        column: text with `separator` between the names, or lists of names or numbers.
    """
    lists: Any = column
    if not any(kind(column.type) for kind in tables.LISTS):
        options = pc.SplitPatternOptions(separator)
        lists = pc.call_function("split_pattern", [column.cast(pa.string())], options)
    lists = lists.combine_chunks()
    trimmed: Any = pc.call_function("utf8_trim_whitespace", [lists.flatten().cast(pa.string())])
    texts = trimmed.to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(lists)), lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
    there = np.array([bool(text) for text in texts], bool)
    names, places = np.unique(texts[there].astype(str), return_inverse=True)
    if all(name.isdecimal() for name in names):
        order = np.array(sorted(range(len(names)), key=lambda place: int(names[place])), np.int64)
        names, places = names[order], np.argsort(order)[places]
    return np.stack([rows[there], places.reshape(-1)], 1), names.tolist()
