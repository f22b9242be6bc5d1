"""Columns of a Manifest's tables that cannot be used: one line that names the file and the column."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
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


def test_two_columns_of_one_name_are_refused(tmp_path: Path):
    (tmp_path / "a.csv").write_text("path,label,label\n0.png,a,b\n")
    table = pa.Table.from_arrays([pa.array(["x"])] * 3, names=["path", "label", "label"])
    parquet.write_table(table, tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        with pytest.raises(UserError, match=rf"several columns called 'label', .*{name}; give each column a name of"):
            checked_indices(Manifest(str(tmp_path / name)))


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["0.png"], "string"),
        ([[1, 2]], "list<element: int64>"),
        ([{"path": "0.png"}], "struct<path: string>"),
        ([[{"bytes": b"x"}]], "list<element: struct<bytes: binary>>"),
    ],
)
def test_a_column_without_bytes_is_one_line(cells: list[object], kind: str, tmp_path: Path):
    root = write(pa.table({"image": cells * 2, "label": [0, 0]}), tmp_path / "a.parquet")
    message = f"column 'image' must have bytes, or Hugging Face's struct of bytes and path, got {kind}, {root}; "
    with pytest.raises(UserError, match=re.escape(message)):
        Manifest(root, bytes="image").index()


def test_a_name_with_a_space_is_quoted(tmp_path: Path):
    (tmp_path / "a.csv").write_text("path, label\n0.png, a\n")
    with pytest.raises(UserError, match=r"did you mean ' label'\? the columns are path, ' label'"):
        Manifest(str(tmp_path / "a.csv")).index()


@pytest.mark.parametrize(
    ("first", "second", "classes"),
    [(["1", "2"], ["cat", "1"], ("1", "2", "cat")), (["cat", "1"], ["1", "2"], ("1", "2", "cat")),
     (["1", "2"], ["1.0", "2.0"], ("1", "2")), (["1", "2"], ["", "2.5"], ("1", "2", "2.5")),
     (["2024-01-05", "1"], ["7", "01"], ("01", "1", "2024-01-05", "7"))],
)  # fmt: skip
def test_csv_files_may_look_like_other_types_than_their_neighbours(
    first: list[str], second: list[str], classes: tuple[str, ...], tmp_path: Path
) -> None:
    for name, labels in (("a", first), ("b", second), ("c", ["1", "1"])):
        rows = [f"{label},{n}.png,{split}" for n, label in enumerate(labels) if label for split in ("train", "val")]
        (tmp_path / f"{name}.csv").write_text("\n".join(["label,path,split", *rows]))
    index = Manifest(f"{tmp_path}/*.csv").index()["train"]
    assert index.classes == classes
    assert [classes[label] for label in index.labels] == [
        str(int(float(label))) if classes == ("1", "2") else label for label in [*first, *second, "1", "1"] if label
    ]


def test_numbers_of_csv_files_may_be_whole_in_some(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "0.png")
    for name, cells in (("a", ("1", "2")), ("b", ("2.5", "-3"))):
        rows = [f"0.png,{cell},{cell},{split}" for cell in cells for split in ("train", "val")]
        (tmp_path / f"{name}.csv").write_text("\n".join(["path,age,weight,split", *rows]))
    data = Manifest(f"{tmp_path}/*.csv", size=4, target=("age",), columns=("weight",))
    index = data.index()["train"]
    assert data.read(index, np.arange(4))["age"].tolist() == index.columns["weight"].tolist() == [1, 2, 2.5, -3]


def test_texts_of_json_lines_that_look_like_times_stay_texts(tmp_path: Path) -> None:
    rows = [{"path": f"2021-05-0{day}", "label": f"2021-05-0{day % 2}", "tags": ["2021-05-01"]} for day in range(1, 7)]
    rows = [row | {"split": "val" if row is rows[-1] else "train"} for row in rows]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = checked_indices(Manifest(str(tmp_path / "a.jsonl"), suffix=".png", cache="off"))
    assert found["train"].classes == ("2021-05-00", "2021-05-01")
    assert found["val"].paths is not None and found["val"].paths.to_pylist() == ["2021-05-06.png"]
    several = Manifest(str(tmp_path / "a.jsonl"), suffix=".png", label="", labels="tags", cache="off")
    assert checked_indices(several)["train"].classes == ("2021-05-01",)


def test_a_split_that_only_late_rows_of_json_lines_have_is_seen(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"path": f"{number}.png", "label": number % 2} for number in range(60_000)]
    rows[-1]["split"] = "val"
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r"line 1 \(0.png\) has no split"):
        Manifest(str(tmp_path / "a.jsonl"), cache="off").index()


def test_texts_of_parquet_files_may_be_of_each_kind(tmp_path: Path) -> None:
    for number, kind in enumerate((pa.string(), pa.large_string(), pa.string())):
        split = pa.array(["train", "train", "val", "val"], kind)
        table = {"path": pa.array(list("abcd"), kind), "label": pa.array(["x", "y", "x", "y"], kind), "split": split}
        write(pa.table(table), tmp_path / f"{number}.parquet")
    found = checked_indices(Manifest(f"{tmp_path}/*.parquet", cache="off"))
    assert found["train"].classes == ("x", "y") and found["train"].labels.tolist() == [0, 1] * 3


def test_decimals_are_numbers(tmp_path: Path) -> None:
    ages = pa.array([1.5, 2.25, 3.0, 4.125]).cast(pa.decimal128(9, 3))
    write(pa.table({"path": list("abcd"), "age": ages}), tmp_path / "a.parquet")
    index = Manifest(str(tmp_path / "a.parquet"), target=("age",), cache="off", val_fraction=0.25).index()["train"]
    assert sorted(index.targets.tolist()) == [1.5, 2.25, 3.0, 4.125]  # type: ignore[attr-defined]


@pytest.mark.parametrize("labels", [[-1, 1, -1, 1], [-1, 0, 1, 0]])
def test_labels_below_0_are_not_called_missing(labels: list[int], tmp_path: Path) -> None:
    write(pa.table({"path": list("abcd"), "label": labels}), tmp_path / "a.csv")
    message = r"line 2 \(a\) has the label -1 in column 'label', "
    with pytest.raises(UserError, match=message + re.escape(f"{tmp_path}/a.csv; number the classes from 0, write")):
        Manifest(str(tmp_path / "a.csv"), cache="off").index()
