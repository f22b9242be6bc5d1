"""Manifest: the same samples as the folders that its table lists, and what is wrong with a table."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import csv, fs, parquet

from raytrain.data import ImageFolder, Manifest, tables
from raytrain.data.checks import checked_indices, checked_read
from raytrain.data.packing import pack as resident
from raytrain.errors import BadSample, UserError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageFolder of 2 splits, 2 classes and 3 images of each, of different colours."""
    root = tmp_path_factory.mktemp("images")
    for number in range(12):
        split, name = ("train", "val")[number // 6], ("ant", "bee")[number // 3 % 2]
        path = root / split / name / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6 + number % 3, 5), (number * 20, 40, 255 - number * 9)).save(path)
    return root


def rows(folder: Path) -> pa.Table:
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.png"))
    splits, labels, _ = zip(*(name.split("/") for name in names), strict=True)
    known = ["Validation" if split == "val" else split for split in splits]
    return pa.table({"path": names, "label": labels, "split": known, "weight": np.arange(12.0), "who": labels})


def write(table: pa.Table, path: Path) -> str:
    if path.suffix == ".csv":
        csv.write_csv(table, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        parquet.write_table(table, path, row_group_size=5)
    return str(path)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_table_gives_what_its_folders_give(folder: Path, tmp_path: Path, suffix: str):
    root = write(rows(folder), tmp_path / f"labels.{suffix}")
    data = Manifest(root, size=8, folder=str(folder), columns=("weight", "who"))
    found, expected = checked_indices(data), checked_indices(ImageFolder(str(folder), size=8))
    assert list(found) == list(expected)
    for split, index in found.items():
        samples = np.array([5, 0, 3])
        assert index.classes == expected[split].classes == ("ant", "bee")
        assert index.labels.tolist() == expected[split].labels.tolist()
        assert index.names(np.arange(6)) == expected[split].names(np.arange(6))
        assert index.sizes is not None and index.sizes.tolist() == expected[split].sizes.tolist()  # type: ignore[union-attr]
        same = checked_read(ImageFolder(str(folder), size=8), expected[split], samples)["image"]
        assert np.array_equal(checked_read(data, index, samples)["image"], same)
    assert found["val"].columns["weight"].tolist() == list(range(6, 12))
    assert found["val"].columns["who"].tolist() == ["ant"] * 3 + ["bee"] * 3


def test_hugging_face_parquet(folder: Path, tmp_path: Path):
    table = rows(folder)
    cells = [{"path": name, "bytes": (folder / name).read_bytes()} for name in table["path"].to_pylist()]
    features = {"label": {"names": ["wasp", "bee", "ant"], "_type": "ClassLabel"}}
    hugging = pa.table({"image": cells, "label": [2 if label == "ant" else 1 for label in table["label"].to_pylist()]})
    hugging = hugging.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    root = write(hugging, tmp_path / "0000.parquet")
    data = Manifest(root, size=8, bytes="image", val_fraction=0.34)
    found = checked_indices(data)
    assert found["train"].classes == ("wasp", "bee", "ant")
    assert {split: np.bincount(index.labels).tolist() for split, index in found.items()} == {
        "train": [0, 4, 4],
        "val": [0, 2, 2],
    }
    train = found["train"]
    order = np.array([7, 0, 4, 0])
    assert list(data.encoded(train, order)) == [cells[row]["bytes"] for row in train.rows[order]]
    image = data.read(train, np.array([7]))[0, :, 0, 0]
    with Image.open(io.BytesIO(cells[train.rows[7]]["bytes"])) as expected:
        assert tuple(image) == expected.getpixel((0, 0))
    assert (
        data.where(train, 0) == f"{root}, row {train.rows[0] + 1} (counted from 1)" and data.cache_entry(train) is None
    )
    with pytest.raises(UserError, match=r"did you mean --data\.bytes image"):
        Manifest(root).index()


def test_bytes_that_are_missing_or_damaged_name_the_row(tmp_path: Path):
    root = write(pa.table({"image": [None, b"none", b"", b"x"], "label": [0, 0, 1, 1]}), tmp_path / "a.parquet")
    data = Manifest(root, bytes="image", val_fraction=0.5)
    index = data.index()["train"]
    for sample in range(len(index)):
        with pytest.raises(BadSample, match=f"row {index.rows[sample] + 1} "):
            data.read(index, np.array([sample]))


def test_missing_files_are_found(folder: Path, tmp_path: Path):
    lost = rows(folder).to_pylist()
    lost[1]["path"] = "train/ant/lost.png"
    data = Manifest(write(pa.Table.from_pylist(lost), tmp_path / "a.csv"), folder=str(folder), cache="off")
    (bad,) = data.probe(data.index()["train"])
    assert bad.path == str(folder / "train/ant/lost.png")


WRONG = [
    ({"labels": ["a", "a"], "path": ["x", "y"]}, "no column 'label'.*did you mean"),
    ({"label": ["a", "a"], "path": ["x", "y"], "split": ["train", "vaal"]}, "unknown split 'vaal'.*did you mean"),
    ({"label": ["a", "a"], "path": ["x", "y"], "split": ["True", "False"]}, "'False' in col[^;]*; write train, val or"),
    ({"label": ["a", ""], "path": ["x", "y"]}, r"(line 3 \(|row 2 \(counted from 1, )y\) has no label"),
    ({"label": [0, None], "path": ["x", "y"]}, r"(line 3 \(|row 2 \(counted from 1, )y\) has no label"),
    ({"label": [0, 2], "path": ["x", "y"]}, "0 to n - 1 or 1 to n without gaps, got 0, 2"),
    ({"label": [2, 3], "path": ["x", "y"]}, "0 to n - 1 or 1 to n without gaps, got 2, 3"),
    ({"label": ["a", "b"], "path": ["x", "y"]}, "no class has two images"),
    ({"label": ["a", "b"], "path": ["x", "y"], "split": ["val", "val"]}, "no row is in the split train"),
]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"label": [[0, 1], [1]]}, r"column 'label' must have .* got list<.*int64>, .*; write .* --data.target label"),
        (
            {"label": [{"a": 1}, {"a": 2}]},
            r"column 'label' must have a text or a number in each row, got struct<a: int64>",
        ),
        (
            {"split": [["train"], ["val"]]},
            r"column 'split' must have .*got list<.*>, .*; write one value into each row$",
        ),
        ({"path": [["x"], ["y"]]}, "column 'path' must have "),
        ({"who": [{"id": 1}, {"id": 2}]}, "column 'who' must have "),
    ],
)
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_columns_of_lists_and_dicts_are_one_line(
    wrong: dict[str, list[object]], message: str, suffix: str, tmp_path: Path
):
    table = pa.table({"label": ["a", "b"], "path": ["x", "y"], "split": ["train", "val"], "who": ["p", "q"]} | wrong)
    with pytest.raises(UserError, match=message):
        checked_indices(Manifest(write(table, tmp_path / f"a.{suffix}"), columns=("who",)))


@pytest.mark.parametrize(("table", "message"), WRONG)
def test_errors_say_what_is_wrong(table: dict[str, list[object]], message: str, tmp_path: Path):
    for suffix in ("csv", "parquet"):
        with pytest.raises(UserError, match=message):
            Manifest(write(pa.table(table), tmp_path / f"a.{suffix}")).index()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.txt", "x", "not a table"),
        ("a.parquet", "x", "cannot be read as a table"),
        ("a.jsonl", "{", "cannot be read as a table"),
        ("a.json", '[{"path": "x", "label": "a"}]', "cannot be read as a table: .*; write an object a line"),
        ("a.csv", "", "cannot be read as a table"),
        ("a.csv", "path,label\n", "no rows"),
        (
            "a.csv",
            "path;age\na.png;1,5\n",
            "cannot be read as a table: .*; separate its columns with commas, and write 1.5",
        ),
        ("a.csv", "p\0a\0\n\0x\0,\0y\0\n\0", "cannot be read as a table: .*; write the file again, in UTF-8"),
    ],
)
def test_files_that_are_no_tables(name: str, text: str, message: str, tmp_path: Path):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        Manifest(str(tmp_path / name)).index()


def test_a_table_in_latin_1_must_be_written_in_utf_8(tmp_path: Path):
    (tmp_path / "a.csv").write_bytes("path,label\na\xe9.png,b\nc.png,d\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"cannot be read as a table: .*; write the file again, in UTF-8"):
        Manifest(str(tmp_path / "a.csv")).index()


def test_a_missing_table(tmp_path: Path):
    with pytest.raises(UserError, match="no such file"):
        Manifest(str(tmp_path / "none.csv")).index()


def test_ids_are_paths_with_a_suffix(tmp_path: Path):
    ids = ["007", "7", "1e5", "0.50", "2024-01-01", "true", "a.b"]
    for number, one in enumerate(ids):
        Image.new("L", (3, 3), number).save(tmp_path / f"{one}.png")
    text = "".join(f"{one},{'xy'[number % 2]},train\n" for number, one in enumerate(ids))
    (tmp_path / "t.csv").write_text(f"id,label,split\n{text}{text.replace('train', 'val')}")
    data = Manifest(str(tmp_path / "t.csv"), path="id", suffix=".png", size=3, channels=1)
    for index in data.index().values():
        assert index.names(np.arange(7)) == [f"{one}.png" for one in ids]
        read = data.read(index, np.arange(7))
        assert isinstance(read, np.ndarray) and read[:, 0, 0, 0].tolist() == [*range(7)]
        assert data.probe(index) == []
    with pytest.raises(UserError, match="suffix ends the paths, and with bytes there are none, in data; leave one out"):
        replace(data, bytes="id")


def test_workers_get_absolute_paths_and_the_plan_says_what_is_held_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(rows(folder).drop(["split"]), tmp_path / "a.csv")
    monkeypatch.chdir(tmp_path)
    data = Manifest("a.csv", folder="images", cache="off")
    assert (data.absolute().root, data.absolute().folder) == (str(tmp_path / "a.csv"), str(tmp_path / "images"))
    assert [note.partition(":")[0] for note in data.notes()] == ["a.csv has no column of splits"]
    for split in ("train", "test"):
        write(rows(folder).drop(["split"]), tmp_path / f"{split}.csv")
    assert Manifest("{train,test}.csv", folder="images").notes()[0].startswith("{train,test}.csv has no file of val: ")


def test_codes_are_places_among_sorted_texts():
    column = pa.chunked_array([["b", None, "a"], ["", "c", "a"]])
    codes, names = tables.coded(column)
    assert names == ["a", "b", "c"] and codes.tolist() == [1, -1, 0, -1, 2, 0]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_table_at_a_url_gives_what_its_folders_give(folder: Path, tmp_path: Path, s3: str, suffix: str):
    files, root = fs.FileSystem.from_uri(f"{s3}/listed-{suffix}")
    fs.copy_files(str(folder), root, destination_filesystem=files)
    fs.copy_files(write(rows(folder), tmp_path / f"a.{suffix}"), f"{root}/a.{suffix}", destination_filesystem=files)
    data, here = Manifest(f"{s3}/listed-{suffix}/a.{suffix}", size=8), ImageFolder(str(folder), size=8)
    found, expected = checked_indices(data), checked_indices(here)
    for split, index in found.items():
        assert index.names(np.arange(6)) == expected[split].names(np.arange(6))
        pixels = checked_read(data, index, np.arange(6))["image"]
        np.testing.assert_array_equal(pixels, checked_read(here, expected[split], np.arange(6))["image"])
        assert data.probe(index) == [] and data.cache_entry(index) is None
    assert data.absolute() == data and "at a URL" in data.size_notes(found["train"])[-1]
    elsewhere = replace(data, root=write(rows(folder), tmp_path / f"b.{suffix}"), folder=f"{s3}/listed-{suffix}")
    pixels = checked_read(here, expected["val"], np.arange(6))["image"]
    np.testing.assert_array_equal(checked_read(elsewhere, elsewhere.index()["val"], np.arange(6))["image"], pixels)


def test_several_parquet_files_take_their_splits_from_their_names(folder: Path, tmp_path: Path, s3: str):
    whole = rows(folder)
    raw = [{"bytes": (folder / name).read_bytes(), "path": name} for name in whole["path"].to_pylist()]
    table = pa.table({"image": raw, "label": whole["label"]})
    (tmp_path / "data").mkdir()
    names = ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001")
    parts = (table.slice(6, 2), table.slice(8), table.slice(0, 6))  # the folder Validation is before train
    if whole["split"][0].as_py() == "train":
        parts = (table.slice(0, 2), table.slice(2, 4), table.slice(6))
    for name, part in zip(names, parts, strict=True):
        parquet.write_table(part, tmp_path / "data" / f"{name}.parquet", row_group_size=3)
    files, root = fs.FileSystem.from_uri(f"{s3}/several")
    fs.copy_files(str(tmp_path), root, destination_filesystem=files)
    here = ImageFolder(str(folder), size=8)
    expected = {split: checked_read(here, index, np.arange(6))["image"] for split, index in here.index().items()}
    order = np.array([5, 1, 2, 0, 4, 3])
    for place in (
        f"{tmp_path}/data",
        f"{tmp_path}/data/*.parquet",
        f"{s3}/several/data",
        f"{s3}/several/data/*.parquet",
    ):
        data = Manifest(place, size=8, bytes="image")
        found = checked_indices(data)
        assert {split: len(index) for split, index in found.items()} == {"train": 6, "val": 6}
        for split, index in found.items():
            np.testing.assert_array_equal(checked_read(data, index, order)["image"], expected[split][order])
        assert not any("held out" in note or "is used for validation" in note for note in data.notes())
    only = Manifest(f"{tmp_path}/data/train-0000{{0..1}}-of-00002.parquet", size=8, bytes="image")
    assert {split: len(index) for split, index in only.index().items()} == {"train": 4, "val": 2}


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("data/*.parquet", "no table is there"),
        ("data/{0..2}.parquet", "no table is there"),
        ("s3://bucket/none.csv", "nothing is there, s3://bucket/none.csv"),
        ("s3://bucket/none/*.parquet", "nothing is there, s3://bucket/none"),
    ],
)
def test_tables_that_are_not_there_are_one_line(s3: str, place: str, message: str):
    with pytest.raises(UserError, match=message):
        Manifest(place).index()


@pytest.mark.parametrize("stream", [True, False])
def test_arrow_files_of_hugging_face_take_their_splits_from_their_folders(folder: Path, tmp_path: Path, stream: bool):
    whole = rows(folder)
    raw = [{"bytes": (folder / name).read_bytes(), "path": name} for name in whole["path"].to_pylist()]
    here = ImageFolder(str(folder), size=8)
    for split in ("train", "val"):
        chosen = np.flatnonzero([name.startswith(split) for name in whole["path"].to_pylist()])
        table = pa.table({"image": raw, "label": whole["label"]}).take(chosen)
        path = tmp_path / "set" / split / "data-00000-of-00001.arrow"
        path.parent.mkdir(parents=True)
        with (pa.ipc.new_stream if stream else pa.ipc.new_file)(str(path), table.schema) as file:
            file.write_table(table, max_chunksize=2)
    data = Manifest(str(tmp_path / "set"), size=8, bytes="image")
    order = np.array([5, 1, 2, 0, 4, 3])
    for split, index in checked_indices(data).items():
        pixels = checked_read(here, here.index()[split], order)["image"]
        np.testing.assert_array_equal(checked_read(data, index, order)["image"], pixels)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_of_numbers_are_targets(folder: Path, tmp_path: Path, suffix: str):
    whole = rows(folder).append_column("age", pa.array(np.arange(12)))
    data = Manifest(write(whole, tmp_path / f"a.{suffix}"), size=8, folder=str(folder), target=("age",))
    both = replace(data, target=("weight", "age"), columns=("weight",))
    here = ImageFolder(str(folder), size=8)
    for split, index in checked_indices(data).items():
        chosen = np.array([4, 0])
        expected = whole["age"].to_numpy()[[name.startswith(split) for name in whole["path"].to_pylist()]][chosen]
        found = checked_read(data, index, chosen)
        assert index.labels is None and found["age"].dtype == np.float32
        np.testing.assert_array_equal(found["age"], expected)
        np.testing.assert_array_equal(found["image"], checked_read(here, here.index()[split], chosen)["image"])
        part = both.index()[split].take(chosen)
        np.testing.assert_array_equal(checked_read(both, part, np.array([1]))["value"], [[expected[1], expected[1]]])
        other = Manifest(write(whole.set_column(5, "age", pa.array(np.arange(12) + 1)), tmp_path / f"b.{suffix}"))
        other = replace(other, size=8, folder=str(folder), target=("age",))
        assert other.cache_entry(other.index()[split]) != data.cache_entry(index) is not None
        first, again = (resident(data, index)[0] for _ in range(2))  # the second is from the disk cache
        assert first is not None and again is not None and not again["image"].flags.owndata
        for name, array in checked_read(data, index, np.arange(len(index))).items():
            assert array.tobytes() == first[name].tobytes() == again[name].tobytes()
    held = replace(data, split="").index()
    assert [len(index) for index in held.values()] == [10, 2]


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_columns_of_numbers_are_inputs_beside_the_image(folder: Path, tmp_path: Path, suffix: str):
    whole = rows(folder).append_column("age", pa.array(np.arange(12)))
    root = write(whole, tmp_path / f"a.{suffix}")
    data = Manifest(root, size=8, folder=str(folder), inputs=("age", "weight"), columns=("weight",))
    plain = Manifest(root, size=8, folder=str(folder))
    chosen = np.array([4, 0, 1])
    for split, index in checked_indices(data).items():
        expected, first = plain.index()[split], 0 if split == "train" else 6
        assert index.labels.tolist() == expected.labels.tolist() and index.classes == expected.classes
        part = index.take(chosen)
        for found in (checked_read(data, index, chosen), checked_read(data, part, np.arange(3))):
            assert found["inputs"].dtype == np.float32
            np.testing.assert_array_equal(found["inputs"], np.repeat(chosen[:, None] + first, 2, axis=1))
            np.testing.assert_array_equal(found["image"], checked_read(plain, expected, chosen)["image"])
        assert data.cache_entry(index) != plain.cache_entry(expected)
    numbers = replace(data, target=("weight",), inputs=("age",))
    found = checked_read(numbers, numbers.index()["val"], chosen)
    np.testing.assert_array_equal(found["inputs"][:, 0], found["weight"])
    table = whole.append_column("sex", pa.array(["f", "m"] * 6)).append_column("none", pa.array([1.0, None] * 6))
    root = write(table, tmp_path / f"b.{suffix}")
    for name, message in [
        ("sex", "column 'sex' must hold numbers.*write 0 and 1"),
        ("none", r"(line 3 \(|row 2 \(counted from 1, )train/ant/1.png\) has no number in column 'none'"),
        ("label", "column 'label' is no further input"),
        ("agee", "no column 'agee'.*did you mean age"),
    ]:
        with pytest.raises(UserError, match=message):
            Manifest(root, size=8, folder=str(folder), inputs=(name,)).index()
    for name in ("inputs", "target"):
        with pytest.raises(UserError, match=f"column 'age' is named twice, in data.{name}"):
            replace(data, **{name: ("age", "weight", "age")})


def test_lists_of_numbers_are_targets_and_others_are_refused(folder: Path, tmp_path: Path):
    whole = (
        rows(folder).append_column("tags", pa.array([[1, 0, 1]] * 12)).append_column("odd", pa.array([[1]] * 11 + [[]]))
    )
    whole = whole.append_column("gap", pa.array([1.0, None] * 6))
    data = Manifest(write(whole, tmp_path / "a.parquet"), size=8, folder=str(folder), target=("tags",))
    assert checked_read(data, data.index()["val"], np.array([2]))["tags"].tolist() == [[1, 0, 1]]
    both = replace(data, target=("weight", "gap"))
    with pytest.raises(UserError, match=r"row 2 .* has no number in column 'gap', "):
        both.index()
    with pytest.raises(UserError, match=r"column 'who' must hold numbers.*, got 'ant' in row 1 "):
        replace(data, target=("weight", "who")).index()
    for column, message in (("odd", "equally long"), ("who", "must hold numbers"), ("gap", r"row 2 .* has no number")):
        with pytest.raises(UserError, match=message):
            replace(data, target=(column,)).index()


def test_lists_of_any_kind_are_targets(folder: Path, tmp_path: Path):
    for kind in (pa.list_(pa.int8()), pa.large_list(pa.float32()), pa.list_(pa.float64(), 2)):
        whole = rows(folder).append_column("tags", pa.array([[1, 0]] * 12).cast(kind))
        data = Manifest(write(whole, tmp_path / "a.parquet"), size=8, folder=str(folder), target=("tags",))
        assert checked_read(data, data.index()["val"], np.array([2]))["tags"].tolist() == [[1, 0]]


def arrow(path: Path, table: pa.Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.ipc.new_stream(str(path), table.schema) as file:
        file.write_table(table)


def test_arrow_files_that_hold_no_data_are_left_out(tmp_path: Path, s3: str):
    table = pa.table({"image": [b"x"] * 4, "label": [0, 1] * 2})
    for split in ("train", "test"):
        arrow(tmp_path / "set" / split / "data-00000-of-00001.arrow", table)
        arrow(tmp_path / "set" / split / "cache-0123.arrow", pa.table({"indices": [0]}))
    arrow(tmp_path / "set/train/data-00000-of-00002.arrow", table)  # from an earlier save_to_disk
    files = [{"filename": "data-00000-of-00001.arrow"}]
    (tmp_path / "set/train/state.json").write_text(json.dumps({"_data_files": files}))
    (tmp_path / "set/test/state.json").write_text("{")
    system, root = fs.FileSystem.from_uri(f"{s3}/caches")
    fs.copy_files(f"{tmp_path}/set", root, destination_filesystem=system)
    for place in (f"{tmp_path}/set", f"{tmp_path}/set/*/*.arrow", f"{s3}/caches"):
        found = Manifest(place, bytes="image", val_fraction=0.5).index()
        assert {split: len(index) for split, index in found.items()} == {"train": 2, "val": 2, "test": 4}
    arrow(tmp_path / "cache-1.arrow", table)
    for place in (f"{tmp_path}/cache-1.arrow", f"{tmp_path}/cache-*.arrow", f"{tmp_path}/{{cache-1,cache-1}}.arrow"):
        assert sum(len(index) for index in Manifest(place, bytes="image").index().values()) == 4


@pytest.mark.parametrize("pattern", ["*/labels.csv", "{one,two 2}/labels.csv", "{one,two 2}/label*"])
def test_paths_are_relative_to_the_folder_of_each_table(tmp_path: Path, s3: str, pattern: str):
    for number, name in enumerate(("one", "two 2")):
        (tmp_path / name).mkdir()
        for image in range(2):
            Image.new("RGB", (8, 8), (100 * number + image, 0, 0)).save(tmp_path / name / f"{image}.png")
        (tmp_path / name / "labels.csv").write_text("path,label\n0.png,a\n1.png,a\n")
    system, root = fs.FileSystem.from_uri(f"{s3}/relative")
    fs.copy_files(str(tmp_path), root, destination_filesystem=system)
    places = [f"{tmp_path}/{pattern}", *([] if pattern[0] == "*" else [f"{s3}/relative/{pattern}".replace(" ", "%20")])]
    data = Manifest(places[0], size=8, val_fraction=0.25, cache="off")
    for place in places:
        data, found = replace(data, root=place), list[int]()
        for index in checked_indices(data).values():
            assert data.probe(index) == []
            found += checked_read(data, index, np.arange(len(index)))["image"][:, 0, 0, 0].tolist()
        assert sorted(found) == [0, 1, 100, 101]
    images = replace(data, root=f"{tmp_path}/{pattern}", folder=str(tmp_path / "one"))
    assert images.index()["train"].name(0) == "0.png"
