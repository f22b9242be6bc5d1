"""MaskFolder: which mask belongs to which image, and that its samples are those of a Manifest of the same pairs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from helpers.packs import packed
from PIL import Image
from pyarrow import csv, fs

from raytrain import Augment, Manifest, MaskFolder, Mixed, Packed
from raytrain.data.checks import checked_indices, checked_read
from raytrain.data.maskfolder import recognised
from raytrain.data.packing import pack as resident
from raytrain.data.trees import tree
from raytrain.errors import BadSample, UserError
from raytrain.files import is_url

FIELDS: dict[str, Any] = {"size": 9, "crop": None, "cache": "off"}


def pair(root: Path, image: str, mask: str | None, number: int = 0) -> None:
    """Write an image whose value is 40 times the class of the pixel, and the mask; of three shapes in turn."""
    shape = [(12, 9), (9, 12), (10, 10)][number % 3]
    classes = np.random.default_rng(number).integers(0, 5, shape, dtype=np.uint8)
    for name, array in ((image, np.repeat(classes[..., None] * 40, 3, 2)), (mask, classes)):
        if name is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(array).save(root / name)


def folder(root: Path, image: str = "images/{}.png", mask: str | None = "masks/{}.png", count: int = 10) -> Path:
    for number in range(count):
        pair(root, image.format(number), mask and mask.format(number), number)
    return root


def source(root: Path | str, **fields: Any) -> MaskFolder:
    return MaskFolder(str(root), **(FIELDS | fields))


def pairs(data: MaskFolder, split: str = "train") -> list[tuple[str, str]]:
    index: Any = checked_indices(data)[split]
    return list(zip(index.paths.to_pylist(), index.masks.to_pylist(), strict=True))


def message(data: MaskFolder) -> str:
    with pytest.raises(UserError) as found:
        data.index()
    assert "\n" not in str(found.value)
    return str(found.value)


def same(one: Any, other: Any) -> None:
    """Check that two sources have the same samples in the same order."""
    found, wanted = checked_indices(one), checked_indices(other)
    assert list(found) == list(wanted)
    for split, index in found.items():
        samples = np.arange(len(index))
        arrays, expected = checked_read(one, index, samples), checked_read(other, wanted[split], samples)
        assert arrays.keys() == expected.keys() == {"image", "mask"} and len(index) == len(wanted[split])
        assert all(np.array_equal(array, expected[name]) for name, array in arrays.items())


@pytest.mark.parametrize("values", [(), (4, 0, 2)])
def test_samples_are_those_of_a_table_of_the_same_pairs(tmp_path: Path, values: tuple[int, ...]) -> None:
    folder(tmp_path, "images/b/{}.png", "masks/b/{}.gif", 4)
    folder(tmp_path, "images/a {}.JPG", "masks/a {}.TIF", 9)
    images = sorted(["images/" + name for name in os.listdir(tmp_path / "images") if name != "b"])
    images += [f"images/b/{number}.png" for number in range(4)]
    suffix = {".JPG": ".TIF", ".png": ".gif"}
    own = [one.replace("images", "masks")[:-4] + suffix[one[-4:]] for one in images]
    csv.write_csv(pa.table({"path": images, "mask": own}), tmp_path / "list.csv")
    table = Manifest(str(tmp_path / "list.csv"), mask="mask", mask_values=values, **FIELDS)
    data = source(tmp_path, mask_values=values)
    same(data, table)
    found = data.index()
    assert {split: index.fingerprint() for split, index in found.items()} == {
        split: index.fingerprint() for split, index in table.index().items()
    }
    assert [len(index) for index in found.values()] == [10, 3]
    assert any("has no val folder: 20% of the images is used for validation" in note for note in found["train"].notes)
    assert data.size_notes(found["train"]) == table.size_notes(table.index()["train"])
    assert "masks have the numbers 0, 1, 2, 3, 4" in data.size_notes(found["train"])[-1]


@pytest.mark.parametrize(
    ("image", "mask"),
    [("images/{s}/{n}.png", "masks/{s}/{n}.png"), ("{s}/images/x/{n}.png", "{s}/masks/x/{n}.png")],
)
@pytest.mark.parametrize("names", [("train", "val", "test"), ("Training", "VALIDATION", "testset")])
def test_splits_are_folders_in_both_orders(tmp_path: Path, image: str, mask: str, names: tuple[str, ...]) -> None:
    for count, name in zip((5, 3, 2), names, strict=True):
        for number in range(count):
            pair(tmp_path, image.format(s=name, n=number), mask.format(s=name, n=number), number)
    found = checked_indices(source(tmp_path))
    assert {split: len(index) for split, index in found.items()} == {"train": 5, "val": 3, "test": 2}
    assert {split: index.split for split, index in found.items()} == {split: split for split in found}
    assert found["train"].notes == () and pairs(source(tmp_path), "val")[0][1] == mask.format(s=names[1], n=0)
    for path in (tmp_path / mask.format(s=names[2], n=0)).parent.iterdir():
        path.unlink()
    (note,) = checked_indices(source(tmp_path))["train"].notes
    assert note.endswith("no image of test has a mask, so test is left out")


def test_folders_of_splits_may_have_other_names_on_both_sides(tmp_path: Path) -> None:
    folder(tmp_path, "images/training/{}.png", "annotations/train/{}.png", 3)
    folder(tmp_path, "images/validation/{}.png", "annotations/validation/{}.png", 2)
    folder(tmp_path, "images/test/{}.png", None, 2)
    data = source(tmp_path, masks="annotations/")
    assert pairs(data)[2] == ("images/training/2.png", "annotations/train/2.png")
    assert list(data.index()) == ["train", "val"] and "test is left out" in data.index()["train"].notes[0]
    os.rename(tmp_path / "images" / "validation", tmp_path / "images" / "val")
    assert pairs(data, "val")[0] == ("images/val/0.png", "annotations/validation/0.png")
    os.rename(tmp_path / "annotations" / "validation", tmp_path / "annotations" / "more")
    assert message(data) == (
        f"no folder 'val' there, {tmp_path}/annotations; the folders are more, train: name one by --data.masks"
    )
    os.rename(tmp_path / "images" / "training", tmp_path / "images" / "more")
    assert message(data) == f"no train folder there, {tmp_path}/images; give it one beside val, test"


@pytest.mark.parametrize(
    ("image", "mask", "fields"),
    [
        ("images/a{}_01.jpg", "masks/a{}_01_mask.gif", {"mask_ending": "_mask"}),
        ("images/a{}_01.jpg", "masks/a{}_01_mask.gif", {"mask_ending": "_mask.gif"}),
        ("images/u/{}_rgb.png", "masks/u/{}_ids.png", {"image_ending": "_rgb", "mask_ending": "_ids"}),
        ("images/{}.jpg", "images/{}_m.png", {"masks": "images", "mask_ending": "_m"}),
        ("images/{}_rgb.png", "images/{}.png", {"masks": "images", "image_ending": "_rgb"}),
        ("images/{}.JPG", "images/{}.png", {"masks": "./images", "image_ending": ".jpg", "mask_ending": ".png"}),
        ("images/{}.png", "images/masks/{}.png", {"masks": "images/masks"}),
        ("a/b/{}.png", "a/c/{}.png", {"images": "a/b", "masks": "a/c"}),
    ],
)
def test_endings_and_folders(tmp_path: Path, image: str, mask: str, fields: dict[str, str]) -> None:
    folder(tmp_path, image, mask, 12)
    data = source(tmp_path, **fields)
    found = pairs(data) + pairs(data, "val")
    wanted = [(image.format(number), mask.format(number)) for number in range(12)]
    assert sorted(found) == sorted(wanted) and not any(index.ignored for index in data.index().values())
    assert len(checked_indices(data)["train"].notes) == 1


def test_what_has_no_part_in_it_is_named_or_left_out(tmp_path: Path) -> None:
    folder(tmp_path, "leftImg8bit/train/{}_leftImg8bit.png", "gtFine/train/{}_gtFine_labelIds.png", 4)
    folder(tmp_path, "leftImg8bit/val/{}_leftImg8bit.png", "gtFine/val/{}_gtFine_labelIds.png", 2)
    folder(tmp_path, "leftImg8bit/train/{}_other.png", "gtFine/train/{}_gtFine_color.png", 4)
    (tmp_path / "gtFine" / "train" / os.fsdecode(b"z\xff_gtFine_labelIds.png")).touch()
    pair(tmp_path, "gtFine/train/.hidden_gtFine_labelIds.png", "gtFine/train/more_gtFine_labelIds.png")
    (tmp_path / "gtFine" / "train" / "0_gtFine_polygons.json").write_text("{}")
    (tmp_path / "leftImg8bit" / "train" / "Thumbs.db").write_text("")
    data = source(
        tmp_path, images="leftImg8bit", masks="gtFine", image_ending="_leftImg8bit", mask_ending="_gtFine_labelIds"
    )
    train = checked_indices(data)["train"]
    assert len(train) == 4 and train.ignored == ("leftImg8bit/train/Thumbs.db",)
    assert train.notes == (
        "masks without an image are left out: gtFine/train/more_gtFine_labelIds.png, "
        "gtFine/train/z\ufffd_gtFine_labelIds.png",
        "images whose names do not end in '_leftImg8bit' are left out: leftImg8bit/train/0_other.png, "
        "leftImg8bit/train/1_other.png, leftImg8bit/train/2_other.png and 1 more",
    )


def test_an_image_without_a_mask_and_one_with_two(tmp_path: Path) -> None:
    folder(tmp_path)
    for number in (4, 7):
        os.remove(tmp_path / "masks" / f"{number}.png")
    assert message(source(tmp_path)) == (
        f"the image has no mask (2 of 10 have none), {tmp_path}/images/4.png; add masks/4.png, or remove the image; "
        "if images without a mask show background alone, use --data.missing_mask 0"
    )
    assert message(source(tmp_path, mask_values=(255, 0))).endswith(" use --data.missing_mask 255")
    folder(tmp_path)
    pair(tmp_path, "images/3.png", "masks/3.gif", 3)
    assert message(source(tmp_path)) == (
        f"the image has two masks, masks/3.gif and masks/3.png, {tmp_path}/images/3.png; "
        "remove one, or give --data.mask_ending"
    )
    assert len(pairs(source(tmp_path, mask_ending=".png"))) == 8
    pair(tmp_path, "images/3.jpg", "masks/3.png", 3)
    os.remove(tmp_path / "masks" / "3.gif")
    assert message(source(tmp_path)) == (
        f"the mask is that of two images, images/3.jpg and images/3.png, {tmp_path}/masks/3.png; "
        "remove one, or give --data.image_ending"
    )


@pytest.mark.parametrize(("values", "number", "label"), [((), 3, 3), ((4, 0, 2), 2, 2), ((9, 0, 1, 2, 3), 9, 0)])
def test_images_without_a_mask_are_all_of_one_number(
    tmp_path: Path, values: tuple[int, ...], number: int, label: int
) -> None:
    folder(tmp_path / "data")
    whole = {one: source(tmp_path / "data", mask_values=values, missing_mask=one) for one in (None, number)}
    prints = [{split: index.fingerprint() for split, index in one.index().items()} for one in whole.values()]
    assert prints[0] == prints[1], "where each image has a mask the data is that of older runs"
    before = checked_read(whole[None], index := whole[None].index()["train"], np.arange(len(index)))["mask"]
    for name in "4", "7", "9":
        os.remove(tmp_path / "data" / "masks" / f"{name}.png")
    data = whole[number]
    found: Any = checked_indices(data)["train"]
    images = found.paths.to_pylist()
    without = np.array([one[7] in "479" for one in images])
    assert 0 < without.sum() == found.masks.null_count and found.fingerprint() != prints[0]["train"]
    masks = checked_read(data, found, np.arange(len(found)))["mask"]
    assert np.array_equal(masks[~without], before[~without]) and (masks[without] == label).all()
    held_out = found.notes[0]
    assert held_out.endswith("(--data.val_fraction)") and found.notes[1].startswith(
        f"{without.sum()} of 8 images of train"
    )
    assert found.notes[1].endswith(f" have no mask, such as {images[without.argmax()]}: all of their pixels have the "
                                   f"number {number} (data.missing_mask)")  # fmt: skip
    assert data.probe(found) == [] and "masks have the numbers 0, 1, 2, 3, 4" in data.size_notes(found)[-1]
    rows = [(f"images/{n}.png", "" if n in (4, 7, 9) else f"masks/{n}.png") for n in range(10)]
    table = pa.table(dict(zip(("path", "mask"), zip(*rows, strict=True), strict=True)))
    csv.write_csv(table, tmp_path / "data" / "list.csv")
    listed = Manifest(
        str(tmp_path / "data" / "list.csv"), mask="mask", mask_values=values, missing_mask=number, **FIELDS
    )
    same(data, listed)
    assert (
        listed.index()["train"].fingerprint() == found.fingerprint()
        and listed.index()["train"].notes == found.notes[1:]
    )
    packed(data, tmp_path / "pack")
    same(Packed(str(tmp_path / "pack")), data)
    cached = replace(data, cache=str(tmp_path / "cache"))
    for _ in range(2):
        decoded, _, _ = resident(cached, cached.index()["train"])
        assert decoded is not None and np.array_equal(decoded["mask"], masks)
    assert len(list((tmp_path / "cache").rglob("*.arrows"))) == 1


def test_masks_that_no_image_finds_are_no_missing_ones(tmp_path: Path) -> None:
    folder(tmp_path / "a", mask="masks/{}_m.png")
    data = source(tmp_path / "a", missing_mask=0)
    assert message(data).startswith("the image has no mask (10 of 10 have none), ") and "_ending _m?" in message(data)
    for number in range(4):
        os.rename(tmp_path / "a" / "masks" / f"{number}_m.png", tmp_path / "a" / "masks" / f"{number}.png")
    assert message(data).startswith("the image has no mask (6 of 10 have none), ") and "_ending _m?" in message(data)
    assert "--data.missing_mask" not in message(data)
    folder(tmp_path / "b", "images/train/{}.png", "masks/train/{}.png")
    folder(tmp_path / "b", "images/val/{}.png", None, 3)
    (tmp_path / "b" / "masks" / "val").mkdir()
    pair(tmp_path / "b", "masks/val/x.png", None)
    assert message(source(tmp_path / "b", missing_mask=0)).startswith("the image has no mask (3 of 3 have none), ")
    folder(tmp_path / "c")
    os.rename(tmp_path / "c" / "masks" / "4.png", tmp_path / "c" / "masks" / "four.png")
    notes = checked_indices(source(tmp_path / "c", missing_mask=0))["train"].notes
    assert notes[1] == "masks without an image are left out: masks/four.png" and notes[2].startswith("1 of ")


@pytest.mark.parametrize(
    ("image", "masks", "flags"),
    [
        ("{}", ["{}_mask"], ["--data.mask_ending _mask"]),
        ("{}_img", ["{}"], ["--data.image_ending _img"]),
        ("c_{}_leftImg8bit", ["c_{}_gtFine_ids"], ["--data.image_ending _leftImg8bit --data.mask_ending _gtFine_ids"]),
        ("{}", ["{}_a", "{}_b"], ["--data.mask_ending _a", "--data.mask_ending _b"]),
        ("image_{}", ["mask_{}"], []),
    ],
)
def test_endings_that_fit_are_suggested(tmp_path: Path, image: str, masks: list[str], flags: list[str]) -> None:
    for mask in masks:
        folder(tmp_path, f"images/{image}.png", f"masks/{mask}.png", 12)
    said = message(source(tmp_path))
    assert said.startswith("the image has no mask (12 of 12 have none), ")
    assert f"; did you mean {' or '.join(flags)}? add " in said or (not flags and "such as mask_0.png: names " in said)
    found = recognised(str(tmp_path), tree(str(tmp_path)))
    assert found is not None
    if len(flags) == 1:
        assert len(pairs(replace(found, cache="off"))) == 10
        assert all(part.lstrip("_") in f"{found.image_ending} {found.mask_ending}" for part in flags[0].split()[1::2])
    else:
        assert found == MaskFolder(str(tmp_path))


def test_folders_that_are_not_there_or_empty(tmp_path: Path) -> None:
    folder(tmp_path, "imgs/{}.png", "masks/{}.npy.png", 2)
    assert message(source(tmp_path)) == (
        f"no folder 'images' there, {tmp_path}; did you mean imgs? the folders are imgs, masks: name one by "
        "--data.images"
    )
    (tmp_path / "deep" / "images").mkdir(parents=True)
    assert message(source(tmp_path, images="deep/images")).startswith("no images there, ")
    assert message(source(tmp_path, images="imgs", masks="deep/masks")) == (
        f"no folder 'masks' there, {tmp_path}/deep; did you mean images? the folders are images: name one by "
        "--data.masks"
    )
    assert message(source(tmp_path / "imgs")) == (
        f"no folder 'images' there, {tmp_path}/imgs; it has none: give the folder above it, or --data.images"
    )
    for path in (tmp_path / "masks").iterdir():
        path.rename(path.with_suffix(""))
    assert message(source(tmp_path, images="imgs")) == (
        f"no masks there, {tmp_path}/masks; convert its .npy files to .png, or name another folder by --data.masks"
    )
    assert message(source(tmp_path, images="imgs", image_ending="_x")) == (
        f"no image's name ends in '_x', {tmp_path}/imgs; they are such as 0.png: --data.image_ending"
    )
    assert message(source(tmp_path / "none")).startswith(f"no such folder, {tmp_path}/none; ")
    assert message(source("")).startswith("data.root is not set, in MaskFolder; ")
    assert message(source(folder(tmp_path / "one", count=1))).startswith("there is one image alone, ")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"whole": True, "augment": Augment(crop="random_resized")},
            "masks are cut .*, in data.whole; leave whole out",
        ),
        ({"mask_values": (1, 1)}, r"mask_values = \(1, 1\) is out of range"),
        ({"mask_values": (0, 255), "missing_mask": 1}, "missing_mask = 1 is out of range, .* one of mask_values"),
        ({"missing_mask": 255}, "missing_mask = 255 is out of range, .* a class from 0 to 254"),
        ({"images": "../images"}, "images = '../images' is out of range, .* that is a folder below data.root"),
        ({"masks": "/masks"}, "masks = '/masks' is out of range"),
        ({"images": ""}, "images = '' is out of range"),
        ({"masks": "images/"}, "images and masks are both in 'images', and their names end alike, in data; say"),
        ({"val_fraction": 1.0}, "val_fraction = 1.0 is out of range"),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        source("here", **fields)


def test_a_mask_that_does_not_fit_is_named(tmp_path: Path) -> None:
    folder(tmp_path)
    Image.new("L", (9, 12)).save(tmp_path / "masks" / "1.png")
    Image.new("RGB", (9, 12)).save(tmp_path / "masks" / "2.png")
    (tmp_path / "masks" / "3.png").unlink()
    (tmp_path / "masks" / "3.png").symlink_to(tmp_path / "gone.png")
    data = source(tmp_path, val_fraction=0.1)
    index: Any = checked_indices(data)["train"]
    for number, reason in ((1, "it has 9 x 12 pixels, and its image 12 x 9"), (2, "it has a colour for each pixel")):
        with pytest.raises(BadSample, match=f"mask: {reason}.*masks/{number}.png"):
            data.read(index, np.flatnonzero([name == f"images/{number}.png" for name in index.paths.to_pylist()]))
    assert [bad.path for bad in data.probe(index)] == [str(tmp_path / "masks" / "3.png")]


def test_the_cache_follows_a_changed_mask(tmp_path: Path) -> None:
    folder(tmp_path)
    data = source(tmp_path, cache=str(tmp_path / "cache"), val_fraction=0.1)
    first, index, _ = resident(data, data.index()["train"])
    again, _, _ = resident(data, data.index()["train"])
    assert len(list((tmp_path / "cache").rglob("*.arrows"))) == 1
    assert first is not None and again is not None and np.array_equal(first["mask"], again["mask"])
    name = index.paths.to_pylist()[0].replace("images", "masks")  # type: ignore[union-attr]
    with Image.open(tmp_path / name) as image:
        size = image.size
    Image.new("L", size).save(tmp_path / name)
    changed, later, _ = resident(data, data.index()["train"])
    assert (
        changed is not None and not changed["mask"][0].any() and np.array_equal(changed["mask"][1:], first["mask"][1:])
    )
    assert later.fingerprint() != index.fingerprint()


def test_a_url_has_the_same_samples_and_a_cache(tmp_path: Path, s3: str) -> None:
    root = folder(tmp_path / "data", "images/x y/{}_i.png", "masks/x y/{}.gif", 7)
    pair(root, "images/val.txt.png", "masks/val.txt.png")
    system, there = fs.FileSystem.from_uri(f"{s3}/masked")
    fs.copy_files(str(root), there, destination_filesystem=system)
    here, url = source(root), source(f"{s3}/masked")
    assert message(url).startswith("the image has no mask (7 of 8 have none), s3://bucket/masked/images/x y/0_i.png; ")
    (root / "images" / "val.txt.png").unlink()
    for path in (f"{there}/images/val.txt.png", f"{there}/masks/val.txt.png"):
        system.delete_file(path)
    for place in (f"{s3}/masked", f"{s3}/masked/"):
        found = recognised(place, tree(place))
        assert found == MaskFolder(place, image_ending="_i")
    url, here = (replace(one, image_ending="_i", cache=str(tmp_path / "cache")) for one in (url, here))
    same(url, here)
    assert pairs(url) == pairs(here)
    for number in range(2):
        decoded, index, _ = resident(url, url.index()["train"])
        assert decoded is not None and len(list((tmp_path / "cache").glob("*.arrows"))) == 1, number
    system.delete_file(f"{there}/{index.masks.to_pylist()[0]}")  # type: ignore[attr-defined]
    assert message(url).startswith("the image has no mask (1 of 7 have none), s3://bucket/masked/images/x y/")
    assert message(source(f"{s3}/masked", images="imgs")).startswith("no folder 'imgs' there, s3://bucket/masked; ")
    assert message(source(f"{s3}/nothing")).startswith("nothing is there, s3://bucket/nothing; ")
    assert is_url(url.absolute().root)


def test_packs_and_mixtures_keep_masks(tmp_path: Path) -> None:
    data = source(folder(tmp_path / "data"), mask_values=(1, 2))
    packed(data, tmp_path / "pack")
    same(Packed(str(tmp_path / "pack")), data)
    other = source(folder(tmp_path / "other", count=6), mask_values=(1, 2))
    data, other = (replace(one, mean=(0.5,), std=(0.5,)) for one in (data, other))
    mixed = Mixed((data, other), shares=(0.5, 0.5))
    found = checked_indices(mixed)["train"]
    masks = checked_read(mixed, found, np.arange(len(found)))["mask"]
    parts = [
        checked_read(one, one.index()["train"], np.arange(len(one.index()["train"])))["mask"] for one in (data, other)
    ]
    assert np.array_equal(masks, np.concatenate(parts))


def test_relative_and_home_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for root in ("data", "data/", "./data/../data", "~/data"):
        data = source(root)
        assert data.absolute().root == str(tmp_path / "data")
        same(data, data.absolute())
