"""The source of a table for a first experiment: its columns, by flags; what is missing is guessed for the error."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import product
from typing import Any

from raytrain import errors
from raytrain.data import Index, Manifest
from raytrain.data.images import SPLITS, split_folders
from raytrain.data.late import with_pillow
from raytrain.data.manifest import TABLES, WITH_BYTES
from raytrain.files import expanded, is_url

_PREDICTED = ("label", "labels", "target", "mask")
_ROWS = 32
"""Rows whose paths are looked for."""
_CLASSES = 20
"""Numbers from 0 without gaps that are taken for classes."""
_FOLDERS = 100
"""Folders beside a table in which they are looked for."""


@dataclass(frozen=True)
class Columns:
    """Columns of a table, as Manifest's fields of the same names: for a table alone, where other names than path and
    label need them. They are written into the file."""

    path: str = ""
    """Column of the images' paths; by default path."""
    suffix: str = ""
    """What the files' names end in after what that column says, as .jpg where it has ids in place of paths."""
    bytes: str = ""
    """Column of encoded images in Parquet and Arrow files, in place of paths."""
    label: str = ""
    """Column of the classes: names, or numbers from 0; by default label."""
    labels: str = ""
    """Column of several classes a row, in place of one."""
    separator: str = ""
    """What stands between the names of several classes; by default a space."""
    target: tuple[str, ...] = ()
    """Columns of numbers to predict, or one column of lists of them, in place of classes."""
    mask: str = ""
    """Column of masks, in place of classes: a class for each pixel."""
    missing_mask: int | None = None
    """The number of all pixels of an image without a mask, also of a folder with images/ and masks/."""
    split: str = ""
    """Column of the names of splits, train, val and test; by default split, if there is one."""
    folder: str = ""
    """What relative paths are relative to; by default the folder of the table."""

    def given(self) -> dict[str, Any]:
        """Return the columns that are given, by the names of Manifest's fields."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value not in ("", (), None)}


def is_table(root: str) -> bool:
    """Return whether a place is a table: a file, a pattern, or a folder of Parquet or Arrow files, also below the
    folders of splits."""
    if not os.path.isdir(root) and (root.partition("?")[0] if is_url(root) else root).lower().endswith(TABLES):
        return True
    files, folders = entries(root)
    if "train" in (splits := split_folders(folders)):
        files, folders = entries(root, splits["train"])
    return not folders and any(name.lower().endswith(WITH_BYTES) for name in files)


def entries(root: str, folder: str = "") -> tuple[list[str], list[str]]:
    """Return the names of the files in a folder, and of the folders that are not hidden; none if it cannot be read."""
    try:
        return with_pillow().trees.parted(with_pillow().trees.tree(root).entries(folder))
    except (OSError, errors.UserError):  # reported when it is read
        return [], []


def table_in(folder: str) -> str:
    """Return the command that reads a table in a folder of images, for an error; nothing without one."""
    tables = [name for name in entries(folder)[0] if name.lower().endswith(TABLES)]
    command = errors.command("new", with_pillow().byte_files.joined(folder, tables[0])) if tables else ""
    return f"did you mean {command}? It reads the images of a table" if tables else ""


def of_table(root: str, typed: str, columns: Columns) -> Manifest:
    """Return the source of a table.

    Args:
        root: the table.
        typed: its name in commands.

    Raises:
        UserError: the columns contradict each other, or there are none of their names.
    """
    given = columns.given()
    _check(given, root)
    if "folder" in given:
        given["folder"] = given["folder"] if is_url(given["folder"]) else os.path.abspath(expanded(given["folder"]))
    data = Manifest(root, **given)
    data = data if given.keys() & {"path", "bytes"} else data.with_images()
    tables = with_pillow().tables
    schema = tables.schema(tables.files(root)[0])
    if len(schema.names) == 1:  # which may be separated otherwise: the source says so
        return data
    shown = errors.listed((name if name and name == name.strip() else repr(name) for name in schema.names), 12)
    for column, flag in _roles(given):
        if column not in schema.names:
            how = f"{errors.nearest(column, schema.names)}name another by --{flag} COLUMN"
            raise errors.UserError(f"the table has no column {column!r} (its columns are {shown})", root, how)
    wanted = [] if data.bytes else ["path"]
    wanted += [] if given.keys() & {"labels", "target", "mask"} else ["label"]
    lacking = [name for name in wanted if name not in given and getattr(data, name) not in schema.names]
    if not lacking:
        return data
    _check_header(schema.names, root)
    found = _Guess(data, schema, lacking).flags()
    flags = {name: list(value) if isinstance(value, tuple) else [str(value)] for name, value in columns.given().items()}
    flags |= found | {name: ["COLUMN"] for name in lacking if not _answered(name, found)}
    named = [(f"--{field.name}", *flags[field.name]) for field in fields(Columns) if field.name in flags]
    command = errors.command("new", typed, *(word for words in named for word in words))
    how = f"did you mean {command}?" if ["COLUMN"] not in flags.values() else f"name its columns: {command}"
    if flags.get("label") == ["COLUMN"]:
        how += ", or in place of --label --labels (several classes of an image), --target (numbers) or --mask (masks)"
    raise errors.UserError(f"the table has no column {lacking[0]!r} (its columns are {shown})", root, how)


def _check_header(names: list[str], root: str) -> None:
    """Check that the first row names the columns: one that lists an image would be lost."""
    if any(name.lower().endswith((*with_pillow().trees.EXTENSIONS, ".gif")) for name in names):
        what = f"the first row must name the columns, and is {errors.listed(names, 12)}"
        raise errors.UserError(what, root, "write a row such as path,label above it")


def _answered(name: str, found: dict[str, list[str]]) -> bool:
    return any(one in found for one in (_PREDICTED if name == "label" else ("path", "bytes")))


def _check(given: dict[str, Any], root: str) -> None:
    """Check that columns do not contradict each other."""
    for names, what in ((("path", "bytes"), "hold the images"), (_PREDICTED, "are what is to be predicted")):
        both = [f"--{name}" for name in names if name in given]
        if len(both) > 1:
            raise errors.UserError(f"{' and '.join(both)} both {what}", root, f"leave {' or '.join(both)} out")
    if "missing_mask" in given and "mask" not in given:
        raise errors.UserError("--missing_mask is for masks", root, "name their column by --mask COLUMN")
    if "separator" in given and "labels" not in given:
        what = "--separator stands between the names of several classes"
        raise errors.UserError(what, root, "name their column by --labels COLUMN")
    seen: dict[str, str] = {}
    for column, name in _roles(given):
        if column in seen:
            twice = "twice in --target" if seen[column] == name else f"both --{seen[column]} and --{name}"
            raise errors.UserError(f"column {column!r} is {twice}", root, "name each column once")
        seen[column] = name


def _roles(given: dict[str, Any]) -> list[tuple[str, str]]:
    """Return each column that is given, and the flag that names it."""
    named = [(name, given[name]) for name in ("path", "bytes", *_PREDICTED, "split") if name in given]
    return [(column, name) for name, value in named for column in ([value] if isinstance(value, str) else value)]


def check_files(data: Manifest, train: Index) -> None:
    """Check that one of the images is there, where files are looked at.

    Raises:
        UserError: none is.
    """
    if train.in_files and train.sizes is not None and not train.sizes.any():
        wanted, tables = data.where(train, 0), with_pillow().tables
        found = _Guess(data, tables.schema(tables.files(data.root)[0]), ["path"]).flags()
        flags = [f"--{name} {shlex.quote(*found[name])}" for name in ("suffix", "folder") if name in found]
        there = flags and found["path"] == [data.path]
        how = f"did you mean {' '.join(flags)}?" if there else "name the folder that holds them by --folder"
        if os.path.isfile(wanted.replace("\\", "/")):
            how = "write / in its paths, in place of \\"
        raise errors.UserError(f"no image of column {data.path!r} is there", wanted, how)


@contextlib.contextmanager
def as_flags() -> Iterator[None]:
    """Let errors of a source name the flags of `Columns`."""
    names = "|".join(field.name for field in fields(Columns))
    try:
        yield
    except errors.UserError as error:
        error.how = re.sub(rf"--data\.({names})\b", r"--\1", error.how)
        raise


def _are_there(folder: str, names: list[str], suffix: str) -> bool:
    return all(os.path.isfile(os.path.join(folder, name + suffix)) for name in names)


class _Guess:
    """What the columns of a table may be, by its schema and some rows.

    Args:
        schema: of its first file.
        lacking: the fields of Manifest, path and label, without a column.
    """

    def __init__(self, data: Manifest, schema: Any, lacking: list[str]):
        self._data, self._lacking = data, lacking
        self._types = {one.name: str(one.type) for one in schema}
        tables = with_pillow().tables
        read = [name for name in self._types if schema.names.count(name) == 1 and not self._is_bytes(name)]
        self._table = tables.joined(tables.files(data.root)[:1], dict.fromkeys(read, "path"))[0] if read else {}
        self._read = read

    def flags(self) -> dict[str, list[str]]:
        """Return the columns that can be told, by their flags."""
        data, found = self._data, dict[str, list[str]]()
        folder, files, suffix = self._files()
        path = data.path if "path" not in self._lacking else files[0] if files else ""
        alone = [name for name in self._types if self._is_bytes(name) and "list<" not in self._types[name]]
        blobs = [name for name in alone if name != data.bytes]
        if "path" in self._lacking and path:
            found["path"] = [path]
        elif "path" in self._lacking and blobs:
            found["bytes"] = [blobs.pop(0)]
        found |= {name: [value] for name, value in (("suffix", suffix), ("folder", folder)) if value}
        if "label" not in self._lacking:
            return found
        masks = blobs if data.bytes or "bytes" in found else [name for name in files if name != path]
        rest = [name for name in self._read if name not in (path, data.bytes, data.split, *files)]
        kinds = {name: kind for name in rest if (kind := self._kind(name))}
        by_kind = {kind: [name for name in kinds if kinds[name] == kind] for kind in kinds.values()}
        if len(masks) == 1:
            found["mask"] = masks
        elif len(by_kind.get("bit", [])) == len(kinds) > 1:
            found["target"] = list(kinds)
        elif len(labels := by_kind.get("label", []) + by_kind.get("bit", [])) == 1:
            found["label"] = labels
        elif len(kinds) - len(by_kind.get("split", [])) == 1:
            found |= {kind: names for kind, names in by_kind.items() if kind != "split"}
        if len(splits := by_kind.get("split", [])) == 1 and data.split not in self._types:
            found["split"] = splits
        return found

    def _is_bytes(self, name: str) -> bool:
        return "binary" in self._types[name]

    def _files(self) -> tuple[str, list[str], str]:
        """Return the folder in which images are: empty for the table's, or the one given; the columns of their paths,
        or one of ids; and what the files' names end in after the ids, empty for paths."""
        data, suffixes = self._data, with_pillow().trees.EXTENSIONS
        columns = {name: [str(one) for one in self._table[name][:_ROWS].to_pylist()] for name in self._read}
        are = {name: {one.lower().endswith((*suffixes, ".gif")) for one in values} for name, values in columns.items()}
        paths = {name: columns[name] for name in columns if are[name] == {True}}
        ids = {name: one for name, one in columns.items() if are[name] == {False} and len({*one}) == len(one)}
        base = data.folder or (data.root if os.path.isdir(data.root) else os.path.dirname(data.root))
        if is_url(base):
            return "", [], ""
        below = [] if data.folder else entries(base)[1][:_FOLDERS]
        folders = (base, *(os.path.join(base, name) for name in below))
        for suffix, folder in product(("", *suffixes), folders):
            given = ids if suffix else paths
            found = [name for name, values in given.items() if _are_there(folder, values, suffix)]
            if found:
                return "" if folder == base else os.path.relpath(folder), found[:1] if suffix else found, suffix
        return "", [], ""

    def _kind(self, name: str) -> str:
        """Return the flag that fits the values of a column, or nothing; "bit" for 0 and 1, which are two classes or
        tell whether an image is of one."""
        kind = self._types[name]
        if kind.startswith(("struct", "map")):  # as Hugging Face's boxes and classes of objects
            return ""
        numbers = re.search(r"double|float|decimal", kind) is not None
        if "list<" in kind:
            return "target" if numbers else "labels"
        if numbers:
            return "target"
        whole = kind.startswith(("int", "uint"))
        if not whole and not kind.startswith(("string", "large_string", "dictionary", "bool")):
            return ""
        column = self._table[name]
        known = {str(one) for one in column.drop_null().unique().to_pylist()}
        if known and {one.strip().lower() for one in known} <= {name for names in SPLITS.values() for name in names}:
            return "split"
        if known == {"0", "1"}:
            return "bit"
        few = 2 <= len(known) <= len(column) // 2
        if whole and few and known == {*map(str, range(len(known)))}:
            return "label" if len(known) <= _CLASSES else ""  # ages are such numbers too
        if whole:
            return "target"
        return "label" if few else ""
