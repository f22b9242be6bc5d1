"""Fields: what a source may declare, what its `read` must return, and what reaches the task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from raytrain import Augment, Data, Field, Index
from raytrain.data.checks import checked_indices, checked_read
from raytrain.data.prepare import Prepare
from raytrain.errors import UserError

IMAGE, MASK = Field("image", (3, 8, 8), kind="image"), Field("mask", (8, 8), kind="mask", fill=9)
TABLE = Field("columns", (5,), "float32")
DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "float16", "float32", "float64")


@dataclass(frozen=True)
class Given(Data):
    """A source with the fields and the reader that a test gives it."""

    fields: Any = (TABLE,)
    reads: Any = None
    count: Any = 6

    def index(self) -> dict[str, Index]:
        return {split: Index(fields=self.fields, count=self.count, split=split) for split in ("train", "val")}

    def read(self, index: Index, samples: np.ndarray) -> Any:
        return self.reads(samples)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((), "the index has neither a shape nor fields"),
        (("x",), "fields must be a tuple of Field, got a tuple of str"),
        ((replace(TABLE, name="a b"),), "a field cannot be called 'a b'"),
        ((replace(TABLE, name="label"),), "a field cannot be called 'label'"),
        ((TABLE, TABLE), "a field cannot be called 'columns'"),
        ((replace(TABLE, shape=[5]),), r"shape of 'columns' must be a tuple of whole numbers, got \[5\]"),
        ((replace(TABLE, shape=(0,)),), r"shape of 'columns' must be a tuple of whole numbers, got \(0,\)"),
        ((replace(TABLE, dtype="str"),), "type of numbers, got 'str', .*; keep text in the source, .* ids"),
        ((replace(TABLE, dtype="float33"),), "type of numbers, got 'float33', .*; write dtype="),
        (
            (replace(TABLE, dtype="uint32"),),
            "type of numbers, got 'uint32', .*, or bool, int8 to int64, ",
        ),
        ((replace(TABLE, kind="img"),), "kind of 'columns' must be one of image, mask, plain, got 'img', .*; did you"),
        ((replace(TABLE, kind="xyz"),), "kind of 'columns' must be one of image, mask, plain, .*; write kind="),
        ((replace(TABLE, kind="image"),), r"image's shape must be \(channels, height, width\), got \(5,\)"),
        ((replace(TABLE, kind="mask"),), r"mask's shape must be \(height, width\), got \(5,\)"),
        ((IMAGE, replace(MASK, fill=256)), "uint8 of the mask 'mask' cannot hold its fill, 256"),
        ((IMAGE, replace(MASK, fill=-1)), "uint8 of the mask 'mask' cannot hold its fill, -1"),
        ((IMAGE, replace(MASK, fill="x")), "uint8 of the mask 'mask' cannot hold its fill, 'x'"),
        ((IMAGE, replace(MASK, dtype="bool", fill=2)), "bool of the mask 'mask' cannot hold its fill, 2"),
    ],
)
def test_a_field_that_cannot_be_is_refused(fields: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        checked_indices(Given(fields=fields))


@pytest.mark.parametrize("count", [2.5, -1, True, "6"])
def test_a_count_must_be_a_number_of_samples(count: Any) -> None:
    with pytest.raises(UserError, match="count must be a whole number of samples, got "):
        checked_indices(Given(count=count))


def test_an_index_without_samples_is_refused() -> None:
    for count in (0, None):
        with pytest.raises(UserError, match="there are no samples"):
            checked_indices(Given(count=count))
    assert len(checked_indices(Given(count=np.int64(3)))["train"]) == 3


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"image": None}, r"must return uint8 \[1, 3, 8, 8\] as 'image', got a NoneType"),
        (np.zeros((2, 3, 8, 8), np.uint8), r"must return a dict of 'image', 'mask', got a numpy.ndarray"),
        ({"image": np.zeros((2, 3, 8, 8), np.uint8)}, "must return 'mask', got 'image' for sample"),
        (
            {"image": np.zeros((2, 3, 8, 8), np.uint8), "mask": np.zeros((2, 8, 8))},
            r"must return uint8 \[1, 8, 8\] as 'mask', got float64 \[1, 8, 8\]",
        ),
        (
            {"image": np.zeros((2, 3, 8, 8), np.uint8), "mask": np.zeros((2, 8, 8), np.uint8), "id": np.arange(2)},
            "returns 'id' for sample 0, train, which index.. does not declare, .*; add a Field",
        ),
    ],
)
def test_read_must_return_the_declared_arrays_and_no_others(found: Any, message: str) -> None:
    def reads(samples: np.ndarray) -> Any:
        return {name: np.asarray(array)[: len(samples)] for name, array in found.items()} if by_name else found

    by_name = isinstance(found, dict) and found.get("image") is not None
    data = Given(fields=(IMAGE, MASK), reads=reads)
    with pytest.raises(UserError, match=message):
        checked_read(data, data.index()["train"], np.arange(2))


def test_samples_of_different_shapes_are_named() -> None:
    data = Given(reads=lambda samples: np.zeros((len(samples), 6 if 4 in samples else 5), np.float32))
    with pytest.raises(UserError, match=r"must return float32 \[1, 5\], got float32 \[1, 6\] for sample 4, train"):
        checked_read(data, data.index()["train"], np.arange(6))


def test_arrays_of_any_layout_become_ones_that_torch_takes() -> None:
    values = np.arange(30, dtype=np.float32).reshape(6, 5)
    fixed = values.copy()
    fixed.flags.writeable = False  # as of a memory-mapped file or an Arrow column
    for stored in (fixed, values[:, ::-1], values[::-1], np.asfortranarray(values)):
        data = Given(reads=lambda samples, stored=stored: stored[samples[0] : samples[-1] + 1])
        (found,) = checked_read(data, data.index()["train"], np.arange(6)).values()
        tensor = torch.from_numpy(found)  # a warning is an error
        assert tensor.is_contiguous() and found.flags.writeable and np.array_equal(found, stored)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)])
def test_a_plain_field_reaches_the_task_unchanged(dtype: str, shape: tuple[int, ...]) -> None:
    field = Field("x", shape, dtype)
    stored = torch.from_numpy((np.random.default_rng(0).random((6, *shape)) * 100).astype(dtype))
    prepare = Prepare(Data(augment=Augment(flip=0.5)), Index(fields=(IMAGE, field), count=6))
    arrays = {"image": torch.zeros(6, 3, 8, 8, dtype=torch.uint8), "x": stored}
    for found in (prepare.plain(arrays), prepare.augmented(arrays, np.arange(6), 0, 0, mixed=False)):
        assert found["x"].dtype == stored.dtype and torch.equal(found["x"], stored)


@pytest.mark.parametrize("crop", ["random", "random_resized"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mask_is_cut_with_its_image_and_keeps_its_values(dtype: str, crop: Any) -> None:
    """Each pixel of the image holds its mask's value, so that the two can be compared after the crop."""
    number = np.random.default_rng(0).integers(0, 2, (6, 8, 8))
    fields = Field("image", (1, 8, 8), kind="image"), Field("mask", (8, 8), dtype, kind="mask", fill=0)
    data = Data(augment=Augment(crop=crop, padding=2, flip=0.5, scale=(0.3, 1.0)), mean=(0.0,), std=(1.0,))
    stored = {
        "image": torch.from_numpy((number[:, None] * 255).astype(np.uint8)),
        "mask": torch.from_numpy(number.astype(dtype)),
    }
    found = Prepare(data, Index(fields=fields, count=6)).augmented(stored, np.arange(6), 0, 1, mixed=False)
    image, mask = found["image"][:, 0], found["mask"]
    assert str(mask.dtype) == f"torch.{dtype}" and set(mask.unique().tolist()) <= {0, 1}
    assert not torch.equal(mask, stored["mask"])
    agree = (image.round() == mask.float()).float().mean()
    assert agree == 1 if crop == "random" else agree > 0.9  # between two pixels, blending may round the other way


@pytest.mark.parametrize("field", [replace(TABLE, shape=(3,)), Field("mask", (3, 5), "float32", kind="mask")])
def test_arrays_of_a_slice_lie_in_memory_of_their_own(field: Field) -> None:
    """A product of matrices may have other last bits for the same values at another address, and where a sample's rows
    lie depends on the number of ranks."""
    stored = torch.rand(40, *field.shape)
    before = stored.clone()
    index = Index(fields=(field,), count=40)
    for start in range(8):
        rows = stored[start : start + 3]
        for prepared in (
            Prepare(Data(), index).plain({field.name: rows}),
            Prepare(Data(), index).augmented({field.name: rows}, np.arange(3), 0, 0, mixed=False),
        ):
            found = prepared[field.name]
            assert found.data_ptr() % 64 == 0 and torch.equal(found, rows)
            found.zero_()  # a task may change its batch
            assert torch.equal(stored, before)


def test_a_policy_is_refused_where_masks_would_stay_behind() -> None:
    index = Index(fields=(IMAGE, MASK), count=6)
    assert Data(augment=Augment(crop="random", flip=0.5, erase=0.1)).sample(index) == (3, 8, 8)
    for policy in ("randaugment", "trivialaugment"):
        with pytest.raises(UserError, match=f"{policy} rotates and shifts images, and would leave the mask 'mask'"):
            Data(augment=Augment(policy=policy)).sample(index)


def test_two_images_of_a_sample_change_alike() -> None:
    fields = tuple(Field(name, (3, 8, 8), kind="image") for name in ("left", "right"))
    stored = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8))
    data = Data(augment=Augment(crop="random", padding=2, flip=0.5, policy="trivialaugment", erase=0.5))
    found = Prepare(data, Index(fields=fields, count=6)).augmented(
        {"left": stored, "right": stored.clone()}, np.arange(6), 0, 0, mixed=False
    )
    assert torch.equal(found["left"], found["right"]) and not torch.equal(found["left"], stored)
