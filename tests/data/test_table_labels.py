"""Labels of a Manifest: names of classes that differ by file, texts that look like numbers, floats, none in test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from raytrain.data import Folds, Manifest
from raytrain.data.checks import checked_indices
from raytrain.errors import UserError


def named(path: Path, classes: list[str] | None, labels: Sequence[int]) -> None:
    """Write a Parquet file of images, whose classes Hugging Face's metadata names."""
    features = {"label": {"names": classes, "_type": "ClassLabel"}}
    about = {} if classes is None else {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"image": [b"x"] * len(labels), "label": labels})
    parquet.write_table(table.replace_schema_metadata(about), path)


def told(index: Any) -> list[str]:
    return [index.classes[label] for label in index.labels]


def csv(path: Path, labels: Sequence[str], groups: Sequence[str] = ()) -> Manifest:
    """Write a table whose rows are all of train and of val."""
    rows = [
        f"{row}.png,{label},{group},{split}"
        for split in ("train", "val")
        for row, (label, group) in enumerate(zip(labels, groups or labels, strict=True))
    ]
    path.write_text("\n".join(["path,label,group,split", *rows]))
    return Manifest(str(path), columns=("group",) if groups else ())


@pytest.mark.parametrize("val", [["ant", "cat"], ["cat", "bee", "ant"], ["ant", "bee", "cat"]])
def test_classes_in_another_order_go_by_their_names(tmp_path: Path, val: list[str]) -> None:
    classes = ["ant", "bee", "cat"]
    named(tmp_path / "train-0.parquet", classes, [0, 1, 2])
    named(tmp_path / "train-1.parquet", ["cat"], [0, 0])
    named(tmp_path / "test-0.parquet", ["bee"], [0])
    named(tmp_path / "validation-0.parquet", val, range(len(val)))
    found = checked_indices(Manifest(str(tmp_path), bytes="image"))
    assert all(index.classes == tuple(classes) for index in found.values())
    assert told(found["train"]) == ["ant", "bee", "cat", "cat", "cat"] and told(found["test"]) == ["bee"]
    assert told(found["val"]) == val


def test_classes_that_cannot_be_joined_name_the_file(tmp_path: Path) -> None:
    data, last = Manifest(str(tmp_path), bytes="image"), tmp_path / "validation-0.parquet"
    named(tmp_path / "train-0.parquet", ["ant", "bee"], [0, 1])
    named(last, ["ant", "cat"], [0, 1])
    with pytest.raises(UserError, match=rf"names classes that .*train-0.parquet does not: 'cat', {last}; "):
        data.index()
    named(last, ["bee"], [0, 1])
    with pytest.raises(UserError, match=rf"label 1 in column 'label', which names 1 classes, {last}; "):
        data.index()
    named(tmp_path / "test-0.parquet", None, [0, 1])
    with pytest.raises(UserError, match=r"does not name the classes of column 'label'.*test-0\.parquet; "):
        data.index()
    named(last, ["ant", "bee"], [0, 1])
    (tmp_path / "test-0.parquet").unlink()
    named(tmp_path / "validation-1.parquet", None, [0, 1])  # the names of all others are the same
    assert told(data.index()["val"]) == ["ant", "bee", "ant", "bee"]


@pytest.mark.parametrize(
    "labels",
    [
        ["1.1", "1.10", "2.3"],
        ["1E2", "100", "10E1"],
        ["10000000000000000001", "10000000000000000002", "7"],
        ["99999999999999999999", "0"],
        ["007", "7", "8"],
        ["12:30", "12:30:00"],
    ],
)
def test_texts_that_look_like_equal_numbers_are_classes_of_their_own(tmp_path: Path, labels: list[str]) -> None:
    found = checked_indices(csv(tmp_path / "a.csv", labels))
    assert found["train"].classes == tuple(sorted(labels)) and told(found["val"]) == labels


@pytest.mark.parametrize("labels", [["1.1", "1.10"], ["7", "007"], ["10000000000000000001", "10000000000000000002"]])
def test_texts_of_several_files_stay_apart(tmp_path: Path, labels: list[str]) -> None:
    for number, label in enumerate(labels):
        (tmp_path / f"{number}.csv").write_text(f"path,label\na.png,{label}\nb.png,{label}\n")
    assert checked_indices(Manifest(str(tmp_path / "*.csv")))["train"].classes == tuple(sorted(labels))


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["1", "0", "2"], "0 1 2"),
        (["00", "01"], "0 1"),
        (["1", "0", "1.0"], "0 1"),
        (["0.5", "1.5"], "0.5 1.5"),
        (["True", "true", "False"], "false true"),
        (["12:30", "12:31"], "12:30:00 12:31:00"),
        ([f"{number}.0" for number in range(12)], "0 1 2 3 4 5 6 7 8 9 10 11"),
        (["3.0", "20.0"], "3 20"),
    ],
)
def test_numbers_and_times_that_differ_are_read_as_such(tmp_path: Path, labels: list[str], classes: str) -> None:
    found = checked_indices(csv(tmp_path / "a.csv", labels))["train"]
    assert found.classes == tuple(classes.split())
    assert len(set(found.labels.tolist())) == len(found.classes)


def test_cells_without_a_number_are_no_labels(tmp_path: Path) -> None:
    for text in ("", "nan", "null"):
        with pytest.raises(UserError, match=r"line 3 \(1.png\) has no label"):
            csv(tmp_path / "a.csv", ["1.1", text, "1.10"]).index()


def test_groups_that_look_like_equal_numbers_stay_apart(tmp_path: Path) -> None:
    labels = ["a"] * 4
    versions = csv(tmp_path / "a.csv", labels, ["1.1", "1.10", "2.3", "2.30"])
    assert versions.index()["train"].columns["group"].tolist() == [1.1, 1.1, 2.3, 2.3]  # as weights
    versions = Manifest(versions.root, columns=("group",), folds=Folds(2, group="group"))
    assert versions.index()["train"].columns["group"].tolist() == ["1.1", "1.10", "2.3", "2.30"]
    large = ["10000000000000000001", "10000000000000000002", "1", "2"]
    for groups in (["007", "7", "8", "9"], large, ["7", "07", "8.5", "9"]):
        assert csv(tmp_path / "a.csv", labels, groups).index()["train"].columns["group"].tolist() == groups
    finite = csv(tmp_path / "a.csv", labels, ["0.5", "1", "1.5", "inf"])
    finite = Manifest(finite.root, columns=("group",), folds=Folds(2, group="group"))
    assert finite.index()["train"].columns["group"].tolist() == [0.5, 1, 1.5, np.inf]
    weights = csv(tmp_path / "a.csv", labels, ["0.5", "0.50", "1e300", "2"]).index()["train"].columns["group"]
    assert weights.tolist() == [0.5, 0.5, 1e300, 2]


def test_floats_of_parquet(tmp_path: Path) -> None:
    paths = [f"{row}.png" for row in range(24)]
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        labels = pa.array(np.arange(24) % 12.0).cast(kind)
        parquet.write_table(pa.table({"path": paths, "label": labels}), tmp_path / "a.parquet")
        found = checked_indices(Manifest(str(tmp_path / "a.parquet"), val_fraction=0.5))
        assert found["train"].classes == tuple(map(str, range(12)))
        names = [int(name.partition(".")[0]) % 12 for name in found["val"].names(np.arange(12))]
        assert found["val"].labels.tolist() == names
    for gap in (None, float("nan")):
        parquet.write_table(pa.table({"path": paths[:3], "label": [0.0, gap, 0.0]}), tmp_path / "a.parquet")
        with pytest.raises(UserError, match=r"row 2 \(counted from 1, 1.png\) has no label"):
            Manifest(str(tmp_path / "a.parquet")).index()


def test_numbers_from_1_are_names_of_classes(tmp_path: Path) -> None:
    rows = [f"{number}.png,{1 + number % 11}" for number in range(44)]
    (tmp_path / "a.csv").write_text("\n".join(["path,label", *rows]))
    found = checked_indices(Manifest(str(tmp_path / "a.csv"), val_fraction=0.5))
    assert found["train"].classes == tuple(map(str, range(1, 12)))
    named = [1 + int(name.partition(".")[0]) % 11 for name in found["val"].names(np.arange(22))]
    assert [int(name) for name in told(found["val"])] == named


def test_a_test_split_without_labels_is_left_out_with_a_note(tmp_path: Path) -> None:
    for split, labels in (("train", [0, 1, 1]), ("validation", [1, 0]), ("test", [-1, -1])):
        named(tmp_path / f"{split}.parquet", ["ant", "bee"], labels)
    data = Manifest(str(tmp_path), bytes="image", cache="off")
    found = checked_indices(data)
    assert list(found) == ["train", "val"] and told(found["train"]) == ["ant", "bee", "bee"]
    assert found["train"].notes == (f"{tmp_path}: no row of test has a label, so test is left out",)
    named(tmp_path / "test.parquet", ["ant", "bee"], [-1, 1])
    with pytest.raises(UserError, match=r"row 1 \(counted from 1\) has no label"):
        data.index()
    named(tmp_path / "test.parquet", ["ant", "bee"], [0, 1])
    named(tmp_path / "validation.parquet", ["ant", "bee"], [-1, -1])
    with pytest.raises(UserError, match=r"row 6 .* has no label"):
        data.index()


def test_a_part_of_train_is_held_out_with_a_note(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("path,label,split\n0.png,a,train\n1.png,a,train\n2.png,a,test\n")
    data = Manifest(str(table), cache="off")
    note = f"{table} has no row of the split val: 20% of each class is used for validation (--data.val_fraction)"
    assert data.index()["train"].notes == (note,)
    table.write_text("path,label,split\n0.png,a,train\n1.png,a,train\n2.png,a,val\n")
    assert data.index()["train"].notes == ()


@pytest.mark.parametrize("fields", [{"target": ("age",)}, {"labels": "label"}, {"mask": "label"}])
def test_a_part_of_all_samples_is_held_out_where_a_sample_has_no_class_of_its_own(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    table = tmp_path / "a.csv"
    table.write_text("path,label,age\n" + "".join(f"{number}.png,a,{number}.5\n" for number in range(10)))
    data = Manifest(str(table), cache="off", **fields)
    note = f"{table} has no column of splits: 20% of all samples are used for validation (--data.val_fraction)"
    assert data.notes()[0] == note and len(data.index()["val"]) == 2
    table.write_text("path,label,age\n0.png,a,0.5\n")
    with pytest.raises(UserError, match="there is only one image"):
        data.index()
