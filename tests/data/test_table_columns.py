"""Columns of a Manifest's tables that cannot be used: one line that names the file and the column."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv, parquet

from raytrain.data import Manifest
from raytrain.data.checks import checked_indices
from raytrain.errors import UserError


def write(table: pa.Table, path: Path) -> str:
    if path.suffix == ".csv":
        csv.write_csv(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        parquet.write_table(table, path)
    return str(path)


@pytest.mark.parametrize(
    ("name", "table", "message"),
    [
        (
            "b.csv",
            b"path,label\n0.png,caf\xe9\n",
            "column 'label' must be text in UTF-8, {}/b.csv; write the file again",
        ),
        ("b.csv", b"path,tag\n0.png,a\n", "the manifest has no column 'label', {}/b.csv; give all tables the same"),
        ("b.jsonl", b'{"path": "0.png"}', "the manifest has no column 'label', {}/b.jsonl; give all tables the same"),
        ("b.parquet", {"label": [b"\xff"]}, "column 'label' must be text in UTF-8, {}/b.parquet; write the file"),
        ("b.parquet", {"label": pa.array([2**63], pa.uint64())}, "column 'label' must be whole numbers of at most"),
        ("b.parquet", {"other": [0]}, "the manifest has no column 'label', {}/b.parquet; give all tables"),
    ],
)
def test_the_table_whose_column_is_wrong_is_named(
    name: str, table: bytes | dict[str, list[object]], message: str, tmp_path: Path
):
    first = {"path": "0.png", "label": "a"}
    write(pa.Table.from_pylist([first]), tmp_path / name.replace("b", "a", 1))
    if isinstance(table, bytes):
        (tmp_path / name).write_bytes(table)
    else:
        write(pa.table({"path": ["0.png"], **table}), tmp_path / name)
    with pytest.raises(UserError, match=re.escape(message.format(tmp_path))):
        checked_indices(Manifest(f"{tmp_path}/*{Path(name).suffix}"))
