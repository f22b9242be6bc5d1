"""Manifest.labels: several classes a row, for MultiLabel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from helpers.packs import packed
from PIL import Image
from pyarrow import csv, parquet

from raytrain import AUROC, CNN, F1, SGD, Classification, Experiment, Manifest, MultiLabel, Packed, UserError
from raytrain.data.checks import checked_indices, checked_read
from raytrain.data.table_labels import several
from raytrain.driver.plan import make
from raytrain.driver.resources import Node, Resources

TAGS = ["haze primary", "clear", "", "primary clear", None, "haze"]


@pytest.mark.parametrize(
    ("column", "separator", "rows", "names"),
    [
        ([["b a", "", None, " a  c"]], " ", [(0, 1), (0, 0), (3, 0), (3, 2)], ["a", "b", "c"]),
        ([["10|2"], ["0", "2"]], "|", [(0, 2), (0, 1), (1, 0), (2, 1)], ["0", "2", "10"]),
        ([["x, y z", "y z"]], ",", [(0, 0), (0, 1), (1, 1)], ["x", "y z"]),
        ([[[10, 2], None, []], [[2]]], "|", [(0, 1), (0, 0), (3, 0)], ["2", "10"]),
        ([[["a b"], ["a", "a b"]]], " ", [(0, 1), (1, 0), (1, 1)], ["a", "a b"]),
        ([["01 1"]], " ", [(0, 0), (0, 1)], ["01", "1"]),
        ([["9 12345678901234567890"]], " ", [(0, 0), (0, 1)], ["9", "12345678901234567890"]),
    ],
)
def test_names_are_found_in_each_row(column: list[Any], separator: str, rows: list[Any], names: list[str]) -> None:
    found, known = several(pa.chunked_array(column), separator)
    assert list(map(tuple, found.tolist())) == rows and known == names


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of 12 images; half of them are of val."""
    for number in range(12):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    rows = {
        "path": [f"{number}.png" for number in range(12)],
        "tags": TAGS * 2,
        "split": ["train"] * 6 + ["val"] * 6,
    }
    csv.write_csv(pa.table(rows), tmp_path / "list.csv")
    return tmp_path / "list.csv"


def source(table: Path, **fields: Any) -> Manifest:
    return Manifest(str(table), **({"labels": "tags", "size": 8, "cache": "off"} | fields))


def expected() -> np.ndarray:
    names = ("clear", "haze", "primary")
    return np.array([[name in (tags or "").split() for name in names] for tags in TAGS], np.uint8)


def test_each_class_of_a_row_is_a_one(table: Path, tmp_path: Path) -> None:
    lists = pa.table(
        {"path": [f"{number}.png" for number in range(12)], "tags": [(one or "").split() for one in TAGS * 2]}
    )
    parquet.write_table(lists.append_column("split", [["train"] * 6 + ["val"] * 6]), tmp_path / "lists.parquet")
    packed(source(table), tmp_path / "pack", codec="original")
    for data in (source(table), source(tmp_path / "lists.parquet"), Packed(str(tmp_path / "pack"))):
        for index in checked_indices(data).values():
            assert index.classes == ("clear", "haze", "primary") and index.labels is None
            assert np.array_equal(checked_read(data, index, np.arange(6))["labels"], expected())
            assert np.array_equal(
                checked_read(data, index.take(np.array([3, 0])), np.arange(2))["labels"], expected()[[3, 0]]
            )


def test_models_and_metrics_know_the_classes(table: Path) -> None:
    task = MultiLabel(metrics=(F1(of="haze"), AUROC()), monitor="val_f1_haze")
    e = Experiment(model=CNN(channels=(4,)), data=source(table), task=task, optimizer=SGD(lr=0.1), batch_size=2)
    machine = Resources((Node("n0", 2.0, 0.0, 2**33),), "this machine")
    planned = make(e, lambda: machine, "runs/x")
    assert planned.baseline.scores["val_accuracy"] == np.mean(expected() == (expected().mean(0) > 0.5))
    rows = task.per_class(
        {name: np.arange(3) for name in ("right", "answered", "actual")}, ("clear", "haze", "primary")
    )
    assert [row["class"] for row in rows] == ["clear", "haze", "primary"]
    with pytest.raises(UserError, match=r"Classification wants one class of each sample.*use task=MultiLabel\(\)"):
        make(replace(e, task=Classification()), lambda: machine, "runs/x")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target": ("x",)}, "target and labels are both what is to be predicted"),
        ({"mask": "x"}, "labels and mask are both what is to be predicted"),
        ({"separator": ""}, "separator = '' is out of range"),
    ],
)
def test_contradictory_targets_are_refused(table: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        source(table, **fields)


def test_a_column_without_classes_is_refused(table: Path) -> None:
    with pytest.raises(UserError, match=r"has no column 'tag'.*did you mean tags\?"):
        source(table, labels="tag").index()
    csv.write_csv(pa.table({"path": ["0.png", "1.png"], "tags": ["", ""], "split": ["train", "val"]}), table)
    with pytest.raises(UserError, match="no row names a class"):
        source(table).index()
