"""Data and Index: what all sources share."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raytrain.config import replace
from raytrain.data import Augment, Data, Index
from raytrain.errors import UserError

LABELS = np.array([2, 0, 1, 0], np.int64)


def index(**fields: Any) -> Index:
    values: dict[str, Any] = {"labels": LABELS, "classes": ("a", "b", "c"), "shape": (3, 8, 10)}
    return Index(**(values | fields))


def test_the_crop_is_the_shape_that_the_model_sees() -> None:
    assert Data().image(index()) == (3, 8, 10)
    assert Data(crop=8).image(index()) == (3, 8, 8)
    for augment in (Augment(), Augment(crop="random", padding=4)):
        with pytest.raises(UserError, match="crop = 9 is out of range, in Data; give a value of at most 8"):
            Data(crop=9, augment=augment).image(index())


@pytest.mark.parametrize("field", ["mean", "std"])
def test_mean_and_std_fit_the_channels(field: str) -> None:
    for values in ((0.5,), (0.5, 0.4, 0.3)):
        assert replace(Data(), field, values).image(index()) == (3, 8, 10)
    for values, channels in (((0.5, 0.4), 3), ((0.5, 0.4, 0.3), 1)):
        with pytest.raises(UserError, match=rf"{field} = .*, in Data; give a value of 1 number.* \({channels}\)"):
            replace(Data(), field, values).image(index(shape=(channels, 8, 10)))
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
        assert data.image(stored) == (channels, 8, 8)
    else:
        with pytest.raises(UserError, match=f"trivialaugment takes .* 1 or 3 channels and these have {channels}, in "):
            data.image(stored)


def test_a_source_of_ones_own_without_its_methods_says_which_is_missing() -> None:
    @dataclass(frozen=True)
    class Mine(Data):
        pass

    with pytest.raises(NotImplementedError, match=r"Mine needs an index\(\)"):
        Mine().index()
    with pytest.raises(NotImplementedError, match="Mine needs a read"):
        Mine().read(index(), np.arange(2))
    assert Mine().probe(index()) == []


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


def test_a_sample_is_named_by_its_path_or_by_its_row_in_the_source() -> None:
    assert index(paths=pa.array(list("wxyz"))).name(1) == "x"
    assert index(rows=np.array([10, 11, 12, 13])).name(1) == "sample 11"
    assert index().name(1) == "sample 1"


def test_the_fingerprint_depends_on_every_part_and_on_nothing_else() -> None:
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
