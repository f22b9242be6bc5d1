"""Columns of CSV files that Arrow takes for numbers or times: their texts where these tell more, as 1.1 and 1.10 do."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_EXACT = 2**53
"""Whole numbers above it are not exact as floats."""
_POINT = r"^([+-]?\d+)\.0$", r"\1"
"""Tables that were joined have 1 beside 1.0, which is one class."""
_WHOLE = r"^[+-]?\d+$"


def is_read(kind: pa.DataType) -> bool:
    """Return whether Arrow has read a column's texts as something else, in which distinct texts may be equal."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)


def names(values: pa.ChunkedArray, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of names: as it was read, or its texts where several of them were read as one value, or as a
    number that is not exact. An empty cell stays so."""
    valid = values.is_valid()
    known = values.filter(valid)
    told = _call("replace_substring_regex", texts.filter(valid), options=pc.ReplaceSubstringOptions(*_POINT))
    found = known.unique().to_numpy() if pa.types.is_floating(values.type) else np.zeros(0)
    large = (np.abs(found[np.isfinite(found)]) > _EXACT).any()
    if not large and len(told.unique()) <= len(known.unique()):
        return values
    return _call("if_else", valid, texts, pa.scalar(None, pa.string()))


def values(values: pa.ChunkedArray, texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of names or numbers, as `names` does; 0.5 and 0.50 stay one number."""
    if not pa.types.is_floating(values.type):
        return names(values, texts)
    whole = _call(
        "and", values.is_valid(), _call("match_substring_regex", texts, options=pc.MatchSubstringOptions(_WHOLE))
    )
    return values if len(texts.filter(whole).unique()) <= len(values.filter(whole).unique()) else names(values, texts)


def whole(column: pa.ChunkedArray) -> tuple[pa.ChunkedArray, bool]:
    """Return floats as whole numbers if all are, and whether they are; NaN becomes null."""
    column = column.cast(pa.float32()) if pa.types.is_float16(column.type) else column
    column = _call("if_else", _call("is_nan", column), pa.scalar(None, column.type), column)
    found = column.drop_null().unique().to_numpy().astype(np.float64)
    fits = bool((np.abs(found) <= _EXACT).all() and (found == np.floor(found)).all())
    return (column.cast(pa.int64()) if fits else column), fits


def ended(column: pa.ChunkedArray, suffix: str) -> pa.ChunkedArray:
    """Return a column as text, with a suffix after each."""
    return _call("binary_join_element_wise", column.cast(pa.string()), pa.scalar(suffix), pa.scalar(""))


def given(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of text with null for an empty string, which is an empty cell of a CSV file."""
    text = column.cast(pa.string())
    return _call("if_else", _call("equal", text, pa.scalar("")), pa.scalar(None, pa.string()), text)


def _call(function: str, *arguments: object, options: object = None) -> pa.ChunkedArray:
    return pc.call_function(function, list(arguments), options)
