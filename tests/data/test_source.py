"""Data and Index: what all sources share."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from raytrain.config import replace
from raytrain.data import Augment, Data, Index
from raytrain.data.checks import check_samples, checked_indices, checked_read
from raytrain.errors import BadSample, UserError

LABELS = np.array([2, 0, 1, 0], np.int64)


def index(**fields: Any) -> Index:
    values: dict[str, Any] = {"labels": LABELS, "classes": ("a", "b", "c"), "shape": (3, 8, 10)}
    return Index(**(values | fields))


def test_the_crop_is_the_shape_that_the_model_sees() -> None:
    assert Data().sample(index()) == (3, 8, 10)
    assert Data(crop=8).sample(index()) == (3, 8, 8)
    for augment in (Augment(), Augment(crop="random", padding=4)):
        with pytest.raises(UserError, match="crop = 9 is out of range, in Data; give a value of at most 8"):
            Data(crop=9, augment=augment).sample(index())


@pytest.mark.parametrize("field", ["mean", "std"])
def test_mean_and_std_fit_the_channels(field: str) -> None:
    for values in ((0.5,), (0.5, 0.4, 0.3)):
        assert replace(Data(), field, values).sample(index()) == (3, 8, 10)
    for values, channels in (((0.5, 0.4), 3), ((0.5, 0.4, 0.3), 1)):
        with pytest.raises(UserError, match=rf"{field} = .*, in Data; give a value of 1 number.* \({channels}\)"):
            replace(Data(), field, values).sample(index(shape=(channels, 8, 10)))
    with pytest.raises(UserError, match=f"{field} = .* is out of range"):
        replace(Data(), field, ())


@pytest.mark.parametrize(("field", "value"), [("std", (0.5, 0.0)), ("std", (-1.0,)), ("crop", 0), ("mode", "ram")])
def test_values_out_of_range_are_refused(field: str, value: object) -> None:
    with pytest.raises(UserError, match=f"{field} = .*, in Data; give"):
        replace(Data(), field, value)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_a_policy_takes_grey_and_colour_images(channels: int) -> None:
    stored, data = index(shape=(channels, 8, 8)), Data(augment=Augment(policy="trivialaugment"))
    if channels in (1, 3):
        assert data.sample(stored) == (channels, 8, 8)
    else:
        with pytest.raises(UserError, match=f"trivialaugment takes .* 1 or 3 channels and these have {channels}, in "):
            data.sample(stored)


def test_own_source_without_a_method_names_it() -> None:
    @dataclass(frozen=True)
    class Mine(Data):
        pass

    with pytest.raises(NotImplementedError, match=r"Mine needs an index\(\)"):
        Mine().index()
    with pytest.raises(NotImplementedError, match="Mine needs a read"):
        Mine().read(index(), np.arange(2))
    assert Mine().probe(index()) == []


class Given(Data):
    """A source that lists and reads what a test gives it."""

    lists: Any = None
    reads: Any = None

    def index(self) -> dict[str, Index]:
        return self.lists

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        return self.reads(samples)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"labels": LABELS.astype(np.float32)},
            r"labels must be int64 \[n\], got float32 \[4\], in .*; give the number",
        ),
        ({"labels": LABELS.astype(np.uint8)}, r"got uint8 \[4\], in .*; write labels.astype\(np.int64\)"),
        ({"labels": LABELS + np.nan}, r"labels must be int64 \[n\], got float64"),
        ({"labels": LABELS[:, None]}, r"labels must be int64 \[n\], got int64 \[4, 1\]"),
        ({"labels": LABELS.tolist()}, r"labels must be int64 \[n\], got a list of int"),
        ({"labels": LABELS[:0]}, "there are no samples"),
        ({"labels": LABELS + 1}, r"labels must be 0 to 2, the 3 classes, got 3 \(sample 0\)"),
        ({"labels": LABELS - 1}, r"labels must be 0 to 2, the 3 classes, got -1 \(sample 1\)"),
        ({"classes": 3}, "classes must be a tuple of strings, got a int"),
        ({"classes": (0, 1, 2)}, "classes must be a tuple of strings, got a tuple of int"),
        ({"shape": (8, 10)}, r"shape must be \(channels, height, width\), got \(8, 10\)"),
        ({"shape": (3, 8.0, 10)}, r"shape must be \(channels, height, width\), got \(3, 8.0, 10\)"),
        ({"rows": np.arange(3)}, "rows must have an entry for each of the 4 labels, got 3"),
    ],
)
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_an_index_that_does_not_hold_what_it_declares_is_refused(
    fields: dict[str, Any], message: str, split: str
) -> None:
    data = Given()
    object.__setattr__(data, "lists", {name: index() for name in ("train", "val", "test")} | {split: index(**fields)})
    with pytest.raises(UserError, match=message) as caught:
        checked_indices(data)
    assert caught.value.what.startswith(f"{split}: ") and "Given.index (" in caught.value.where


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (None, r"index\(\) must return a dict of Index, got a NoneType"),
        ({"train": index(), "val": 1}, r"index\(\) must return a dict of Index, got a dict"),
        ({"train": index()}, r"index\(\) returns no val split"),
        (
            {"train": index(), "val": index(classes=("a", "c", "b"))},
            "train and val .* the same classes in the same order",
        ),
        (
            {"train": index(), "val": index(), "test": index(classes=("a", "c", "b"))},
            "train and test must have the same classes in the same order",
        ),
    ],
)
def test_an_index_of_the_wrong_form_is_refused(lists: Any, message: str) -> None:
    data = Given()
    object.__setattr__(data, "lists", lists)
    with pytest.raises(UserError, match=message):
        checked_indices(data)


def zeros(samples: np.ndarray, *shape: int, dtype: Any = np.uint8) -> np.ndarray:
    return np.zeros((len(samples), *(shape or (3, 8, 10))), dtype)


@pytest.mark.parametrize(
    ("reads", "got"),
    [
        (lambda samples: zeros(samples, dtype=np.float32), r"float32 \[1, 3, 8, 10\]"),
        (lambda samples: zeros(samples, dtype=np.float64), r"float64 \[1, 3, 8, 10\]"),
        (lambda samples: zeros(samples, dtype=np.int64), r"int64 \[1, 3, 8, 10\]"),
        (lambda samples: zeros(samples, dtype=bool), r"bool \[1, 3, 8, 10\]"),
        (lambda samples: zeros(samples, 8, 10), r"uint8 \[1, 8, 10\]"),
        (lambda samples: zeros(samples, 3, 8, 1), r"uint8 \[1, 3, 8, 1\]"),
        (lambda samples: zeros(samples, 8, 10, 3), r"uint8 \[1, 8, 10, 3\]"),
        (lambda samples: zeros(samples)[0], r"uint8 \[3, 8, 10\]"),
        (lambda samples: zeros(samples[1:]), r"uint8 \[0, 3, 8, 10\]"),
        (lambda samples: zeros(samples).tolist(), "a list of list"),
        (lambda samples: torch.zeros(len(samples), 3, 8, 10, dtype=torch.uint8), "a torch.Tensor"),
        (lambda samples: None, "a NoneType"),
    ],
)
def test_wrong_dtype_or_shape_names_the_expected(reads: Any, got: str) -> None:
    data = Given()
    object.__setattr__(data, "reads", reads)
    expected = rf"read\(\) must return uint8 \[1, 3, 8, 10\], got {got} for sample 0, val, in Given.read \(.*:\d+\); "
    with pytest.raises(UserError, match=expected):
        check_samples(data, index(split="val"))
    with pytest.raises(UserError, match=r"must return uint8 \[[12], 3, 8, 10\]"):
        checked_read(data, index(), np.arange(2))


@pytest.mark.parametrize("wrong", range(9))
def test_first_middle_and_last_sample_are_read_in_the_plan(wrong: int) -> None:
    whole, data = index(labels=np.zeros(9, np.int64), split="train"), Given()
    reads = lambda samples: zeros(samples, dtype=np.float32 if wrong in samples else np.uint8)  # noqa: E731
    object.__setattr__(data, "reads", reads)
    if wrong in (0, 4, 8):
        with pytest.raises(UserError, match=f"float32 .* for sample {wrong}, train"):
            check_samples(data, whole)
    else:
        check_samples(data, whole)
    with pytest.raises(UserError, match=rf"uint8 \[1, 3, 8, 10\], got float32 .* for sample {wrong}, train"):
        checked_read(data, whole, np.arange(9))


def test_an_error_of_a_source_names_its_line_and_the_sample() -> None:
    def fails(samples: np.ndarray) -> np.ndarray:
        if 2 in samples:
            raise KeyError("no such row")
        return zeros(samples)

    data = Given()
    object.__setattr__(data, "reads", fails)
    with pytest.raises(
        UserError, match=r"Given.read of sample 2 fails: KeyError: 'no such row', .*test_source.py:\d+;"
    ):
        checked_read(data, index(), np.arange(4))


def test_bad_probed_sample_is_an_error_unless_skipped() -> None:
    def fails(samples: np.ndarray) -> np.ndarray:
        raise BadSample("ants/1.jpg", "the file is empty")

    for on_bad_sample in ("error", "skip"):
        data = Given(on_bad_sample=on_bad_sample)
        object.__setattr__(data, "reads", fails)
        if on_bad_sample == "skip":
            check_samples(data, index())
        else:
            with pytest.raises(UserError, match=r"cannot read sample: the file is empty, ants/1\.jpg"):
                check_samples(data, index())


def test_take_picks_rows_of_everything() -> None:
    whole = index(
        rows=np.array([10, 11, 12, 13]), paths=pa.array(list("wxyz")), sizes=np.array([1, 2, 3, 4]), ignored=("stray",)
    )
    part = whole.take(np.array([3, 0]))
    assert part.labels.tolist() == [0, 2]
    assert part.rows is not None and part.rows.tolist() == [13, 10]
    assert part.sizes is not None and part.sizes.tolist() == [4, 1]
    assert [part.name(sample) for sample in range(2)] == ["z", "w"]
    assert (part.classes, part.shape, part.ignored) == (whole.classes, whole.shape, whole.ignored)
    assert (len(part), part.bytes) == (2, 2 * 3 * 8 * 10)


def test_sample_is_named_by_path_or_row() -> None:
    assert index(paths=pa.array(list("wxyz"))).name(1) == "x"
    assert index(rows=np.array([10, 11, 12, 13])).name(1) == "sample 11"
    assert index().name(1) == "sample 1"


def test_fingerprint_depends_on_every_part_only() -> None:
    variants = [
        index(),
        index(labels=LABELS[::-1]),
        index(classes=("a", "b", "d")),
        index(shape=(3, 8, 8)),
        index(rows=LABELS),
        index(sizes=LABELS),
        index(paths=pa.array(list("wxyz"))),
        index(paths=pa.array(list("wxyw"))),
        index(labels=LABELS[:3]),
    ]
    prints = sorted(variant.fingerprint() for variant in variants)
    assert all(a != b for a, b in pairwise(prints))
    assert index(ignored=("stray",), split="val", labels=LABELS.copy()).fingerprint() == variants[0].fingerprint()
    assert index().fingerprint() == "de885eebed70f31c"  # a resumed run compares it
