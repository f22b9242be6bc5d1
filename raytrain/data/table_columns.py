"""What is wrong with the columns of a table of images."""

from __future__ import annotations

import re
from typing import Any

from raytrain import errors
from raytrain.data import patterns

_BYTES = re.compile(r"(dictionary<values=)?(large_|fixed_size_)?binary")
"""What Arrow's types of bytes are called."""


def check(data: Any, where: str, schema: Any, names: list[str], chosen: bool = False) -> None:
    """Check that a table has columns, each once, and bytes where there are to be bytes.

    Args:
        data: the Manifest.
        where: what messages call the table.
        names: of the columns, without that of `bytes`.
        chosen: whether they are those of a run, so that no flag names others.

    Raises:
        UserError: one is missing, twice there, or has something else than bytes.
    """
    for name in [*names, *([data.bytes] if data.bytes else [])]:
        if name not in schema.names:
            raise _missing(data, where, schema, name, chosen)
        if schema.names.count(name) > 1:
            what = f"the manifest has several columns called {name!r}"
            raise errors.UserError(what, where, "give each column a name of its own")
    for which in ("bytes", "mask") if data.bytes else ():
        column = getattr(data, which)
        if column and column in (*names, data.bytes):
            _check_bytes(schema, column, which, where, chosen)


def _missing(data: Any, where: str, schema: Any, name: str, chosen: bool) -> errors.UserError:
    names = [one if one and one == one.strip() else repr(one) for one in schema.names]  # spaces would not be seen
    marks = [mark for mark in (";", "\t", "|", ",") if len(schema.names) == 1 and mark in schema.names[0]]
    if marks:
        wanted = "tabs" if where.lower().endswith(".tsv") else "commas"
        how = f"separate the columns with {wanted} in place of {marks[0]!r}; its first row is {names[0]}"
        return errors.UserError("the manifest has one column", where, how)
    alike = [shown for shown, field in zip(names, schema, strict=True) if _may_be(data, name, str(field.type))]
    how = f"{errors.nearest(name, alike)}the columns are {errors.listed(names, 12)}"
    if chosen:
        how += "; name them as in the run's own table"
    elif name == data.path:
        how += "; name the one with the images' files by --data.path COLUMN"
    elif name == data.label:
        how += "; name the one with the classes by --data.label COLUMN, with masks by --data.mask, with numbers by "
        how += "--data.target, with several classes by --data.labels"
    images = [field.name for field in schema if "binary" in str(field.type) and "list<" not in str(field.type)]
    if name == data.path and not data.bytes and images and not chosen:
        how = f"did you mean --data.bytes {images[0]}?"
    return errors.UserError(f"the manifest has no column {name!r}", where, how)


def _may_be(data: Any, name: str, kind: str) -> bool:
    """Return whether a column of a type of Arrow may be the one that is wanted as `name`: numbers are no names of
    classes, and texts no numbers."""
    if name in data.columns:
        return True
    if name in (*data.target, *data.inputs):
        return "string" not in kind
    return not kind.startswith(("float", "halffloat", "double", "decimal"))


def row(where: str, number: int, paths: Any) -> str:
    """Return what messages call a row, with its image's path: its line where the table is one file of text, and else
    its number from 1.

    Args:
        where: the table.
        number: the row's, from 0.
        paths: a column of them; None where there is none.
    """
    name = where.partition("?")[0].lower()
    header = name.endswith((".csv", ".tsv"))
    of_text = header or name.endswith((".jsonl", ".ndjson", ".json"))
    one_file = "*" not in name and len(patterns.expanded(name)) == 1
    counted = of_text and one_file
    found = f"line {number + 1 + header}" if counted else f"row {number + 1}"
    path = None if paths is None else paths[number].as_py()
    more = [
        *([] if counted else ["counted from 1"]),
        *([errors.one_line(str(path), 80)] if path not in (None, "") else []),
    ]
    return found + (f" ({', '.join(more)})" if more else "")


def _check_bytes(schema: Any, column: str, which: str, where: str, chosen: bool) -> None:
    """Check that the column that `bytes` or `mask` names has bytes."""
    kind = schema.field(column).type
    inner = [one.type for one in kind if one.name == "bytes"] if str(kind).startswith("struct<") else [kind]
    if not inner or not _BYTES.match(str(inner[0])):
        what = f"column {column!r} must have bytes, or Hugging Face's struct of bytes and path, got {kind}"
        how = "write it as the run's own table has it" if chosen else f"name another: --data.{which} COLUMN"
        raise errors.UserError(errors.one_line(what, 200), where, how)


def check_flat(data: Any, where: str, table: Any) -> None:
    """Check that only columns of targets have lists.

    Raises:
        UserError: another one has.
    """
    for one in table.schema:
        if one.type.num_fields and one.name not in (*data.target, data.labels):
            what = f"column {one.name!r} must have a text or a number in each row, got {one.type}"
            use = (
                f", or use --data.target {one.name} for lists of numbers, --data.labels {one.name} for several classes"
            )
            how = f"write one value into each row{use if one.name == data.label else ''}"
            raise errors.UserError(errors.one_line(what, 200), where, how)
