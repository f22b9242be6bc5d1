"""folds: another split into training and validation, compared with a reference written by hand."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from torch.utils.data import Dataset

from raytrain import (
    MLP,
    Data,
    Digits,
    Experiment,
    Field,
    Folds,
    ImageFolder,
    Index,
    Manifest,
    MaskFolder,
    TorchData,
    WebDataset,
    config,
)
from raytrain.data.checks import checked_indices, checked_read
from raytrain.driver import data_notes
from raytrain.errors import UserError
from raytrain.sweep import record

RANDOM = np.random.default_rng(3)
LABELS = RANDOM.permutation(np.repeat(np.arange(4), (71, 40, 23, 6)))
N = len(LABELS)
PATIENTS = np.array([f"p{n}" for n in RANDOM.integers(0, 29, N)])
INDEX = Index(LABELS, tuple("abcd"), (1, 2, 2), "train", columns={"patient": PATIENTS})


def parts(folds: Folds, index: Index = INDEX) -> list[tuple[np.ndarray, np.ndarray]]:
    """The rows of train and val of each fold, found by a column that numbers them."""
    numbered = replace(index, columns={**index.columns, "number": np.arange(len(index))})
    found = []
    for fold in range(folds.count):
        split = replace(folds, fold=fold).split({"train": numbered, "val": numbered.take(np.arange(2))})
        found.append(tuple(split[name].columns["number"] for name in ("train", "val")))
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("count", [2, 3, 5, 6])
@pytest.mark.parametrize(
    "folds",
    [Folds(), Folds(stratify=False), Folds(group="patient"), Folds(group="patient", stratify=False)],
    ids=["stratified", "plain", "grouped", "grouped_plain"],
)
def test_every_sample_validates_once_and_trains_in_all_other_folds(folds: Folds, count: int) -> None:
    split = parts(replace(folds, count=count))
    assert np.array_equal(np.sort(np.concatenate([val for _, val in split])), np.arange(N))
    for train, val in split:
        assert len(val) and np.array_equal(np.sort(np.concatenate([train, val])), np.arange(N))
        assert np.array_equal(train, np.sort(train)) and np.array_equal(val, np.sort(val))
        if folds.group:
            assert not set(PATIENTS[train]) & set(PATIENTS[val]), "no group spans folds"


@pytest.mark.parametrize("count", [2, 3, 5, 6])
def test_stratified_folds_have_equal_shares_within_one_sample(count: int) -> None:
    held = np.array([np.bincount(LABELS[val], minlength=4) for _, val in parts(Folds(count))])
    for label in range(4):  # by hand: a class of n samples gives n // count to each fold, and the rest to n % count
        each, more = divmod(int((LABELS == label).sum()), count)
        assert sorted(held[:, label]) == [each] * (count - more) + [each + 1] * more
    assert held.sum(1).max() - held.sum(1).min() <= 1
    plain = np.array([len(val) for _, val in parts(Folds(count, stratify=False))])
    assert plain.max() - plain.min() <= 1


def imbalance(folds: np.ndarray, labels: np.ndarray, count: int) -> float:
    """The sum of squared shares of the classes over folds: 1 / count of each class is the least."""
    total = 0.0
    for fold in range(count):
        for label in np.unique(labels):
            total += float(((folds == fold) & (labels == label)).sum() / (labels == label).sum()) ** 2
    return total


def test_grouped_folds_are_nearly_as_even_as_the_best_of_all_assignments() -> None:
    labels = np.repeat([0, 0, 1, 1, 0, 1, 1, 0], (3, 5, 4, 2, 1, 3, 2, 4))
    groups = np.repeat(np.arange(8), (3, 5, 4, 2, 1, 3, 2, 4))
    index = Index(labels, ("a", "b"), (1, 2, 2), "train", columns={"g": groups})
    every = [
        np.array([(code >> group) & 1 for group in range(8)])[groups] for code in range(1, 255)
    ]  # all ways to spread 8 groups over 2 folds
    scores = sorted(imbalance(folds, labels, 2) for folds in every)
    for seed in range(5):
        found = imbalance(Folds(2, group="g", seed=seed).of_samples(index), labels, 2)
        assert scores[0] <= found <= scores[len(scores) // 20], "of the best twentieth"


def test_groups_by_stratified_classes_beat_those_by_size_alone() -> None:
    by_class = imbalance(Folds(5, group="patient").of_samples(INDEX), LABELS, 5)
    by_size = imbalance(Folds(5, group="patient", stratify=False).of_samples(INDEX), LABELS, 5)
    sizes = np.bincount(Folds(5, group="patient", stratify=False).of_samples(INDEX))
    assert by_class < by_size and by_class < 4 / 5 * 1.05, "4/5 is perfect for 4 classes"
    assert sizes.max() - sizes.min() <= 2


def test_patterns_name_groups_as_columns_do() -> None:
    paths = pa.array(
        [f"train/{'abcd'[label]}/{who}_{n}.png" for n, (label, who) in enumerate(zip(LABELS, PATIENTS, strict=True))]
    )
    named = Index(LABELS, INDEX.classes, INDEX.shape, "train", paths=paths, columns=INDEX.columns)
    by_pattern = Folds(4, group_pattern=r"/(p\d+)_\d+\.png$").of_samples(named)
    assert np.array_equal(by_pattern, Folds(4, group="patient").of_samples(named))


def test_the_split_depends_on_the_seed_and_on_nothing_else() -> None:
    one = Folds(5).of_samples(INDEX)
    assert np.array_equal(one, Folds(5, fold=3).of_samples(INDEX))
    assert not np.array_equal(one, Folds(5, seed=1).of_samples(INDEX))


def test_a_fold_of_a_real_source_has_the_samples_own_images_and_labels() -> None:
    whole = Digits().index()["train"]
    data = Digits(folds=Folds(5, fold=2))
    indices = checked_indices(data)
    assert sorted(indices) == ["train", "val"] and len(indices["train"]) + len(indices["val"]) == len(whole)
    assert not set(indices["train"].rows) & set(indices["val"].rows)
    for index in indices.values():
        images = checked_read(data, index, np.arange(len(index)))["image"]
        places = np.searchsorted(whole.rows, index.rows)
        assert np.array_equal(images, data.read(whole, places)) and np.array_equal(index.labels, whole.labels[places])
    untouched = checked_indices(Digits())
    assert untouched["val"].fingerprint() == Digits().index()["val"].fingerprint()


class Numbers(Dataset):
    """A plain dataset of 12 samples, without splits."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, place: int) -> tuple[np.ndarray, int]:
        return np.full((1, 2, 2), place, np.float32), place % 2


@pytest.fixture
def unsplit(tmp_path: Path) -> dict[str, Data]:
    """Sources of 12 samples without a val split."""
    lines = ["path,label"]
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(12):
            name = "ab"[number % 2]
            for path in (f"folder/{name}/{number}.png", f"pairs/images/{number}.png", f"pairs/masks/{number}.png"):
                (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
                Image.new("L", (4, 4), number % 2).save(tmp_path / path)
            (tmp_path / f"{number}.cls").write_text(str(number % 2))
            tar.add(tmp_path / f"folder/{name}/{number}.png", f"{number}.png")
            tar.add(tmp_path / f"{number}.cls", f"{number}.cls")
            lines.append(f"folder/{name}/{number}.png,{name}")
    (tmp_path / "a.csv").write_text("\n".join(lines))
    return {
        "folder": ImageFolder(str(tmp_path / "folder"), size=4),
        "table": Manifest(str(tmp_path / "a.csv"), size=4),
        "masks": MaskFolder(str(tmp_path / "pairs"), size=4),
        "tars": WebDataset(str(tmp_path / "a.tar"), size=4),
        "torch": TorchData(Numbers),
    }


@pytest.mark.parametrize("name", ["folder", "table", "masks", "tars", "torch"])
def test_folds_have_all_samples_of_data_without_a_val_split(unsplit: dict[str, Data], name: str) -> None:
    data = unsplit[name]
    assert {split: len(index) for split, index in checked_indices(data).items()} == {"train": 10, "val": 2}
    folded = replace(data, folds=Folds(3))
    found = checked_indices(folded)
    assert {split: len(index) for split, index in found.items()} == {"train": 8, "val": 4}
    assert not any("used for validation" in note for note in (*folded.notes(), *found["train"].notes))


@pytest.mark.parametrize("name", ["folder", "table", "masks", "tars", "torch"])
def test_without_a_share_for_validation_all_samples_train_and_validate(unsplit: dict[str, Data], name: str) -> None:
    data = replace(unsplit[name], val_fraction=0.0)
    found = checked_indices(data)
    assert {split: len(index) for split, index in found.items()} == {"train": 12, "val": 12}
    assert found["train"].fingerprint() == found["val"].fingerprint()
    notes = data_notes.notes(data, found, compared=True)
    assert "val has the samples of train: its metrics say nothing about new ones" in notes
    assert not any("both in train and in val" in note for note in notes)
    for share in (1.0, -0.1):
        with pytest.raises(UserError, match=r"from 0 \(all samples train and validate\) to below 1"):
            replace(data, val_fraction=share)


TABLE = Index(fields=(Field("x", (2,), "float32"),), count=7, split="train")


def test_data_without_classes_are_split_plainly() -> None:
    assert sorted(np.bincount(Folds(3).of_samples(TABLE))) == [2, 2, 3]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Folds(1), "count = 1 is out of range, in Folds; give a value of at least 2, or 0"),
        (lambda: Folds(5, fold=5), "fold = 5 is out of range, in Folds; give a value from 0 to 4"),
        (lambda: Folds(fold=1), "fold = 1 is out of range"),
        (lambda: Folds(2, group="a", group_pattern="(a)"), "group and group_pattern both name groups"),
        (lambda: Folds(2, group_pattern="(a"), r"'\(a' is not a regular expression"),
        (lambda: Folds(2, group_pattern="a"), "has no pair of parentheses"),
        (
            lambda: Folds(7).of_samples(INDEX),
            "class 'd' has 6 samples, fewer than the 7 folds, .*at most 6 folds, or .*False",
        ),
        (
            lambda: Folds(8, stratify=False).of_samples(TABLE),
            "8 folds need at least as many samples, got 7, .*at most 7 folds",
        ),
        (lambda: Folds(40, group="patient").of_samples(INDEX), "40 folds need at least as many groups, got 2[0-9]"),
        (lambda: Folds(3, stratify=True).of_samples(TABLE), "stratified folds go by classes, and the data has none"),
        (lambda: Folds(3, group="patients").of_samples(INDEX), r"no column 'patients', .*did you mean patient\?"),
        (lambda: Folds(3, group_pattern="(p)").of_samples(INDEX), "the samples of this data have none"),
        (
            lambda: Folds(2, group_pattern=r"p(\d)").of_samples(
                Index(np.array([0, 0, 0]), ("a",), (1, 2, 2), paths=pa.array(["a/p1.png", "a/x.png", "a/p2.png"]))
            ),
            r"finds no group in a/x.png \(1 of 3 files\)",
        ),
    ],
)
def test_folds_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


@dataclass(frozen=True)
class Unnamed(Data):
    """A source whose column has the wrong length or type."""

    columns: Any = None

    def index(self) -> dict[str, Index]:
        return {split: replace(INDEX, columns=self.columns, split=split) for split in ("train", "val")}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"w": np.ones(3)}, f"w must have an entry for each of the {N} labels, got 3"),
        ({"w": [1.0] * N}, "column 'w' must be an array of numbers or strings, .* got a list of float"),
        ({"w": np.array(["a"] * N, object)}, r"got object \[140\], .*; write np.array"),
        (np.ones(N), "columns must be a dict of arrays, got a numpy.ndarray"),
    ],
)
def test_columns_that_cannot_be_are_refused(columns: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        checked_indices(Unnamed(columns=columns))


def test_what_old_sweeps_call_their_data_has_not_changed() -> None:
    plain = Experiment(MLP(), Digits())
    assert '"folds"' not in record.reads(plain)
    assert '"fold": 1' in record.reads(config.replace(plain, "data.folds", Folds(3, fold=1)))
