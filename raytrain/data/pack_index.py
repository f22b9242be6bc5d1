"""The files of a pack that list the samples of its splits; see `shards.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raytrain.data.source import Field, Index


@dataclass(frozen=True, eq=False)
class PackedIndex(Index):
    """The samples of one split of a pack.

    Attributes:
        contents: the sha256 of the file that lists them, with a checksum of each.
    """

    contents: str = ""

    def fingerprint(self) -> str:
        """Return a hash of the samples and their bytes."""
        return f"{super().fingerprint()}-{self.contents[:16]}"


def index_name(split: str) -> str:
    """Return the name of the file that lists a split's samples."""
    return f"index-{split}.arrow"


def split_values(index: Index) -> dict[str, Any]:
    """Return what the manifest says about the samples of a split."""
    return {
        "fields": [vars(field) | {"shape": list(field.shape)} for field in index.fields],
        "image": index.shape is not None,
        "classes": list(index.classes),
        "labels": index.labels is not None,
        "names": index.in_files,
        "columns": {name: column.dtype.newbyteorder("=").str for name, column in index.columns.items()},
        "shares": list(index.shares),
        **({} if index.validate is None else {"validate": index.validate}),
    }


def write_index(path: Path, index: Index, places: Mapping[str, np.ndarray]) -> None:
    """Write the file that lists a split's samples.

    Args:
        places: shard, offset, length and crc of each sample, [n] each.
    """
    arrays: dict[str, pa.Array] = {name: pa.array(array) for name, array in places.items()}
    if index.labels is not None:
        arrays["label"] = pa.array(index.labels)
    if index.in_files:
        arrays["name"] = index.paths if index.paths is not None else pa.array(index.names(np.arange(len(index))))
    for name, column in index.columns.items():  # Arrow packs booleans into bits, which cannot be mapped
        native = column.astype(column.dtype.newbyteorder("="), copy=False)
        arrays[f"column.{name}"] = pa.array(native.view(np.uint8) if column.dtype.kind == "b" else native)
    batch = pa.record_batch(list(arrays.values()), names=list(arrays))
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)


class Table:
    """The samples of one split, as its index file lists them; the arrays are mapped from the disk, [n] each."""

    def __init__(self, path: Path):
        with pa.memory_map(str(path)) as file:
            self.batch = pa.ipc.open_file(file).get_batch(0)
        self.shard, self.offset, self.length, self.crc = map(self._array, ("shard", "offset", "length", "crc"))
        self.checked = np.zeros(len(self.shard), bool)  # the raw samples whose checksum this process has compared

    def _array(self, name: str) -> np.ndarray:
        return self.batch.column(name).to_numpy(zero_copy_only=True)

    def index(self, split: str, values: Mapping[str, Any], raw: bool) -> PackedIndex:
        """Return the index of the split, whose `rows` are the samples' places here."""
        fields = tuple(Field(**{**one, "shape": tuple(one["shape"])}) for one in values["fields"])
        columns = {}
        for name, kind in values["columns"].items():
            column, dtype = self.batch.column(f"column.{name}"), np.dtype(kind)
            plain = column.to_pylist() if dtype.kind == "U" else column.to_numpy(zero_copy_only=True)
            columns[name] = np.array(plain, dtype) if dtype.kind == "U" else plain.view(dtype)
        shape: Any = fields[0].shape if values["image"] else None
        further = sum(field.bytes for field in fields[1:])
        return PackedIndex(
            contents=values["index"]["sha256"],
            labels=self._array("label") if values["labels"] else None,  # type: ignore[arg-type]
            classes=tuple(values["classes"]),
            shape=shape,
            split=split,
            rows=np.arange(len(self.shard)),
            paths=self.batch.column("name") if values["names"] else None,
            sizes=None if raw else self.length - further if further else self.length,
            fields=fields,
            columns=columns,
            shares=tuple(values["shares"]),
            validate=values.get("validate"),
        )
