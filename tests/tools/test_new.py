"""`raytrain new`: the experiment file fits the images and runs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from helpers.commands import fails, succeeds, without_ray
from PIL import Image
from pyarrow import parquet

from raytrain import MNIST, Augment, ImageFolder, Manifest, MaskFolder, Segmentation, Torchvision
from raytrain.run.experiment_file import load

__all__ = ["without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]


def images(root: Path, counts: dict[str, int], side: int, mode: str) -> Path:
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.new(mode, (side, side + 9), number).save(root / name / f"{number}.png")
    return root


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_the_file_fits_the_folder_and_runs(tmp_path: Path, capsys: Capture, mode: str, channels: int) -> None:
    root, out = images(tmp_path / 'it\'s "here"', {"ants": 40, "bees": 10}, 70, mode), tmp_path / "first.py"
    said = succeeds(capsys, "new", root, "--out", out)
    assert said.splitlines()[0] == f"wrote {out}" and f"raytrain train {out} --dry_run" in said
    text = out.read_text()
    assert len(text.splitlines()) <= 25 and "'ants' 32, 'bees' 8" in text and "class_weights=(0.625, 2.5,)" in text
    assert np.average([0.625, 2.5], weights=[32, 8]) == 1
    data = load(out)[0].data
    assert isinstance(data, ImageFolder) and (data.root, data.size, data.channels) == (str(root), 64, channels)
    assert "2 classes" in succeeds(capsys, "train", out, "--dry_run", "--scaling.workers", 0)
    assert "the file exists" in fails(capsys, "new", root, "--out", out) and out.read_text() == text
    assert "the file exists" not in fails(capsys, "new", root / "missing", "--out", out), (
        "the missing folder comes first"
    )


def test_images_of_48_pixels_keep_them(tmp_path: Path, capsys: Capture) -> None:
    root, out = images(tmp_path / "photos", {"a": 5, "b": 5}, 48, "L"), tmp_path / "first.py"
    succeeds(capsys, "new", root, "--out", out)
    assert "size=48, " in out.read_text()


def test_damaged_images_are_named_and_left_out(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = images(tmp_path / "My Photos", {"ants": 10, "bees": 10}, 40, "RGB")
    for name in ("ants/3.png", "bees/4.png"):
        (root / name).write_bytes((root / name).read_bytes()[:-40])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    said = succeeds(capsys, "new", "../My Photos").splitlines()
    assert said[:2] == ["wrote experiment.py", "2 images cannot be read and are left out, by on_bad_sample:"]
    notes = said[1 : next(number for number, line in enumerate(said) if "raytrain train" in line)]
    words = " ".join(line.strip() for line in notes)
    assert f"{root}/ants/3.png (" in words and f"{root}/bees/4.png (" in words
    assert all(len(line) <= 78 or "/" in line.split()[0] for line in notes), "a path is not broken"
    text = Path("experiment.py").read_text()
    assert "".join(f"# {line}\n" for line in notes) in text
    assert f'ImageFolder("{root}", size=32, on_bad_sample="skip", ' in text
    assert "cannot be read: " in succeeds(capsys, "train", "experiment.py", "--dry_run", "--scaling.workers", 0)
    for file in root.rglob("*.png"):
        file.write_bytes(b"")
    assert "no sample can be read" in fails(capsys, "new", root, "--out", "other.py") and not Path("other.py").exists()


def test_photographs_start_from_pretrained_weights(tmp_path: Path, capsys: Capture) -> None:
    said = succeeds(capsys, "new", images(tmp_path / "large", {"a": 5, "b": 5}, 230, "RGB"), "--out", tmp_path / "l.py")
    assert [line.split()[-3:] for line in said.splitlines()[1:]] == [
        ["train", str(tmp_path / "l.py"), "--dry_run"],
        ["raytrain", "train", str(tmp_path / "l.py")],
    ]
    assert load(tmp_path / "l.py")[0].model == Torchvision("resnet18", weights="hub")
    assert "--model.weights none" in (tmp_path / "l.py").read_text()


def test_one_class_is_refused(tmp_path: Path, capsys: Capture) -> None:
    root, out = images(tmp_path / "flat", {"images": 10}, 32, "RGB"), tmp_path / "x.py"
    said = fails(capsys, "new", root, "--out", out)
    assert f"there is one class of images, 'images', {root}; give a folder with a folder for each class" in said
    (root / "labels.csv").write_text("path,label\n" + "".join(f"{path},a\n" for path in root.rglob("*.*")))
    assert f"did you mean `raytrain new {root}/labels.csv`?" in fails(capsys, "new", root, "--out", out)
    said = fails(capsys, "new", root / "labels.csv", "--out", out)
    assert f"there is one class of images, 'a', {root}/labels.csv; give a table with several" in said
    assert not out.exists()


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_table_of_classes_is_read(tmp_path: Path, capsys: Capture, form: str) -> None:
    root = images(tmp_path / "photos", {"a": 20, "b": 5}, 40, "L")
    files, out = sorted(root.rglob("*.png")), tmp_path / "first.py"
    labels, table = [file.parent.name for file in files], tmp_path / f"labels.{form}"
    if form == "csv":
        rows = [f"{file.relative_to(tmp_path)},{label}" for file, label in zip(files, labels, strict=True)]
        table.write_text("\n".join(["path,label", *rows]))
    else:
        columns = {"image": [{"bytes": file.read_bytes(), "path": file.name} for file in files], "label": labels}
        parquet.write_table(pa.table(columns), table)
    succeeds(capsys, "new", table, "--out", out)
    made = load(out)[0]
    column = "" if form == "csv" else "image"
    assert made.data == Manifest(str(table), bytes=column, size=32, channels=1, augment=Augment(flip=0.5))
    assert "# The classes are uneven" in out.read_text() and "'a' 16, 'b' 4" in out.read_text()
    assert "10 classes" not in succeeds(capsys, "train", out, "--dry_run", "--scaling.workers", 0)


def test_even_classes_get_no_weights_and_mnist_is_known(tmp_path: Path, capsys: Capture, data_root: Path) -> None:
    succeeds(capsys, "new", images(tmp_path / "even", {"a": 10, "b": 10}, 32, "RGB"), "--out", tmp_path / "even.py")
    assert "uneven" not in (tmp_path / "even.py").read_text()
    succeeds(capsys, "new", data_root / "mnist", "--out", tmp_path / "mnist.py")
    assert load(tmp_path / "mnist.py")[0].data == MNIST(str(data_root / "mnist"))
    succeeds(capsys, "train", tmp_path / "mnist.py", "--dry_run", "--scaling.workers", 0)


def test_mistakes_write_nothing(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "empty").mkdir()
    assert "no such folder" in fails(capsys, "new", tmp_path / "no", "--out", tmp_path / "x.py")
    assert "no class folders" in fails(capsys, "new", tmp_path / "empty", "--out", tmp_path / "x.py")
    assert "unknown file type" in fails(capsys, "new", tmp_path / "empty", "--out", tmp_path / "x.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def masked(root: Path, numbers: list[int], mask: str = "masks/{}.png", mode: str = "L") -> Path:
    """A folder of 10 images of 40 x 49 pixels and masks with some numbers."""
    for name in ("images/{}.jpg", mask):
        (root / name).parent.mkdir(parents=True)
    for number in range(10):
        Image.new("RGB", (49, 40), number).save(root / f"images/{number}.jpg")
        array = np.resize(np.array(numbers, np.uint8), (40, 49))
        Image.fromarray(array).convert(mode).save(root / mask.format(number))
    return root


@pytest.mark.parametrize(
    ("numbers", "values", "outputs"),
    [
        ([0, 255], (0, 255), 2),
        ([0, 1], (), 2),
        ([0, 1, 5, 255], (), 6),
        ([1, 2, 3], (1, 2, 3), 3),
        ([1, 2, 255], (1, 2), 2),
        ([0, 128, 255], (0, 128, 255), 3),
        ([0], (), 2),
        ([*range(34)], (), 34),
    ],
)
def test_the_numbers_of_masks_decide_the_classes(
    tmp_path: Path, capsys: Capture, numbers: list[int], values: tuple[int, ...], outputs: int
) -> None:
    root, out = masked(tmp_path / "data", numbers), tmp_path / "first.py"
    succeeds(capsys, "new", root, "--out", out)
    text, (value, _) = out.read_text(), load(out)
    assert len(text.splitlines()) <= 25 and "8 images to train on and 2 to validate on, with a mask each." in text
    assert isinstance(value.data, MaskFolder) and isinstance(value.model, Torchvision) and value.task == Segmentation()
    assert (value.data.root, value.data.size, value.data.mask_values) == (str(root), 32, values)
    assert value.model.outputs == outputs and f"# Numbers in masks: {numbers[0]}" in text
    if outputs == 2 and len(numbers) == 2:
        said = succeeds(capsys, "train", out, "--dry_run", "--scaling.workers", 0, "--model.weights", "none")
        assert f"masks have the numbers 0, {numbers[1]}" in said and "val_macro_iou" in said


@pytest.mark.parametrize("mask", ["masks/{}_m.gif", "labels/{}.png", "Masks/{}.png"])
def test_masks_of_other_names_are_found(tmp_path: Path, capsys: Capture, mask: str) -> None:
    root, out = masked(tmp_path / "data", [0, 1], mask), tmp_path / "first.py"
    os.truncate(root / "images" / "3.jpg", 100)
    said = succeeds(capsys, "new", root, "--out", out)
    assert "1 image cannot be read and is left out, by on_bad_sample:\n  " in said
    data = load(out)[0].data
    folder, name = mask.split("/")
    ending = "_m" if "_m" in name else ""
    assert data == MaskFolder(
        str(root), masks=folder, mask_ending=ending, size=32, on_bad_sample="skip", augment=data.augment
    )
    assert "train 8, val 2" in succeeds(capsys, "data", root, "--data.size", 16)


def test_masks_that_cannot_be_used_are_one_line(tmp_path: Path, capsys: Capture) -> None:
    root, out = masked(tmp_path / "data", [0, 255], mode="RGB"), tmp_path / "first.py"
    said = fails(capsys, "new", root, "--out", out)
    assert "no mask can be read; the first error: it has a colour for each pixel (mode RGB), and not a number, " in said
    os.remove(root / "masks" / "0.png")
    assert "the image has no mask (1 of 10 have none), " in fails(capsys, "new", root, "--out", out)
    other = masked(tmp_path / "other", [0, 1], "labels/{}.png")
    (other / "labels" / "0.png").unlink()
    assert "the image has no mask (1 of 10 have none), " in fails(capsys, "new", other, "--out", out)
    third = masked(tmp_path / "third", [0, 1], "masks/{}_m.png")
    (third / "masks" / "0_m.png").unlink()
    said = fails(capsys, "new", third, "--out", out)
    assert "(1 of 10 have none), " in said and "; add masks/0_m.png, or remove the image; if images" in said
    assert said.endswith(" use --missing_mask 0")
    succeeds(capsys, "new", third, "--out", out, "--missing_mask", 0)
    value = load(out)[0].data
    assert isinstance(value, MaskFolder) and (value.missing_mask, value.mask_ending) == (0, "_m")
    for file in (third / "masks").iterdir():
        Image.open(file).point(lambda number: number * 255).save(file)
    out.unlink()
    succeeds(capsys, "new", third, "--out", out, "--missing_mask", 0)
    assert load(out)[0].data == replace(value, mask_values=(0, 255))
    out.unlink()
    (root / "list.csv").write_text("path,mask\n")
    said = fails(capsys, "new", root / "list.csv", "--out", out, "--missing_mask", 0)
    assert "--missing_mask is for masks, " in said
    said = fails(capsys, "new", root / "images", "--out", out, "--missing_mask", 0)
    assert "--missing_mask is for masks, and there are none, " in said
    for file in (other / "labels").iterdir():
        file.rename(file.with_name(f"other-{file.name[0]}x.png"))
    assert "in 2 classes" in succeeds(capsys, "new", other, "--out", out) + out.read_text(), "two folders of images"
