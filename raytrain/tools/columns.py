"""Files of predictions: rows of a task or features, as Arrow tables."""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from pyarrow import csv, parquet

from raytrain import errors
from raytrain.files import is_url, reason
from raytrain.tools import output

FEATURES = "features"
_STEM = 100
"""Characters of an image's name in that of its mask."""
TAKEN = ("path", "sample", "row", "fold", "source", "error", "loss")
"""Columns of results that are not the task's: one of this name, such as the target of a regression, gets a `_`."""


def write(rows: list[dict[str, Any]], classes: tuple[str, ...], file: Path) -> None:
    """Write predictions as .csv or .parquet or .jsonl. Probabilities become a column for each class; masks become PNGs
    in a folder beside the file, `NAME_masks`, and the column has their paths. Features become a list of fixed size, in
    .parquet alone.

    Args:
        classes: the names of what `probabilities` are of; their numbers if the names are not as many.

    Raises:
        UserError: the suffix is none of these, or the place cannot be written.
    """
    features = bool(rows) and FEATURES in rows[0]
    output.check_output(file, output.FEATURES if features else output.PREDICTIONS)
    folder = file.with_name(f"{file.stem}_masks")
    found = [flat(row, classes) for row in rows]
    for number, row in enumerate(found):
        if "mask" in row:
            place = folder / _mask_name(number, row)
            _write_mask(row["mask"], place)
            row["mask"] = str(place)
    if file.suffix == ".jsonl":
        output.write_file(file, "".join(json.dumps(for_json(row)) + "\n" for row in found).encode())
        return
    content = io.BytesIO()
    check_names(found, found[0] if found else {})
    try:
        whole = table(found, schema(found[0])) if features else pa.Table.from_pylist(found)
        (csv.write_csv if file.suffix == ".csv" else parquet.write_table)(whole, content)
    except pa.ArrowException as error:
        what = f"{file.suffix} cannot hold the task's predictions: {error}"
        raise errors.UserError(what, file, "let predictions() return numbers and strings, or write .jsonl") from None
    output.write_file(file, content.getbuffer())


def _mask_name(number: int, row: Mapping[str, Any]) -> str:
    """Return the name of a mask's file: the row's number, which makes it unique, and the image's name if it has one, of
    letters, digits, `.`, `_` and `-` alone."""
    path = str(row.get("path") or row.get("sample") or "")
    path = path.partition("?")[0] if is_url(path) else path
    stem, suffix = os.path.splitext(os.path.basename(path))
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", stem)[:_STEM]
    return f"{number:06d}_{stem}.png" if suffix else f"{number:06d}.png"  # without a suffix it is no file's name


def _write_mask(mask: np.ndarray, file: Path) -> None:
    try:
        file.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise errors.cannot_write(file.parent, reason(error)) from None
    output.write_file(file, png(mask))


def flat(row: Mapping[str, Any], classes: tuple[str, ...]) -> dict[str, Any]:
    """Return a prediction with a column `p_CLASS` for each of its `probabilities`.

    Args:
        classes: the names of what `probabilities` are of; their numbers if the names are not as many.
    """
    shares = row.get("probabilities", ())
    names = share_names(classes, len(shares))
    found = {name: value for name, value in row.items() if name != "probabilities"}
    return found | dict(zip((f"p_{name}" for name in names), shares, strict=True))


def share_names(classes: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Return the names of `probabilities`: those of classes, or numbers if the classes are not as many."""
    return classes if len(classes) == count else tuple(map(str, range(count)))


def for_json(value: Any) -> Any:
    """Return what results and rows have, dicts, lists and numbers, as JSON has it: None for a number that is not
    finite."""
    if isinstance(value, dict):
        return {name: for_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(one) for one in value]
    if isinstance(value, np.generic | np.ndarray | torch.Tensor):
        return for_json(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def png(mask: np.ndarray) -> bytes:
    """Return a mask, uint8 or int32 [height, width], as a grey PNG of 8 or 16 bits: the classes' numbers as they
    are."""
    content = io.BytesIO()
    Image.fromarray(mask if mask.dtype == np.uint8 else mask.astype(np.uint16)).save(content, "PNG")
    return content.getvalue()


def written(row: Mapping[str, Any], classes: tuple[str, ...]) -> dict[str, Any]:
    """Return a prediction as a part of a result has it: flat, and a mask as the bytes of a PNG."""
    found = flat(row, classes)
    return found | {"mask": png(found["mask"])} if "mask" in found else found


def schema(row: Mapping[str, Any]) -> pa.Schema:
    """Return the columns of flat rows such as this one; `features` is a list of fixed size."""
    types = {
        name: pa.list_(pa.float32(), len(value)) if name == FEATURES else pa.scalar(value).type
        for name, value in row.items()
    }
    return pa.schema(types)


def check_names(rows: Sequence[Mapping[str, Any]], names: Collection[str]) -> None:
    """Check that no row has a column that the table lacks, which would be lost.

    Raises:
        UserError: one has.
    """
    for row in rows:
        if more := [name for name in row if name not in names]:
            what = f"predictions() must return the same columns for each sample, got also {errors.listed(more)}"
            raise errors.UserError(what, "in the run's task", "return None where a sample has no value")


def table(rows: Sequence[Mapping[str, Any]], columns: pa.Schema) -> pa.Table:
    """Return flat rows as a table; a value that a row lacks is null.

    Raises:
        UserError: a row has a value that the table lacks.
    """
    check_names(rows, columns.names)
    return pa.Table.from_arrays([_column(rows, field) for field in columns], schema=columns)


def _column(rows: Sequence[Mapping[str, Any]], field: pa.Field) -> pa.Array:
    values = [row.get(field.name) for row in rows]
    if not pa.types.is_fixed_size_list(field.type):
        return pa.array(values, field.type)
    size = field.type.list_size
    missing = [value is None for value in values]
    numbers = np.concatenate([np.zeros(size, np.float32) if value is None else value for value in values] or [[]])
    return pa.FixedSizeListArray.from_arrays(
        pa.array(numbers, pa.float32()), type=field.type, mask=pa.array(missing, pa.bool_()) if any(missing) else None
    )
