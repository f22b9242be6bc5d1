"""`raytrain new TABLE`: flags name the columns, and the experiment fits what is to be predicted."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from helpers.commands import fails, succeeds, without_ray
from PIL import Image
from pyarrow import fs, parquet

from raytrain import CNN, Adam, Augment, Manifest, MaskFolder, MultiLabel, Regression, Segmentation, Task, Torchvision
from raytrain.experiment import Experiment
from raytrain.run.experiment_file import load

__all__ = ["without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]
COUNT = 20
NAMES = ["red", "green", "blue"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of 20 images of 49 x 40 pixels, and masks of 0 and 255."""
    for folder, mode in (("images", "RGB"), ("masks", "L")):
        (tmp_path / folder).mkdir()
        for number in range(COUNT):
            array = np.resize(np.array([0, 255], np.uint8), (40, 49))
            image = Image.new("RGB", (49, 40), 9 * number) if mode == "RGB" else Image.fromarray(array)
            image.save(tmp_path / folder / f"{number}.png")
    return tmp_path


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    """Write a table; every one has a column of paths, or of bytes in Parquet."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix == ".parquet":
        parquet.write_table(pa.table(columns), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, [*columns], delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return path


def paths(folder: str = "images") -> list[Any]:
    return [f"{folder}/{number}.png" for number in range(COUNT)]


def written(out: Path) -> tuple[Experiment, Manifest]:
    """The experiment of a file, and its data."""
    value = load(out)[0]
    assert isinstance(value.data, Manifest)
    return value, value.data


def blobs(photos: Path, folder: str = "images") -> list[Any]:
    return [(photos / path).read_bytes() for path in paths(folder)]


CLASSES: list[Any] = [NAMES[number % 3] for number in range(COUNT)]
AGES: list[Any] = [1.5 * number for number in range(COUNT)]
BITS: list[Any] = [number % 2 for number in range(COUNT)]
TAGS: list[Any] = [NAMES[: number % 4] for number in range(COUNT)]


def unscaled(task: Task) -> Task:
    return replace(task, mean=(), std=()) if isinstance(task, Regression) else task


@pytest.mark.parametrize(
    ("name", "columns", "flags", "data", "task"),
    [
        ("t.csv", {"image_id": "paths", "class": CLASSES}, "--path image_id --label class", {}, None),
        ("t.tsv", {"f": "absolute", "age": AGES}, "--path f --target age", {}, Regression(monitor="val_mae")),
        ("t.parquet", {"x": "bytes", "v": AGES}, "--bytes x --target v", {}, Regression(monitor="val_mae")),
        ("t.jsonl", {"path": "paths", "tags": TAGS}, "--labels tags", {}, MultiLabel()),
        ("t.csv", {"path": "paths", "m": "masks"}, "--mask m", {"mask_values": (0, 255)}, Segmentation()),
        ("t.parquet", {"x": "bytes", "m": "masks"}, "--bytes x --mask m", {"mask_values": (0, 255)}, Segmentation()),
    ],
)
def test_columns_are_named_by_flags(
    photos: Path, capsys: Capture, name: str, columns: dict[str, Any], flags: str, data: dict[str, Any], task: Any
) -> None:
    of_bytes, out = "bytes" in columns.values(), photos / "first.py"
    known = {
        "paths": paths(),
        "absolute": [str(photos / path) for path in paths()],
        "bytes": blobs(photos),
        "masks": blobs(photos, "masks") if of_bytes else paths("masks"),
    }
    columns = {key: known[value] if isinstance(value, str) else value for key, value in columns.items()}
    table = write(photos / name, columns)
    succeeds(capsys, "new", table, *flags.split(), "--out", out)
    words = flags.replace("--", "").split()
    given: dict[str, Any] = dict(zip(words[::2], words[1::2], strict=True))
    given = {key: (value,) if key == "target" else value for key, value in given.items()} | data
    made, source = written(out)
    assert source == Manifest(str(table), **given, size=32, augment=Augment(flip=0.5))
    assert task is None or unscaled(made.task) == task
    outputs = {Regression: 1, Segmentation: 2}.get(type(task), 0)
    if isinstance(task, Segmentation):
        assert isinstance(made.model, Torchvision) and made.model.outputs == outputs
    else:
        assert made.model == CNN(channels=(32, 64, 128), outputs=outputs)
    text = out.read_text()
    assert len(text.splitlines()) <= 25 and " images to train on and " in text
    weights = ["--model.weights", "none"] if isinstance(task, Segmentation) else []
    said = succeeds(capsys, "train", out, "--dry_run", "--scaling.workers", 0, *weights)
    assert {None: "3 classes", Regression: "val_mae", MultiLabel: "val_macro_f1", Segmentation: "val_macro_iou"}[
        task and type(task)
    ] in said


def test_numbers_are_described_and_columns_of_0_and_1_are_classes(photos: Path, capsys: Capture) -> None:
    table = write(photos / "t.csv", {"path": paths(), "haze": BITS, "sun": BITS[::-1], "age": AGES})
    succeeds(capsys, "new", table, "--target", "haze", "sun", "--out", photos / "a.py")
    made = load(photos / "a.py")[0]
    assert made.task == MultiLabel(classes=("haze", "sun")) and made.model == CNN(channels=(32, 64, 128), outputs=2)
    assert "# Training images of each class: 'haze' " in (photos / "a.py").read_text()
    said = succeeds(capsys, "train", photos / "a.py", "--dry_run", "--scaling.workers", 0)
    assert "always each class's share" in said
    succeeds(capsys, "new", table, "--target", "sun", "--out", photos / "one.py")
    made = load(photos / "one.py")[0]
    assert made.task == MultiLabel(classes=("sun",)) and made.model == CNN(channels=(32, 64, 128), outputs=1)
    said = succeeds(capsys, "train", photos / "one.py", "--dry_run", "--scaling.workers", 0)
    assert "always each class's share" in said
    succeeds(capsys, "new", table, "--target", "haze", "age", "--out", photos / "b.py")
    made, text = load(photos / "b.py")[0], (photos / "b.py").read_text()
    named = Regression(monitor="val_mae", names=("haze", "age"))
    assert isinstance(made.task, Regression) and unscaled(made.task) == named
    assert len(made.task.mean) == len(made.task.std) == 2
    assert made.model == CNN(channels=(32, 64, 128), outputs=2)
    assert "with 2 numbers each to predict" in text and "# 'haze' 0 to 1, mean " in text


def test_photographs_with_numbers_start_from_pretrained_weights(tmp_path: Path, capsys: Capture) -> None:
    for number in range(10):
        Image.new("RGB", (300, 250), number).save(tmp_path / f"{number}.jpg")
    names: list[Any] = [f"{number}.jpg" for number in range(10)]
    table = write(tmp_path / "t.csv", {"path": names, "age": AGES[:10]})
    succeeds(capsys, "new", table, "--target", "age", "--out", tmp_path / "a.py")
    made, source = written(tmp_path / "a.py")
    assert made.model == Torchvision("resnet18", weights="hub", outputs=1) and source.size == 224
    assert made.optimizer == Adam(lr=1e-3, backbone_lr_factor=0.1)
    assert "--model.weights none" in (tmp_path / "a.py").read_text()


def test_numbers_are_scaled_by_those_of_the_training_images(photos: Path, capsys: Capture) -> None:
    numbers: list[Any] = [4e5 + 100 * number for number in range(COUNT)]
    table = write(photos / "t.csv", {"path": paths(), "price": numbers, "rooms": [3] * COUNT})
    succeeds(capsys, "new", table, "--target", "price", "--out", photos / "a.py")
    made, source = written(photos / "a.py")
    train = source.index()["train"]
    (prices,) = source.further(train, np.arange(len(train))).values()
    assert isinstance(made.task, Regression)
    found = [made.task.mean[0], made.task.std[0]]
    np.testing.assert_allclose(found, [prices.mean(dtype=np.float64), prices.std(dtype=np.float64)], rtol=1e-3)
    said = succeeds(capsys, "train", photos / "a.py", "--dry_run", "--scaling.workers", 0)
    assert "if they are scaled" not in said and "by always the mean, 4" in said
    succeeds(capsys, "new", table, "--target", "rooms", "--out", photos / "b.py")
    assert load(photos / "b.py")[0].task == Regression(monitor="val_mae"), "they are all alike"


def test_other_separators_and_numbers_as_classes_are_noted(photos: Path, capsys: Capture) -> None:
    table = write(photos / "t.csv", {"path": paths(), "tags": ["|".join(tags) for tags in TAGS], "label": BITS})
    said = succeeds(capsys, "new", table, "--labels", "tags", "--out", photos / "a.py")
    assert "has '|' in its name: --separator '|' takes it apart" in said
    assert said.splitlines()[1] in (photos / "a.py").read_text()
    said = succeeds(capsys, "new", table, "--labels", "tags", "--separator", "|", "--out", photos / "b.py")
    assert "--separator" not in said and written(photos / "b.py")[1].separator == "|"
    assert "with any of 3 classes each" in (photos / "b.py").read_text()
    assert "# Training images of no class: " in (photos / "b.py").read_text()
    halves = write(photos / "h.csv", {"path": paths(), "label": [0.5 + number % 2 for number in range(COUNT)]})
    said = succeeds(capsys, "new", halves, "--out", photos / "c.py")
    assert "Each number in column 'label' is a class: --target predicts numbers" in said


@pytest.mark.parametrize(
    ("name", "columns", "guess"),
    [
        ("t.csv", {"image_id": "paths", "class": CLASSES, "id": AGES}, "--path image_id --label class"),
        ("t.csv", {"path": "paths", "category": BITS}, "--label category"),
        ("t.csv", {"file": "paths", "label": CLASSES, "age": AGES}, "--path file"),
        ("t.csv", {"file": "paths", "age": AGES, "split": ["train"] * 15 + ["val"] * 5}, "--path file --target age"),
        ("t.csv", {"file": "paths", "seg": "masks", "kind": CLASSES}, "--path file --mask seg"),
        ("t.csv", {"my file": "names", "kind": CLASSES}, "--path 'my file' --label kind --folder {}/images"),
        ("t.csv", {"id": "ids", "kind": CLASSES}, "--path id --suffix .png --label kind --folder {}/images"),
        ("t.jsonl", {"file": "paths", "tags": TAGS}, "--path file --labels tags"),
        ("t.parquet", {"photo": "bytes", "age": AGES}, "--bytes photo --target age"),
        ("t.csv", {"path": "paths", "haze": BITS, "sun": BITS[::-1]}, "--target haze sun"),
        ("t.csv", {"path": "paths", "ill": [bit == 1 for bit in BITS]}, "--label ill"),
        ("t.csv", {"path": "paths", "kind": CLASSES, "part": ["train", "valid"] * 10}, "--label kind --split part"),
    ],
)
def test_the_error_has_the_command_where_the_table_tells(
    photos: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, name: str, columns: dict[str, Any], guess: str
) -> None:
    monkeypatch.chdir(photos.parent)
    known = {"paths": paths(), "masks": paths("masks"), "bytes": blobs(photos)}
    known["names"] = [path.removeprefix("images/") for path in paths()]
    known["ids"] = [*map(str, range(COUNT))]
    columns = {key: known[value] if isinstance(value, str) else value for key, value in columns.items()}
    table = write(photos / name, columns)
    said = fails(capsys, "new", table, "--out", photos / "x.py")
    guess = guess.format(photos.name)
    assert f"its columns are {', '.join(columns)}), {table}; did you mean `raytrain new {table} {guess}`?" in said
    flags = guess.replace("'my file'", "my+file").split()
    succeeds(capsys, "new", table, *(one.replace("+", " ") for one in flags), "--out", photos / "x.py")


def test_ids_get_the_suffix_of_the_files(photos: Path, capsys: Capture) -> None:
    table = write(photos / "ids.parquet", {"id": [*range(COUNT)], "kind": CLASSES})
    flags = ["--path", "id", "--label", "kind", "--folder", photos / "images"]
    said = fails(capsys, "new", table, *flags, "--out", photos / "x.py")
    assert f"no image of column 'id' is there, {photos}/images/0; did you mean --suffix .png?" in said
    for given in ((), ("--suffix", ".png")):  # without the folder too
        said = fails(capsys, "new", table, *flags[:4], *given, "--out", photos / "x.py")
        folder = os.path.relpath(photos / "images")
        assert f"no image of column 'id' is there, {photos}/0" in said and f"--suffix .png --folder {folder}?" in said
    succeeds(capsys, "new", table, *flags, "--suffix", ".png", "--out", photos / "x.py")
    source = written(photos / "x.py")[1]
    assert (source.path, source.suffix) == ("id", ".png") and 'suffix=".png"' in (photos / "x.py").read_text()
    by_paths = replace(source, root=str(write(photos / "t.csv", {"path": paths(), "kind": CLASSES})), folder="")
    by_paths = replace(by_paths, path="path", suffix="")
    for split, index in source.index().items():
        same, samples = by_paths.index()[split], np.arange(len(index))
        assert np.array_equal(index.labels, same.labels) and len(index)
        assert np.array_equal(source.read(index, samples), by_paths.read(same, samples))
    said = fails(capsys, "train", photos / "x.py", "--data.bytes", "id", "--scaling.workers", 0)
    assert "suffix ends the paths, and with bytes there are none" in said


def test_a_table_that_does_not_tell_gets_the_flags(photos: Path, capsys: Capture) -> None:
    table = write(photos / "t.csv", {"file": paths(), "one": CLASSES, "two": BITS})
    said = fails(capsys, "new", table, "--out", photos / "x.py")
    assert (
        f"name its columns: `raytrain new {table} --path file --label COLUMN`, or in place of --label --labels" in said
    )
    ages = write(photos / "ages.csv", {"path": paths() * 3, "age": [number // 2 for number in range(3 * COUNT)]})
    assert f"`raytrain new {ages} --label COLUMN`, or" in fails(capsys, "new", ages, "--out", photos / "x.py")
    (photos / "gone.csv").write_text("file,kind\nno.png,a\nnot.png,b\n")
    said = fails(capsys, "new", photos / "gone.csv", "--out", photos / "x.py")
    assert "--path COLUMN --label COLUMN`" in said
    (photos / "semi.csv").write_text("path;label\na.png;a\n")
    said = fails(capsys, "new", photos / "semi.csv", "--out", photos / "x.py")
    assert "separate the columns with commas in place of ';'" in said and not (photos / "x.py").exists()


def test_boxes_and_lists_of_images_are_not_guessed(photos: Path, capsys: Capture) -> None:
    boxes = [{"bbox": [[1.0, 2.0, 3.0, 4.0]], "category": [0]}] * COUNT
    table = write(photos / "boxes.parquet", {"x": blobs(photos), "objects": boxes})
    assert f"`raytrain new {table} --bytes x --label COLUMN`" in fails(capsys, "new", table)
    table = write(photos / "lists.parquet", {"x": [[one] for one in blobs(photos)], "label": CLASSES})
    assert f"`raytrain new {table} --path COLUMN`" in fails(capsys, "new", table)


def test_a_table_of_another_system_says_what_to_change(photos: Path, capsys: Capture) -> None:
    rows = [f"{path},{name}\n" for path, name in zip(paths(), CLASSES, strict=True)]
    (photos / "bare.csv").write_text("".join(rows))
    said = fails(capsys, "new", photos / "bare.csv", "--out", photos / "x.py")
    assert f"the first row must name the columns, and is {rows[0].strip().replace(',', ', ')}, {photos}" in said
    assert "write a row such as path,label above it" in said
    table = write(photos / "t.csv", {"path": [path.replace("/", "\\") for path in paths()], "label": CLASSES})
    said = fails(capsys, "new", table, "--out", photos / "x.py")
    assert "no image of column 'path' is there, " in said and "; write / in its paths, in place of \\" in said


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--label clas",
            "no column 'clas' (its columns are path, class, age, n, odd), {}; did you mean class? name",
        ),
        ("--target ag", "no column 'ag' (its columns are path, class, age, n, odd), {}; did you mean age? "),
        ("--path clas", "did you mean class? name another by --path COLUMN"),
        ("--label class --target age", "--label and --target both are what is to be predicted, {}; leave --label or"),
        ("--path path --bytes path", "--path and --bytes both hold the images, {}; leave --path or --bytes out"),
        ("--label path --path path", "column 'path' is both --path and --label, {}; name each column once"),
        ("--target age age", "column 'age' is twice in --target, {}; name each column once"),
        ("--label class --separator ,", "--separator stands between the names of several classes, {}; name their"),
        (
            "--target class",
            "must hold numbers, or lists of them that are equally long, got 'red' in line 2 (images/0.png)",
        ),
        (
            "--label age",
            "no class has two images, {}; add rows of the split val, or more images; to predict",
        ),
        ("--label odd", "write their names, or predict the numbers by --target odd"),
        ("--target n", "line 5 (images/3.png) has no number in column 'n', {}; fill it, or remove the row"),
        ("--bytes class --label class", "column 'class' is both --bytes and --label"),
        ("--bytes path --label class", "only Parquet and Arrow files hold bytes, {}; leave --bytes out"),
        ("--label class --split age", "unknown split '0.0' in column 'age', {}; "),
        ("--label class --folder images", "no image of column 'path' is there, "),
        ("--label class --lable class", "unknown flag --lable; did you mean --label? "),
    ],
)
def test_mistakes_in_flags_are_one_line(photos: Path, capsys: Capture, flags: str, message: str) -> None:
    numbers = ["nan" if number == 3 else number for number in range(COUNT)]
    odd = [2 * bit + 1 for bit in BITS]
    table = write(photos / "t.csv", {"path": paths(), "class": CLASSES, "age": AGES, "n": numbers, "odd": odd})
    said = fails(capsys, "new", table, *flags.split(), "--out", photos / "x.py")
    assert message.format(table) in said and "--data." not in said and not (photos / "x.py").exists()


def test_flags_of_tables_are_refused_for_folders(photos: Path, capsys: Capture) -> None:
    said = fails(capsys, "new", photos, "--label", "kind", "--out", photos / "x.py")
    assert f"--label is for a table, and this is a folder, {photos}; leave it out, or give a .csv, .tsv" in said
    write(photos / "images" / "t.csv", {"path": paths(), "label": CLASSES})
    said = fails(capsys, "new", photos / "images", "--out", photos / "x.py")
    assert f"there are no folders of images, but a table, {photos}/images; did you mean `raytrain new " in said
    said = fails(capsys, "new", photos / "no.csv", "--label", "kind", "--out", photos / "x.py")
    assert "no such file" in said and "no.csv" in said


def test_a_table_at_a_url_is_read(photos: Path, capsys: Capture, s3: str) -> None:
    write(photos / "t.csv", {"file": paths(), "age": AGES})
    system, root = fs.FileSystem.from_uri(f"{s3}/new")
    fs.copy_files(str(photos), root, destination_filesystem=system)
    said = fails(capsys, "new", f"{s3}/new/t.csv", "--out", photos / "x.py")
    assert f"`raytrain new {s3}/new/t.csv --path COLUMN --target age`" in said
    succeeds(capsys, "new", f"{s3}/new/t.csv", "--path", "file", "--target", "age", "--out", photos / "x.py")
    source = written(photos / "x.py")[1]
    assert source == Manifest(f"{s3}/new/t.csv", path="file", target=("age",), size=32, augment=Augment(flip=0.5))
    assert "16 images to train on" in (photos / "x.py").read_text()
    succeeds(capsys, "new", f"{s3}/new", "--out", photos / "y.py")
    assert isinstance(data := load(photos / "y.py")[0].data, MaskFolder) and data.root == f"{s3}/new"


def test_tables_in_folders_and_patterns_are_read(photos: Path, capsys: Capture) -> None:
    folder = photos / "saved"
    folder.mkdir()
    for split, half in (("train", slice(0, 15)), ("validation", slice(15, 20))):
        columns = {"photo": blobs(photos)[half], "kind": CLASSES[half]}
        write(folder / f"{split}-00000-of-00001.parquet", columns)
    for number, place in enumerate((folder, folder / "*.parquet")):
        out = photos / f"{number}.py"
        succeeds(capsys, "new", place, "--bytes", "photo", "--label", "kind", "--out", out)
        assert "15 images to train on and 5 to validate on, in 3 classes." in out.read_text()
        assert written(out)[1].root == str(place)
    said = fails(capsys, "new", folder, "--out", photos / "x.py")
    assert f"did you mean `raytrain new {folder} --bytes photo --label kind`?" in said
