"""Masks beside the images of a Manifest: their pixels follow those of the images, and each mistake has one line."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from helpers.packs import packed
from PIL import Image
from pyarrow import csv, parquet

from raytrain import CNN, SGD, Experiment, IoU, Segmentation
from raytrain.data import Augment, Manifest, Packed
from raytrain.data.checks import checked_indices, checked_read
from raytrain.data.loader import Loader
from raytrain.data.packing import pack as resident
from raytrain.data.reader import Direct
from raytrain.driver.baseline import baseline
from raytrain.errors import BadSample, UserError
from raytrain.report.data import show
from raytrain.tools.describe import describe

SHAPES = [(12, 9), (9, 12), (10, 10)]
COUNT = 12


def content(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def drawn(number: int) -> tuple[np.ndarray, np.ndarray]:
    """A grey image [height, width] whose value is 40 times the class of the pixel, and the classes."""
    width, height = SHAPES[number % len(SHAPES)]
    classes = np.random.default_rng(number).integers(0, 5, (height, width), dtype=np.uint8)
    return classes * 40, classes


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of images and masks in folders of their own; one split holds a third of them."""
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for number in range(COUNT):
        image, classes = drawn(number)
        Image.fromarray(image).convert("RGB").save(tmp_path / "images" / f"{number}.png")
        mask = Image.fromarray(classes)
        if number % 2:  # as the masks of Pascal VOC
            mask.putpalette([number * 7 % 256 for number in range(768)])
        mask.save(tmp_path / "masks" / f"{number}.png")
    rows = {
        "path": [f"images/{number}.png" for number in range(COUNT)],
        "mask": [f"masks/{number}.png" for number in range(COUNT)],
        "split": ["val" if number % 3 == 2 else "train" for number in range(COUNT)],
    }
    csv.write_csv(pa.table(rows), tmp_path / "list.csv")
    return tmp_path / "list.csv"


def source(table: Path, **fields: Any) -> Manifest:
    return Manifest(str(table), **({"mask": "mask", "size": 9, "crop": None, "cache": "off"} | fields))


def square(array: np.ndarray, side: int) -> np.ndarray:
    """The central square, as Pillow resizes it without mixing pixels."""
    height, width = array.shape
    short = min(height, width)
    top, left = (height - short) // 2, (width - short) // 2
    cut = Image.fromarray(array[top : top + short, left : left + short])
    return np.asarray(cut.resize((side, side), Image.Resampling.NEAREST))


@pytest.mark.parametrize("side", [5, 9, 17])
def test_masks_are_cut_as_their_images_without_mixing_classes(table: Path, side: int) -> None:
    data = source(table, size=side)
    index = checked_indices(data)["train"]
    numbers = [number for number in range(COUNT) if number % 3 != 2]
    samples = np.array([3, 0, 7])
    found = checked_read(data, index, samples)
    assert found["mask"].dtype == np.uint8
    for row, sample in enumerate(samples):
        assert np.array_equal(found["mask"][row], square(drawn(numbers[sample])[1], side))


def test_augmentation_moves_masks_with_their_images(table: Path) -> None:
    data = source(table, crop=7, mean=(0.0,), std=(1.0,), augment=Augment(flip=0.5, crop="random", padding=2))
    index = checked_indices(data)["train"]
    loader = Loader(data, index, Direct(data, index), 4, 0, 0, 1, torch.device("cpu"), train=True)
    seen = [batch for loaded in loader.epoch(0) for batch in loaded.micro_batches(4)]
    assert sum(map(len, seen)) == len(index)
    for batch in seen:
        classes, inside = batch["mask"], batch["mask"] != 255
        assert torch.equal((batch.images[:, 0] * 255 / 40).round()[inside], classes[inside].float())
        assert not batch.images[:, 0][~inside].any() and not inside.all(), "beyond the edges nothing counts"


def test_the_numbers_of_masks_become_classes(table: Path) -> None:
    plain, chosen = (source(table, **fields) for fields in ({}, {"mask_values": (4, 0, 2)}))
    indices = [checked_indices(data)["val"] for data in (plain, chosen)]
    samples = np.arange(len(indices[0]))
    before, after = (checked_read(*one, samples)["mask"] for one in zip((plain, chosen), indices, strict=True))
    expected = np.full(256, 255, np.uint8)
    expected[[4, 0, 2]] = 0, 1, 2
    assert np.array_equal(after, expected[before])
    assert indices[0].fingerprint() != indices[1].fingerprint()
    assert "masks have the numbers 0, 1, 2, 3, 4, of which 1, 3 do not count" in chosen.size_notes(indices[1])
    Segmentation(classes=("a", "b", "c")).check_data(indices[1])
    with pytest.raises(UserError, match=r"data\.mask_values has 3 numbers for the 2 classes of task\.classes"):
        Segmentation(classes=("a", "b")).check_data(indices[1])
    deep = content(Image.fromarray(np.array([[0, 300], [1000, 7]], np.uint16)))
    (table.parent / "masks" / "2.png").write_bytes(deep)
    Image.new("RGB", (2, 2)).save(table.parent / "images" / "2.png")
    with pytest.raises(BadSample, match=r"the number 1000, and classes are 0 to 255: give data\.mask_values"):
        plain.read(indices[0], np.array([0]))
    large = source(table, size=2, mask_values=(1000, 300))
    assert checked_read(large, checked_indices(large)["val"], np.array([0]))["mask"].tolist() == [[[255, 1], [0, 255]]]


def test_masks_of_one_bit_and_of_two_values_are_classes(table: Path) -> None:
    for number in range(COUNT):
        mask = Image.fromarray(drawn(number)[1] > 1)
        mask.save(table.parent / "masks" / f"{number}.png")
    data = source(table)
    index = checked_indices(data)["train"]
    assert set(np.unique(checked_read(data, index, np.arange(8))["mask"])) == {0, 1}
    for number in range(COUNT):
        Image.fromarray((drawn(number)[1] > 1) * np.uint8(255)).save(table.parent / "masks" / f"{number}.png")
    assert "--data.mask_values 0 255 makes them the classes 0 and 1" in data.size_notes(index)[-1]


def test_a_turned_photograph_has_a_mask_that_is_not(table: Path) -> None:
    image, classes = drawn(0)
    turned = Image.fromarray(image).convert("RGB").transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[274] = 6  # "rotate by 270 degrees to see it"
    (table.parent / "images" / "0.png").write_bytes(content(turned, exif=exif))
    data = source(table)
    found = checked_read(data, checked_indices(data)["train"], np.array([0]))
    assert np.array_equal(found["image"][0, 0] // 40, square(classes, 9))
    assert np.array_equal(found["mask"][0], square(classes, 9))


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (content(Image.new("RGB", (12, 9))), r"a colour for each pixel \(mode RGB\), and not a number"),
        (content(Image.new("L", (12, 9)), "JPEG"), "a JPEG does not keep the numbers of pixels"),
        (content(Image.new("L", (9, 12))), "it has 9 x 12 pixels, and its image 12 x 9"),
        (content(Image.fromarray(drawn(0)[1]))[:80], "cannot be decoded"),
        (b"no image", "not an image"),
        (b"", "the file is empty"),
    ],
)
def test_a_mask_that_does_not_fit_is_named(table: Path, raw: bytes, reason: str) -> None:
    (table.parent / "masks" / "0.png").write_bytes(raw)
    data = source(table)
    index = data.index()["train"]
    with pytest.raises(BadSample, match=rf"mask: .*{reason}") as found:
        data.read(index, np.array([0]))
    assert found.value.path.endswith("masks/0.png")


def test_half_the_size_fits(table: Path) -> None:
    Image.fromarray(drawn(2)[1][::2, ::2]).save(table.parent / "masks" / "2.png")
    data = source(table)
    found = checked_read(data, checked_indices(data)["val"], np.array([0]))
    assert np.array_equal(found["mask"][0], square(drawn(2)[1][::2, ::2], 9))


def test_a_missing_mask_is_found_before_anything_starts(table: Path) -> None:
    os.remove(table.parent / "masks" / "4.png")
    data = source(table)
    (bad,) = data.probe(data.index()["train"])
    assert bad.path.endswith("masks/4.png") and "no such file" in bad.reason
    e = Experiment(model=CNN(), data=data, task=Segmentation(), optimizer=SGD(lr=0.1))
    with pytest.raises(UserError, match=r"cannot read sample: No such file or directory, .*masks/4\.png"):
        baseline(e, data.index())
    found = baseline(replace(e, data=replace(data, on_bad_sample="skip")), data.index())
    assert found.line.endswith("(of 7 and 4 samples)") and not found.note


def test_a_class_that_no_mask_has_leaves_the_baseline(table: Path) -> None:
    data = source(table)
    index = data.index()
    task = Segmentation(classes=tuple("abcdef"), metrics=(IoU(), IoU(of="f"))).bound(index["train"])
    found = baseline(Experiment(model=CNN(), data=data, task=task, optimizer=SGD(lr=0.1)), index)
    assert not found.note and "val_macro_iou" in found.scores and "val_iou_f" not in found.scores


def test_bytes_of_a_table_are_the_same(table: Path, tmp_path: Path) -> None:
    files = [
        [(table.parent / folder / f"{number}.png").read_bytes() for number in range(COUNT)]
        for folder in ("images", "masks")
    ]
    splits = ["val" if number % 3 == 2 else "train" for number in range(COUNT)]
    struct = [{"bytes": raw, "path": None} for raw in files[1]]
    parquet.write_table(pa.table({"image": files[0], "annotation": struct, "split": splits}), tmp_path / "all.parquet")
    inside, outside = source(tmp_path / "all.parquet", bytes="image", mask="annotation"), source(table)
    for split, index in inside.index().items():
        samples = np.arange(len(index))
        found, expected = checked_read(inside, index, samples), checked_read(outside, outside.index()[split], samples)
        assert all(np.array_equal(array, expected[name]) for name, array in found.items())
    whole = replace(inside, split="").index()
    assert len(whole["train"]) + len(whole["val"]) == COUNT, "without any column that is not of bytes"
    with pytest.raises(UserError, match=r"column 'split' must have bytes.*name another: --data.mask COLUMN"):
        replace(inside, mask="split", split="").index()


def test_bytes_of_a_table_may_be_missing(table: Path, tmp_path: Path) -> None:
    images = [(table.parent / "images" / f"{number}.png").read_bytes() for number in range(COUNT)]
    own = [(table.parent / "masks" / f"{number}.png").read_bytes() if number % 4 else None for number in range(COUNT)]
    parquet.write_table(pa.table({"image": images, "own": pa.array(own, pa.binary())}), tmp_path / "all.parquet")
    data = source(tmp_path / "all.parquet", bytes="image", mask="own", missing_mask=3)
    for split, index in checked_indices(data).items():
        for row, mask in zip(index.rows, checked_read(data, index, np.arange(len(index)))["mask"], strict=True):
            assert np.array_equal(mask, square(drawn(row)[1], 9) if row % 4 else np.full((9, 9), 3)), (split, row)
    index = data.index()["train"]
    assert any("images that were looked at have no mask: all of" in note for note in data.size_notes(index))
    needed = replace(data, missing_mask=None)
    assert needed.index()["train"].fingerprint() != index.fingerprint()
    with pytest.raises(BadSample, match="it has no bytes in column 'own'"):
        needed.read(needed.index()["train"], np.flatnonzero(index.rows % 4 == 0))
    parquet.write_table(pa.table({"image": images, "own": pa.nulls(COUNT, pa.binary())}), tmp_path / "none.parquet")
    with pytest.raises(UserError, match=r"no row has a mask in column 'own', .*none\.parquet"):
        replace(data, root=str(tmp_path / "none.parquet")).index()


def test_the_cache_follows_images_and_masks(table: Path, tmp_path: Path) -> None:
    data = source(table, cache=str(tmp_path / "cache"))
    first, index, _ = resident(data, data.index()["train"])
    again, _, _ = resident(data, data.index()["train"])
    assert len(list((tmp_path / "cache").rglob("*.arrows"))) == 1
    assert first is not None and again is not None and np.array_equal(first["mask"], again["mask"])
    Image.fromarray(drawn(0)[1] * 0).save(table.parent / "masks" / "0.png")
    changed, later, _ = resident(data, data.index()["train"])
    assert changed is not None and not changed["mask"][0].any() and changed["mask"][1:].any()
    part = later.take(np.array([2, 1]))
    assert part.fingerprint() != later.fingerprint() != index.fingerprint()
    assert part.masks.to_pylist() == ["masks/3.png", "masks/1.png"]  # type: ignore[attr-defined]


def test_a_description_counts_the_pixels_of_each_number(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = source(table)
    found, _ = describe(data, 100, 60.0)
    masks = [checked_read(data, index, np.arange(len(index)))["mask"] for index in data.index().values()]
    numbers, counts = np.unique(np.concatenate(masks), return_counts=True)
    assert found.values[1].pixels == dict(zip(numbers.tolist(), counts.tolist(), strict=True))
    show(found)
    share = counts.max() / counts.sum()
    assert f"the numbers {numbers[counts.argmax()]} in {share:.1%}, " in capsys.readouterr().out


def test_a_sheet_shows_each_mask_over_its_image(table: Path) -> None:
    data = source(table, size=96)
    _, sheet = describe(data, 100, 60.0)
    assert sheet is not None and sheet.size == (8 * 200, 112)
    index = data.index()["train"]
    found = checked_read(data, index, np.array([0, 1]))
    for place in range(2):
        image, over = (
            np.asarray(sheet)[:96, left : left + 96].astype(int) for left in (place * 200, place * 200 + 100)
        )
        assert np.array_equal(image, found["image"][place].transpose(1, 2, 0))
        mask = found["mask"][place]
        assert np.array_equal(image[mask == 0], over[mask == 0]) and (image[mask > 0] != over[mask > 0]).any(1).all()


def test_a_raw_pack_keeps_masks(table: Path, tmp_path: Path) -> None:
    data = source(table, mask_values=(1, 2))
    packed(data, tmp_path / "pack")
    pack = Packed(str(tmp_path / "pack"))
    for split, index in data.index().items():
        samples = np.arange(len(index))
        found, expected = checked_read(pack, pack.index()[split], samples), checked_read(data, index, samples)
        assert found.keys() == expected.keys() == {"image", "mask"}
        assert all(np.array_equal(array, expected[name]) for name, array in found.items())
    with pytest.raises(UserError, match="jpeg packs one encoded image per sample, and 'mask' is of kind mask"):
        packed(data, tmp_path / "other", codec="jpeg")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mask": "path"}, "column 'path' has something else, in data.mask"),
        ({"target": ("x",)}, "target and mask are both what is to be predicted, in data"),
        ({"whole": True, "augment": Augment(crop="random_resized")}, "masks are cut .* in data.whole"),
        ({"mask_values": (1, 1)}, r"mask_values = \(1, 1\) is out of range"),
    ],
)
def test_contradictions_are_refused(table: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        source(table, **fields)
    with pytest.raises(UserError, match=r"has no column 'msak'.* did you mean mask"):
        source(table, mask="msak").index()


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_test_split_without_masks_is_left_out(table: Path, tmp_path: Path, kind: str) -> None:
    rows: list[dict[str, Any]] = [
        {"path": f"images/{number}.png", "mask": f"masks/{number}.png", "split": "train" if number < 6 else "val"}
        for number in range(8)
    ]
    bare = [{"path": f"images/{number}.png", "mask": None, "split": "test"} for number in range(8, COUNT)]

    def write(rows: list[dict[str, Any]]) -> Path:
        file = tmp_path / f"bare.{kind}"
        if kind == "csv":
            csv.write_csv(pa.Table.from_pylist(rows), file)
        else:
            file.write_text("".join(json.dumps({k: v for k, v in row.items() if v}) + "\n" for row in rows))
        return file

    found = source(write(rows + bare)).index()
    assert {split: len(index) for split, index in found.items()} == {"train": 6, "val": 2}
    assert any("no row of test has a mask, so test is left out" in note for note in found["train"].notes)
    assert found["train"].fingerprint() == source(write(rows)).index()["train"].fingerprint()
    rows[3]["mask"] = None
    with pytest.raises(
        UserError,
        match=r"line [45] \(images/3.png\) has no mask in column 'mask' \(1 of 6 rows of train have none\), .*; give "
        "it one, or remove the row; if images without a mask show background alone, use --data.missing_mask 0",
    ):
        source(write(rows + bare)).index()
    found = source(write(rows + bare), missing_mask=0).index()
    assert list(found) == ["train", "val"] and "1 of 6 images of train have no mask" in found["train"].notes[-1]
    for row in rows[6:]:
        row["mask"] = None
    with pytest.raises(UserError, match=r"images/6.png\) has no mask in .* \(2 of 2 rows of val have none\)"):
        source(write(rows + bare), missing_mask=0).index()
    for number, row in enumerate(rows[6:], 6):
        row["mask"] = f"masks/{number}.png"
    bare[1]["mask"] = "masks/9.png"
    rows[3]["mask"] = "masks/3.png"
    with pytest.raises(UserError, match=r"line \d+ \(images/8.png\) has no mask in column 'mask'"):
        source(write(rows + bare)).index()
    rows[0]["path"] = None if kind == "jsonl" else ""
    with pytest.raises(UserError, match=r"column 'path' has an empty cell in line [12], "):
        source(write(rows)).index()


@pytest.mark.parametrize("side", [5, 17])
def test_squashed_images_and_masks_keep_all_pixels_in_place(table: Path, side: int) -> None:
    data = source(table, size=side, fit="squash")
    index = checked_indices(data)["train"]
    numbers = [number for number in range(COUNT) if number % 3 != 2]
    samples = np.array([3, 0, 7])
    found = checked_read(data, index, samples)
    for row, sample in enumerate(samples):
        image, mask = drawn(numbers[sample])
        assert image.shape[-1] != image.shape[-2] or mask.shape[0] != mask.shape[1]
        whole = Image.fromarray(mask).resize((side, side), Image.Resampling.NEAREST)
        assert np.array_equal(found["mask"][row], np.asarray(whole))
    assert not np.array_equal(found["mask"], checked_read(source(table, size=side), index, samples)["mask"])
