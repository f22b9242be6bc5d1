"""Notes on data that can be trained on, and are probably mistaken."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from raytrain import Digits, Folds, Manifest, UserError
from raytrain.data.checks import checked_indices
from raytrain.driver import data_notes

GREY: dict[str, Any] = {"channels": 1, "mean": (0.5,), "std": (0.5,)}


def table(folder: Path, rows: list[tuple[str, ...]], columns: tuple[str, ...] = ("path", "label", "split")) -> str:
    for name in {row[0] for row in rows}:
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / name)
    with open(folder / "t.csv", "w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return str(folder / "t.csv")


def said(root: str, **fields: Any) -> list[str]:
    data = Manifest(root, size=8, **GREY, **fields)
    indices = checked_indices(data)
    plain = data_notes.notes(data, indices, compared=False)
    found = data_notes.notes(data, indices, compared=True)
    assert found[: len(plain)] == plain
    return found[len(plain) :]


def test_classes_that_are_spelled_alike(tmp_path: Path) -> None:
    names = ("bees", "ants", "bees ", "Bees", "wasps")
    rows = [(f"{number}.png", name, split) for number, name in enumerate(names) for split in ("train", "val")]
    rows = [(f"{split}{path}", label, split) for path, label, split in rows]
    (note,) = said(table(tmp_path, rows))
    assert note == "classes differ in spaces or capitals alone: 'Bees' and 'bees' and 'bees '"


def test_a_class_that_only_validates(tmp_path: Path) -> None:
    rows = [("0.png", "a", "train"), ("1.png", "b", "train"), ("2.png", "a", "val"), ("3.png", "c", "val")]
    assert said(table(tmp_path, rows)) == ["train has no sample of 'c', and val has some"]


def test_files_that_are_listed_twice(tmp_path: Path) -> None:
    rows = [("0.png", "a", "train"), ("1.png", "b", "train"), ("1.png", "b", "train"), ("2.png", "a", "train")]
    assert said(table(tmp_path, [*rows, ("3.png", "b", "val")])) == [], "to list a file twice may weigh it"
    rows += [("0.png", "a", "val"), ("2.png", "b", "val")]
    assert said(table(tmp_path, rows)) == [
        "2 files are both in train and in val, such as 0.png",
        "1 file is listed with several classes, such as 2.png",
    ]


def test_data_without_files_or_mistakes_have_no_notes() -> None:
    indices = checked_indices(Digits())
    assert data_notes.notes(Digits(), indices, compared=True) == data_notes.notes(Digits(), indices, compared=False)


@pytest.mark.parametrize("cells", [("p1", ""), ("1.5", "")])
def test_an_empty_group_is_no_group(tmp_path: Path, cells: tuple[str, str]) -> None:
    rows = [(f"{number}.png", "ab"[number % 2], cells[number == 5], str(number % 3)) for number in range(9)]
    root = table(tmp_path, rows, ("path", "label", "patient", "part"))
    folds = Folds(2, group="patient")
    with pytest.raises(UserError, match=r"'patient'.*5\.png|5\.png.*'patient'"):
        checked_indices(Manifest(root, size=8, columns=("patient",), folds=folds, **GREY))


def test_as_many_groups_as_folds_are_folds_in_their_order(tmp_path: Path) -> None:
    parts = [number % 11 for number in range(66)] + [3] * 9 + [10] * 5
    rows = [(f"{number}.png", "ab"[number % 2], str(part)) for number, part in enumerate(parts)]
    root = table(tmp_path, rows, ("path", "label", "part"))
    for fold in (0, 3, 10):
        data = Manifest(root, size=8, columns=("part",), folds=Folds(11, fold, group="part"), **GREY)
        assert checked_indices(data)["val"].columns["part"].astype(int).tolist() == [fold] * parts.count(fold)
    pattern = Folds(2, 1, group_pattern=r"^(\d)\d*\.png", stratify=False)
    root = table(tmp_path, [row[:2] for row in rows if row[0][0] in "12"], ("path", "label"))
    held = checked_indices(Manifest(root, size=8, folds=pattern, **GREY))["val"]
    assert {Path(name).name[0] for name in held.names(np.arange(len(held)))} == {"2"}
