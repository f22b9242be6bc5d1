"""TorchData: plain datasets give what a source of raytrain's own gives, or an error says why not."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.plain_parts import Digit, LongStream, Stream, Whole, described, from_one, grouped, named, truth
from helpers.ranks import Ranks, losses, new_run, on_workers, train_rank
from PIL import Image

from raytrain import (
    CNN,
    Augment,
    BadSample,
    Data,
    Digits,
    Experiment,
    Field,
    Folds,
    Segmentation,
    TorchData,
    UserError,
    config,
)
from raytrain.data.checks import check_samples, checked_indices, checked_read
from raytrain.data.loader import Loader
from raytrain.data.reader import Resident

ALL = np.arange(359)


@pytest.mark.parametrize(
    "data",
    [TorchData(Digit), TorchData(Digit, form="tensor"), TorchData(truth), TorchData(Digit, targets=True)],
    ids=str,
)
def test_images_and_labels_are_those_of_the_dataset(data: Data) -> None:
    found, known = checked_indices(data), Digits().index()
    for split, index in found.items():
        check_samples(data, index)
        np.testing.assert_array_equal(index.labels, known[split].labels)
        assert index.fields == known[split].fields and index.input.kind == "image"
    images = checked_read(data, found["val"], ALL)["image"]
    np.testing.assert_array_equal(images, Digits().read(known["val"], ALL))
    named = "digit " if "targets=True" in str(data) else ""
    assert found["train"].classes == tuple(f"{named}{number}" for number in range(10))
    assert checked_indices(TorchData(described))["val"].classes == tuple(f"digit {number}" for number in range(10))


def test_a_dict_gives_named_fields() -> None:
    index = checked_indices(data := TorchData(Digit, form="mask"))["train"]
    assert [(f.name, f.shape, f.dtype, f.kind) for f in index.fields] == [
        ("image", (1, 8, 8), "uint8", "image"),
        ("mask", (8, 8), "int64", "mask"),
        ("weight", (), "float64", "plain"),
    ]
    arrays = checked_read(data, index, ALL[:7])
    np.testing.assert_array_equal(arrays["mask"], arrays["image"][:, 0] > 99)
    assert set(arrays["weight"]) == {0.5} and len(index.labels) == 1438


@pytest.mark.parametrize(("form", "dtype"), [("bool mask", "bool"), ("tall mask", "int64"), ("grey mask", "uint8")])
def test_masks_of_any_form_are_flipped_with_their_images(form: str, dtype: str) -> None:
    data = TorchData(Whole, form=form, augment=Augment(flip=0.5), mean=(0.0,), std=(1.0,))
    index = checked_indices(data)["train"]
    assert index.fields[1] == Field("mask", (8, 8), dtype, "mask")
    Segmentation().check_data(index)
    samples = Resident(checked_read(data, index, np.arange(len(index))))
    loader = Loader(data, index, samples, 32, 0, 0, 1, torch.device("cpu"), train=True)
    stored, flipped = samples.arrays["image"], 0
    for step in loader.epoch(0):
        for batch in step.micro_batches(32):
            found = (batch["image"][:, 0] * 255).round()
            np.testing.assert_array_equal(batch["mask"], found > 99)
            flipped += int((found.numpy() != stored[batch.ids, 0]).any((1, 2)).sum())
    assert 80 < flipped < 200


def test_floats_and_samples_without_labels_are_unchanged() -> None:
    index = checked_indices(data := TorchData(Digit, form="float"))["val"]
    assert index.input.kind == "plain" and index.input.dtype == "float32"
    found = checked_read(data, index, ALL)["image"]
    np.testing.assert_array_equal(found, Digits().read(Digits().index()["val"], ALL).astype(np.float32) / 255)
    bare = checked_indices(TorchData(Whole, form="bare"))
    assert bare["train"].labels is None and (len(bare["train"]), len(bare["val"])) == (287, 72)


def test_numbers_of_another_byte_order_are_the_same_numbers() -> None:
    index = checked_indices(data := TorchData(Whole, form="big-endian"))["train"]
    assert [(field.name, field.dtype) for field in index.fields] == [("x", "float32"), ("n", "float64")]
    found = checked_read(data, index, np.arange(20))
    stored = Digits().read(Digits().index()["val"], index.rows[:20])
    np.testing.assert_array_equal(found["x"], (stored / 255).astype(np.float32))
    np.testing.assert_array_equal(found["n"], index.rows[:20])


def test_a_share_of_each_class_is_held_out() -> None:
    data = TorchData(Whole, val_fraction=0.25, split_seed=3)
    found = checked_indices(data)
    assert sorted([*found["train"].rows, *found["val"].rows]) == list(range(359))
    share = np.bincount(found["val"].labels) / np.bincount(Digits().index()["val"].labels)
    assert np.abs(share - 0.25).max() < 0.02
    assert not np.array_equal(found["val"].rows, checked_indices(replace(data, split_seed=4))["val"].rows)
    np.testing.assert_array_equal(
        checked_read(data, found["val"], np.arange(9))["image"],
        Digits().read(Digits().index()["val"], found["val"].rows[:9]),
    )


@pytest.mark.parametrize("kind", ["list", "array", "object"])
def test_columns_of_the_dataset_group_its_folds(kind: str) -> None:
    data = TorchData(grouped, kind=kind)
    held = checked_indices(data)["val"]
    assert [*held.columns] == ["patient"] and held.columns["patient"][3] == f"p{held.rows[3] // 7}"
    seen = []
    for fold in range(3):
        found = checked_indices(replace(data, folds=Folds(3, fold=fold, group="patient")))
        assert not {*found["train"].columns["patient"]} & {*found["val"].columns["patient"]}
        seen += found["val"].rows.tolist()
    assert sorted(seen) == list(range(359))


def test_columns_that_are_none_are_refused() -> None:
    with pytest.raises(UserError, match=r"column 'patient' must be an array of numbers or strings, .* got object"):
        checked_indices(TorchData(grouped, kind="none"))
    with pytest.raises(UserError, match=r'or let the dataset of a TorchData have columns = \{"site": values\}'):
        checked_indices(TorchData(grouped, folds=Folds(3, group="site")))


def test_a_random_flip_is_found_though_it_leaves_half_of_the_samples_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    random, read = np.random.default_rng(0), Whole.__getitem__

    def flipped(self: Whole, row: int) -> Any:
        image, label = read(self, row)
        return (image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image), label

    monkeypatch.setattr(Whole, "__getitem__", flipped)
    for _ in range(5):
        with pytest.raises(UserError, match="changes each time it is read"):
            checked_indices(TorchData(Whole))


def test_floats_are_no_images_to_change() -> None:
    data = TorchData(Whole, form="float", augment=Augment(flip=0.5))
    with pytest.raises(UserError, match=r"return 'image' as a PIL image or uint8 \(it is float32\), or leave"):
        data.sample(data.index()["train"])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (TorchData(Whole, form="random"), "'image' of sample . changes each time it is read, in Whole"),
        (TorchData(Whole, form="three"), "sample 0 has 3 values without names, in Whole .*; return a dict of named"),
        (
            TorchData(Whole, form="empty"),
            "a sample has no array besides its label, in Whole .*; return a dict of named",
        ),
        (TorchData(Whole, form="text"), "'name' of sample 0 is str"),
        (TorchData(Whole, form="palette"), "'image' of sample 0 is PIL.Image in mode P"),
        (TorchData(Whole, form="last"), r"'image' is uint8 \[8, 8, 3\], with its channels last"),
        (TorchData(Whole, form="regression"), r"got float, .*; return int\(label\), or for a regression"),
        (TorchData(Whole, form="one-hot"), r"got torch.Tensor of bool \[10\], .*; return int\(label.argmax"),
        (
            TorchData(Whole, form="a name"),
            "the label of sample 0 must be .*, got str, .*; return the number of its class",
        ),
        (TorchData(Whole, form="target"), "a field cannot be called 'target', .*; call a sample's class `label`"),
        (TorchData(from_one, classes=10), "labels are 1 to 10, and the 10 classes have the numbers 0 to 9, in from"),
        (TorchData(Whole, form="sizes"), r"sample . has uint8 \[1, 8, 9\] as 'image', and the first uint8 \[1, 8, 8"),
        (TorchData(Whole, form="wrong", targets=True), "sample . has the label ., and . in the list of all labels"),
        (TorchData(Whole, form="other"), "fails: KeyError: 'other', .*plain_parts.py:"),
        (TorchData(named), "same classes in another order: class 0 is '0' in train, and '9' in val, in named .*; give"),
        (TorchData(named, val="012345678"), "train and val have different classes: val lacks 9, in named "),
        (TorchData(Stream), "Stream must have a length and samples by number"),
        (TorchData(LongStream), "LongStream must have a length and samples by number"),
        (
            TorchData(Whole, form="complex"),
            r"'image' of sample 0 is numpy.ndarray of complex128 \[1, 8, 8\]",
        ),
        (TorchData(Whole, form="half"), r"'image' of sample 0 is torch.Tensor of bfloat16 \[1, 8, 8\], .* float32"),
        (
            TorchData(Whole, form="a list"),
            r"the label of sample 0 must be .* of int64 \[1\], .*; return label.item",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_trained_on_is_refused(data: Data, message: str) -> None:
    with pytest.raises(UserError, match=message):
        index = checked_indices(data)["train"]
        checked_read(data, index, np.arange(9))


def test_labels_that_may_be_counted_from_one_are_noted() -> None:
    (note,) = checked_indices(TorchData(Whole, form="from 1"))["train"].notes
    assert note.startswith("no sample has label 0")
    known = checked_indices(TorchData(from_one, classes=11))["train"]
    assert not known.notes and len(known.classes) == 11, "as EMNIST's letters, whose first class is N/A"


def test_a_file_that_cannot_be_read_is_a_bad_sample() -> None:
    data = TorchData(Whole, form="broken", targets=True)
    index = checked_indices(data)
    split = "val" if 5 in index["val"].rows else "train"
    at = np.flatnonzero(index[split].rows == 5)
    with pytest.raises(BadSample, match=r"nowhere.*sample 5 of Whole"):
        data.read(index[split], at)


def test_arguments_that_are_fields_of_the_source_are_refused() -> None:
    def crop(mean: float = 0.5) -> None: ...

    crop.__qualname__ = "crop"
    with pytest.raises(UserError, match="the argument 'mean' of crop has a name that TorchData uses itself"):
        TorchData(crop)


def test_json_and_pickles_keep_the_arguments_and_no_samples() -> None:
    data = TorchData(Digit, form="tensor", augment=Augment(flip=0.5), mean=(0.3,), std=(0.2,))
    value = Experiment(CNN(), data)
    data.index()
    assert len(pickle.dumps(data)) < 2000 and pickle.loads(pickle.dumps(value)) == value
    values = json.loads(json.dumps(config.to_dict(value)))
    assert values["data"]["class"] == "raytrain:TorchData(helpers.plain_parts:Digit)"
    assert config.from_dict(Experiment, values, "a test") == value


def test_training_equals_that_on_a_source_of_raytrains(ranks: Ranks, tmp_path: Path) -> None:
    runs = []
    for name, data in (("own", Digits(augment=Augment(flip=0.5))), ("torch", TorchData(Digit))):
        e = on_workers(Experiment(CNN(), replace(data, augment=Augment(flip=0.5), mean=(0.5,), std=(0.5,))), 2)
        runs.append(new_run(tmp_path / name, e))
        ranks.run(2, train_rank, e, runs[-1])
    np.testing.assert_array_equal(losses(runs[0]), losses(runs[1]))
