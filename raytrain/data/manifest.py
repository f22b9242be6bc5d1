"""Manifest: a table with a row for each image, by its path or with its bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np

from raytrain import errors
from raytrain.config import check
from raytrain.data import masks, patterns, table_columns, targets
from raytrain.data.hold_out import FRACTION, hold_out, told, with_train
from raytrain.data.images import SPLITS, absolute, splits_of
from raytrain.data.late import with_pillow
from raytrain.data.source import Field, Index
from raytrain.files import is_url, reason

WITH_BYTES = (".parquet", ".pq", ".arrow")
"""Suffixes of tables that can hold the images' bytes."""
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", *WITH_BYTES)
"""Suffixes of tables."""
_TRAIN, _VAL, _TEST = map(list(SPLITS).index, ("train", "val", "test"))


def is_table(path: str) -> bool:
    """Return whether a path or a URL is a table's, by its suffix."""
    return path.partition("?")[0].lower().endswith(TABLES) and not os.path.isdir(path)


@dataclass(frozen=True)
class Manifest(masks.MaskedImages):
    """Images that a CSV, JSON-lines, Parquet or Arrow file lists, one a row: by their paths, or in Parquet and Arrow
    with their bytes, as Hugging Face writes them."""

    root: str = ""
    """The file or its URL, a pattern such as data/train-*.parquet, or a folder of Parquet or Arrow files."""
    path: str = "path"
    """Column of the images' paths."""
    suffix: str = field(default="", kw_only=True)
    """What the files' names end in after what that column says, as .jpg where it has ids in place of paths."""
    bytes: str = ""
    """Column of encoded images in Parquet and Arrow files, in place of paths; also Hugging Face's struct of bytes and
    path."""
    label: str = "label"
    """Column of the classes: names, or numbers from 0."""
    target: tuple[str, ...] = ()
    """Columns of numbers to predict, in place of classes, for `Regression` and `MultiLabel`; or one column of lists of
    them. Samples then have a further field, float32, called as the column, or `value`."""
    labels: str = field(default="", kw_only=True)
    """Column of several classes a row, for `MultiLabel`, in place of one: their names with `separator` between them, or
    lists of names or numbers. An empty cell is a sample of no class."""
    separator: str = field(default=" ", kw_only=True)
    """What stands between the names of several classes."""
    mask: str = field(default="", kw_only=True)
    """Column of the paths of masks, for `Segmentation`, in place of classes; with `bytes`, of encoded masks. A mask has
    its image's shape and a number for each pixel (PNG, GIF or TIFF, grey or with a palette): the pixel's class, or 255
    if it has none."""
    split: str = "split"
    """Column of the names of splits: train, val and test, also training, valid, validation, testing, trainset, valset
    and testset, in any case. Without it, several files take theirs from their names, as train-00000-of-00002.parquet,
    and of a single file a part of each class is held out."""
    columns: tuple[str, ...] = ()
    """Further columns, for `Weighted` and `Folds`."""
    inputs: tuple[str, ...] = field(default=(), kw_only=True)
    """Columns of numbers for a model that gets more than the image, by the task's `forward`. Samples then have a
    further field `inputs`, float32 [columns]."""
    folder: str = ""
    """What relative paths are relative to; by default the folder of the table."""
    val_fraction: float = 0.2
    """Share of each class, or of all samples with `target`, `labels` or `mask`, that validates if no row is in val;
    0 lets all samples train, and the same ones validate."""
    split_seed: int = 0
    """Seed that chooses the held-out images."""

    def __post_init__(self) -> None:
        check(
            self,
            val_fraction=FRACTION,
            separator=(bool, "that is not empty"),
        )
        if self.suffix and self.bytes:
            raise errors.UserError("suffix ends the paths, and with bytes there are none", "in data", "leave one out")
        masks.check_columns(self)
        super().__post_init__()

    def absolute(self) -> Manifest:
        """Return the source with absolute paths."""
        return replace(super().absolute(), folder=absolute(self.folder))

    def with_images(self) -> Manifest:
        """Return the source with `bytes` set to the only column of images that Hugging Face has written, each a struct
        of bytes and path, if there are no paths."""
        tables = with_pillow().tables
        first = tables.files(self._file())[0]
        columns = list(tables.schema(first)) if tables.holds_bytes(first) else []
        structs = [one for one in columns if str(one.type).startswith("struct<")]
        found = [one.name for one in structs if {"bytes", "path"} <= {inner.name for inner in one.type}]
        if len(found) != 1 or self.path in [one.name for one in columns]:
            return self
        return replace(self, bytes=found[0])

    def index(self) -> dict[str, Index]:
        """Return the rows of each split, in their order; classes in the order of their names."""
        tables, root = with_pillow().tables, self._file()
        files = tables.files(root, fresh=True)
        self._check_holds_bytes(files, "leave --data.bytes out")
        schema = tables.schema(files[0])
        has_split = bool(self.split) and (self.split in schema.names or self.split != "split")
        kinds = self._kinds(has_split)
        table_columns.check(self, root, schema, [*kinds, *([self.mask] if self.mask and self.bytes else [])])
        table, counts, schemas = tables.joined(files, kinds)
        if not sum(counts):  # the table has none where all is in columns of bytes
            raise errors.UserError("the manifest has no rows", root, "list at least two images")
        table_columns.check_flat(self, root, table)
        table = {name: table[name] for name in table.column_names}  # each column is freed when it has been used
        by_name = self._named_splits(files)
        splits = self._splits(table) if has_split else np.repeat(by_name, counts)
        if self.target:
            row = partial(self._row, table)
            whole = targets.of_numbers(table, self.target, self._image, self._target_name, root, row)
        elif self.labels:
            column = table[self.labels] if self.labels in self.columns else table.pop(self.labels)
            whole = targets.of_names(column, self.separator, self._image, root)
        elif self.mask:
            whole = masks.of_rows(self, self._image, table, splits, partial(self._row, table))
            splits = np.where(splits == _TEST, -1, splits) if whole.notes else splits
        else:
            train = [has_split or split == _TRAIN for split in by_name]
            whole, splits = self._with_labels(table, splits, self._named_classes(files, counts, schemas, train))
        whole = self._whole(table, whole, self._prefixes(files, counts))
        tables.release()
        found = {
            split: replace(whole.take(np.flatnonzero(splits == number)), split=split)
            for number, split in enumerate(SPLITS)
            if (splits == number).any()
        }
        found = with_train(self, found)
        if "train" not in found:
            raise errors.UserError("no row is in the split train", root, f"name it in column {self.split!r}")
        if "val" not in found and not self.folds.count:
            found |= self._held_out(found["train"], has_split)
        if self.mask:
            notes = (*found["train"].notes, *self.missing_notes(found))
            found["train"] = replace(found["train"], notes=notes)
        del whole
        tables.release()
        return {split: found[split] for split in SPLITS if split in found}

    def unlabelled(self, classes: tuple[str, ...]) -> Index:
        """Return all rows as samples of test, by their paths or bytes and `inputs`; other columns need not be there."""
        tables, root = with_pillow().tables, self._file()
        files = tables.files(root, fresh=True)
        self._check_holds_bytes(files, "give a table with bytes, as the run's own")
        kinds = dict.fromkeys(self.inputs, "number") | ({} if self.bytes else {self.path: "path"})
        table_columns.check(self, root, tables.schema(files[0]), list(kinds), chosen=True)
        table, counts, _ = tables.joined(files, kinds)
        if not sum(counts):
            raise errors.UserError("the table has no rows", root, "list at least one image")
        table_columns.check_flat(self, root, table)
        whole = Index(np.zeros(sum(counts), np.int64), classes, (self.channels, self.size, self.size), "test")
        columns = {name: table[name] for name in table.column_names}
        return self._whole(columns, whole, self._prefixes(files, counts))

    def further(self, index: Any, samples: np.ndarray) -> dict[str, np.ndarray]:  # type: ignore[override]
        """Return the targets and the further inputs of some samples, if there are."""
        name = self._target_name if self.target else "labels" if self.labels else ""
        found = {name: index.targets[index.rows[samples]]} if name else {}
        if self.inputs:
            columns = [index.columns[column][samples].astype(np.float32) for column in self.inputs]
            found["inputs"] = np.stack(columns, axis=1)
        return found

    @property
    def masked(self) -> bool:
        """Whether there is a column of masks."""
        return bool(self.mask)

    def encoded_masks(self, index: Any, samples: np.ndarray) -> Iterator[Any]:
        """Yield the encoded masks of some samples, from their files or from the table."""
        if index.masks is not None:
            return super().encoded_masks(index, samples)
        return self._cells(index, samples, self.mask, needed=self.missing_mask is None)

    def encoded(self, index: Index, samples: np.ndarray) -> Iterator[Any]:
        """Yield the bytes of some samples, from their files or from the table."""
        return self._cells(index, samples, self.bytes) if index.paths is None else super().encoded(index, samples)

    def _cells(self, index: Index, samples: np.ndarray, column: str, needed: bool = True) -> Iterator[Any]:
        """Yield the bytes of some samples in a column; None for an empty cell if they are not needed."""
        try:
            files = with_pillow().tables.files(self._file())
            found = with_pillow().table_cells.cells(files, column, index.rows[samples])
            for sample, raw in zip(samples, found, strict=True):
                if raw is None and needed:
                    raise errors.BadSample(self.where(index, int(sample)), f"it has no bytes in column {column!r}")
                yield raw
        except OSError as error:
            raise errors.BadSample(self._file(), reason(error)) from error

    def where(self, index: Index, sample: int) -> str:
        """Return a file's path, or the table and the row."""
        if index.in_files:
            return super().where(index, sample)
        return f"{self._file()}, {table_columns.row(self._file(), int(index.rows[sample]), None)}"

    def probe(self, index: Index) -> list[errors.BadSample]:
        """Look at both ends of each file, as ImageFolder does, and whether its mask is there; bytes in a table are not
        looked at."""
        return super().probe(index) if index.in_files else []

    def notes(self) -> list[str]:
        """Return notes for the plan: that a part is held out, and that decoded images cannot be cached."""
        tables, shown = with_pillow().tables, with_pillow().byte_files.shown
        files = tables.files(self._file())
        has_split = self.split in tables.schema(files[0]).names or _VAL in self._named_splits(files)
        if has_split or self.folds.count:
            return super().notes()
        lacks = "column of splits" if len(files) == 1 or splits_of(list(map(shown, files))) is None else "file of val"
        return [f"{self.root} has no {lacks}: {self._share}", *super().notes()]

    def size_notes(self, index: Index) -> list[str]:
        """Return what becomes of the images' pixels, and why decoded images are not cached."""
        why = (
            "their bytes are in a table"
            if index.paths is None
            else "there are more than 200,000 files, or they are at a URL"
        )
        uncached = [f"decoded images are not cached: {why} (`raytrain pack` makes later runs fast)"]
        return [*super().size_notes(index), *(uncached if self.cache != "off" and index.times is None else [])]

    def _check_holds_bytes(self, files: tuple[str, ...], how: str) -> None:
        if self.bytes and not all(map(with_pillow().tables.holds_bytes, files)):
            raise errors.UserError("only Parquet and Arrow files hold bytes", self._file(), how)

    def _file(self) -> str:
        if not self.root:
            raise errors.no_root("Manifest")
        return self.root if is_url(self.root) else os.path.expanduser(self.root)

    def _named_splits(self, files: tuple[str, ...]) -> np.ndarray:
        """Return the number of each file's split in SPLITS by its name, int64 [files]: train for a single file."""
        found = splits_of([with_pillow().byte_files.shown(file) for file in files]) if len(files) > 1 else None
        return np.zeros(len(files), np.int64) if found is None else found

    def _kinds(self, has_split: bool) -> dict[str, Any]:
        """Return what each column is for, by its name."""
        kinds = {} if self.target or self.mask or self.labels else {self.label: "label"}
        kinds |= {self.split: "split"} if has_split else {}
        kinds |= dict.fromkeys(self.target, "number") | ({self.labels: "path"} if self.labels else {})
        kinds |= dict.fromkeys(self.inputs, "number")
        kinds |= {name: "group" if name == self.folds.group else "value" for name in self.columns if name not in kinds}
        paths = [] if self.bytes else [self.path, *([self.mask] if self.mask else [])]
        return {**kinds, **dict.fromkeys(paths, "path")}

    def _kept(self) -> list[str]:
        """Return the columns that the index is made of, besides labels and splits."""
        return [*self.columns, *([] if self.bytes else [self.path, *([self.mask] if self.mask else [])])]

    def _row(self, table: dict[str, Any], number: int) -> str:
        """Return what messages call a row, by its number from 0."""
        return table_columns.row(self._file(), number, None if self.bytes else table.get(self.path))

    def _base(self) -> str:
        if self.folder:
            return self.folder if is_url(self.folder) else os.path.expanduser(self.folder)
        path, mark, options = self._file().partition("?") if is_url(self.root) else (self._file(), "", "")
        fixed, pattern = patterns.parted(path)
        if "*" in pattern or len(patterns.expanded(pattern)) > 1:
            path = fixed or "."
        elif path.lower().endswith(TABLES):
            path = os.path.dirname(path) or "."
        return path + mark + options

    def _prefixes(self, files: tuple[str, ...], counts: list[int]) -> np.ndarray | None:
        """Return the folder of each row's table below `_base`, which relative paths begin with, str [n]; None where no
        table of a pattern is deeper."""
        base, shown = self._base(), with_pillow().byte_files.shown
        pattern = patterns.parted(shown(self._file()))[1]
        if self.folder or self.bytes or "/" not in pattern:
            return None
        start = "" if base == "." else f"{shown(base).rstrip('/')}/"
        folders = [os.path.dirname(shown(one).removeprefix(start)) for one in files]
        folders = list(map(unquote, folders)) if is_url(base) else folders
        return np.repeat(np.array(folders, object), counts) if any(folders) else None

    def _splits(self, table: dict[str, Any]) -> np.ndarray:
        """Return the number of each row's split in SPLITS, int8 [n]."""
        column = table[self.split] if self.split in self._kept() else table.pop(self.split)
        codes, names = with_pillow().tables.coded(column)
        known = {name: number for number, names in enumerate(SPLITS.values()) for name in names}
        unknown = [name for name in names if name.strip().lower() not in known]
        if unknown or (codes < 0).any():
            what = f"{self._row(table, int(codes.argmin()))} has no split in column {self.split!r}"
            if unknown:
                what = f"unknown split {unknown[0]!r} in column {self.split!r}"
            # A column without any known split is no column of splits: True and False are not misspelt.
            how = errors.nearest(unknown[0], known) if 0 < len(unknown) < len(names) else ""
            how += "write train, val or test into each row"
            raise errors.UserError(what, self._file(), how)
        return np.array([known[name.strip().lower()] for name in names], np.int8)[codes]

    def _named_classes(
        self, files: tuple[str, ...], counts: list[int], schemas: list[Any], train: list[bool]
    ) -> list[Any]:
        """Return the tables with the names that they give their classes."""
        pillow = with_pillow()
        names = [pillow.hugging_face.class_names(schema, self.label) for schema in schemas]
        shown = map(pillow.byte_files.shown, files)
        return list(map(pillow.table_labels.Table, shown, counts, names, train))

    def _with_labels(self, table: dict[str, Any], splits: np.ndarray, files: list[Any]) -> tuple[Index, np.ndarray]:
        """Return the index of samples with classes, and the splits without a test that has no labels."""
        column = table[self.label] if self.label in self._kept() else table.pop(self.label)
        test = splits == _TEST
        of_rows = with_pillow().table_labels.of_rows
        labels, classes, unlabelled = of_rows(column, self.label, files, test, self._file(), partial(self._row, table))
        notes = (f"{self.root}: no row of test has a label, so test is left out",) if unlabelled else ()
        whole = Index(labels, classes, (self.channels, self.size, self.size), notes=notes)
        return whole, np.where(test, -1, splits) if unlabelled else splits

    def _held_out(self, train: Index, has_split: bool) -> dict[str, Index]:
        """Return train and val, a part of each class of train."""
        labels = np.zeros(len(train), np.int64) if train.labels is None else train.labels
        rest, held_out = hold_out(self, labels)
        if not len(held_out):
            how = "add rows of the split val, or more images"
            what = "there is only one image" if train.labels is None else "no class has two images"
            if all(re.fullmatch(r"-?\d+(\.\d*)?", name) for name in train.classes) and train.classes:
                how += f"; to predict numbers, use --data.target {self.label}"
            raise errors.UserError(what, self._file(), how)
        notes = (f"{self.root} has no row of the split val: {self._share}",) if has_split else ()
        kept = replace(train.take(rest), notes=(*notes, *train.notes))
        return {"train": kept, "val": replace(train.take(held_out), split="val")}

    @property
    def _share(self) -> str:
        of = "all samples are" if self.target or self.labels or self.mask else "each class is"
        return told(self, of)

    @property
    def _image(self) -> Field:
        return Field("image", (self.channels, self.size, self.size), kind="image")

    @property
    def _target_name(self) -> str:
        name = self.target[0]
        taken = ("image", "bad", "label", "target")
        return name if len(self.target) == 1 and name.isidentifier() and name not in taken else "value"

    def _whole(self, table: dict[str, Any], whole: Index, folders: np.ndarray | None) -> Index:
        """Return the index of all rows with its columns, and paths or rows."""
        tables, where = with_pillow().tables, self._file()
        for name in self._kept():
            given = table[name] if name in self.columns else tables.spelling.given(table[name])
            if given.null_count:
                row = self._row(table, int(given.is_null().to_numpy().argmax()))
                raise errors.UserError(
                    f"column {name!r} has an empty cell in {row}", where, "fill it, or remove the row"
                )
        whole = replace(whole, columns={name: tables.values(table[name]) for name in self.columns})
        if self.inputs:
            whole = targets.with_inputs(whole, table, self.inputs, where, partial(self._row, table))
        if self.bytes:
            return replace(whole, rows=np.arange(len(whole)))
        paths, sizes, times = self._files(table.pop(self.path), folders, self.suffix)
        whole = replace(whole, paths=paths, sizes=sizes, times=times)
        if not isinstance(whole, masks.MaskIndex):
            return whole
        paths, sizes, later = self._files(table.pop(self.mask), folders)
        times = None if times is None or later is None else np.maximum(times, later)
        return replace(masks.with_files(whole, paths, sizes), times=times)

    def _files(
        self, column: Any, folders: np.ndarray | None, suffix: str = ""
    ) -> tuple[Any, np.ndarray | None, np.ndarray | None]:
        """Return the paths of a column below `_base`, and their files' sizes and times."""
        tables = with_pillow().tables
        paths = tables.strings(tables.spelling.ended(column, suffix) if suffix else column)
        paths = paths if folders is None else tables.below(folders, paths)
        sizes, times = tables.status(self._base(), paths) or (None, None)
        return paths, sizes, times
