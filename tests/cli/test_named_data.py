"""What `raytrain data` and `raytrain pack` take a folder for, on this machine and at a URL: by the names in it."""

from __future__ import annotations

import errno
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from helpers.commands import fails, succeeds, without_ray
from PIL import Image
from pyarrow import fs, parquet

from raytrain import Packed, cli
from raytrain.cli.flags.data import source_of
from raytrain.data import ImageFolder, Manifest, WebDataset
from raytrain.data.checks import checked_indices

__all__ = ["without_ray"]
pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]

LAYOUTS = ("classes", "pack", "shards", "shards-of-splits", "parquet", "repository", "arrow", "saved", "one-table")


def tar(path: Path, files: list[Path]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as target:
        for file in files:
            target.add(file, f"{file.stem}.png")
            label = tarfile.TarInfo(f"{file.stem}.cls")
            label.size = len(file.parent.name)
            target.addfile(label, io.BytesIO(file.parent.name.encode()))


def table(path: Path, files: list[Path]) -> None:
    """Write images as Hugging Face does: Parquet, or Arrow's stream as `save_to_disk` writes it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": file.read_bytes(), "path": file.name} for file in files]
    found = pa.table({"image": images, "label": [file.parent.name for file in files]})
    if path.suffix == ".parquet":
        parquet.write_table(found, path)
        return
    with pa.ipc.new_stream(str(path), found.schema) as stream:
        stream.write_table(found)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, s3: str) -> dict[str, list[str]]:
    """The same images in each layout, in a folder and at a URL."""
    root = tmp_path_factory.mktemp("named")
    split: dict[str, list[Path]] = {"train": [], "val": []}
    for number in range(9):
        name = ("train", "val")[number > 5]
        path = root / "classes" / name / ("ant", "bee")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 9, 3), number * 20, np.uint8)).save(path)
        split[name].append(path)
    (root / "classes" / "metadata.parquet").write_bytes(b"of no interest")
    for name, files in split.items():
        files.sort()
        tar(root / "shards" / f"{name}-000.tar", files)
        tar(root / "shards-of-splits" / name / "000.tar", files)
        table(root / "parquet" / f"{name}-00000-of-00001.parquet", files)
        table(root / "repository" / "data" / f"{name}-00000-of-00001.parquet", files)
        table(root / "saved" / name / "data-00000-of-00001.arrow", files)
        table(root / "arrow" / f"data-{name}.arrow", files)
    (root / "repository" / "README.md").write_text("about")
    (root / "saved" / "dataset_dict.json").write_text("{}")
    table(root / "one-table" / "images.parquet", [*split["train"], *split["val"]])
    assert cli.run(["pack", str(root / "classes"), str(root / "pack")]) == 0
    files, to = fs.FileSystem.from_uri(f"{s3}/named")
    fs.copy_files(str(root), to, destination_filesystem=files)
    return {name: [str(root / name), f"{s3}/named/{name}"] for name in LAYOUTS}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_is_the_source_that_its_names_tell(capsys: Capture, places: dict[str, list[str]], layout: str) -> None:
    here, url = places[layout]
    kind = {"classes": ImageFolder, "pack": Packed, "shards": WebDataset, "shards-of-splits": WebDataset}.get(layout)
    for place in (here, url, f"{url}/"):
        assert source_of(place) == (kind(place) if kind else Manifest(place, bytes="image"))
    found = json.loads(succeeds(capsys, "data", url, "--json", "--data.size", 8))
    assert found["samples_read"] == 9 and not found["bad"]
    known = {"ant": {"train": 3, "val": 2}, "bee": {"train": 3, "val": 1}}
    assert layout == "one-table" or found["classes"] == known


@pytest.mark.parametrize("layout", ["shards", "repository", "saved", "pack"])
def test_any_folder_is_packed(capsys: Capture, places: dict[str, list[str]], tmp_path: Path, layout: str) -> None:
    folder = Path(places["classes"][0])
    for number, place in enumerate(places[layout][:2]):
        succeeds(capsys, "pack", place, tmp_path / str(number))
        pack = Packed(str(tmp_path / str(number)))
        for split, index in checked_indices(pack).items():
            files = sorted((folder / split).rglob("*.png"), key=str)
            assert [*pack.encoded(index, np.arange(len(index)))] == [file.read_bytes() for file in files]


def test_the_column_of_images_is_found_or_named_by_the_user(places: dict[str, list[str]], tmp_path: Path) -> None:
    file = f"{places['parquet'][0]}/train-00000-of-00001.parquet"
    for place in (file, f"{places['parquet'][0]}/*.parquet", f"{places['parquet'][1]}/*.parquet"):
        assert source_of(place) == Manifest(place, bytes="image")
    images = parquet.read_table(file)
    for name, more in (("path", images["label"]), ("mask", images["image"])):
        parquet.write_table(images.append_column(name, more), tmp_path / f"{name}.parquet")
        assert source_of(str(tmp_path / f"{name}.parquet")) == Manifest(str(tmp_path / f"{name}.parquet"))
    parquet.write_table(images.drop(["image"]), tmp_path / "none.parquet")
    assert source_of(str(tmp_path / "none.parquet")) == Manifest(str(tmp_path / "none.parquet"))


def test_folders_of_classes_stay_so_beside_other_files(tmp_path: Path) -> None:
    for name in ("train/ant", "train/bee", "val/ant"):
        (tmp_path / "a" / name).mkdir(parents=True)
    for name in ("train/n01.tar", "train/list.parquet", "metadata.parquet"):
        (tmp_path / "a" / name).write_bytes(b"")
    assert source_of(str(tmp_path / "a")) == ImageFolder(str(tmp_path / "a"))
    (tmp_path / "a" / "all.tar").write_bytes(b"")  # as ever
    assert source_of(str(tmp_path / "a")) == WebDataset(str(tmp_path / "a"))
    for name in ("b/ant", "c", "d/x/y"):
        (tmp_path / name).mkdir(parents=True)
        where = str(tmp_path / name.partition("/")[0])
        assert source_of(where) == ImageFolder(where)


def test_compressed_shards_are_named_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "a.tar.gz").write_bytes(b"")
    for place in (tmp_path / "shards", tmp_path / "shards" / "a.tar.gz"):
        assert "the shard is compressed (.tar.gz)" in fails(capsys, "data", place)
    assert "no folders of images, but tar shards" in fails(capsys, "new", tmp_path / "shards")


def test_images_of_splits_beside_their_archives_are_a_folder_of_images(tmp_path: Path) -> None:
    image = tmp_path / "imagenet" / "train" / "n01440764" / "n01440764_10026.JPEG"
    image.parent.mkdir(parents=True)
    image.write_bytes(b"")
    for name in ("ILSVRC2012_img_train.tar", "ILSVRC2012_devkit_t12.tar.gz", "meta.bin"):
        (tmp_path / "imagenet" / name).write_bytes(b"")
    assert source_of(str(tmp_path / "imagenet")) == ImageFolder(str(tmp_path / "imagenet"))


def test_a_place_that_may_not_be_looked_at_is_one_line(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, known = tmp_path / "home", os.stat

    def stat(path: Any, **options: Any) -> os.stat_result:
        if str(path).startswith(f"{closed}/"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return known(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    for name in ("data", "labels.csv", "experiment.py"):
        said = fails(capsys, "data", closed / name)
        assert f"the data cannot be looked at: Permission denied, {closed / name}; ask its owner" in said


def test_what_is_nothing_is_one_line(capsys: Capture, s3: str, tmp_path: Path) -> None:
    (tmp_path / "pack" / ".packing").mkdir(parents=True)
    assert "the pack is not complete: it has no manifest" in fails(capsys, "data", tmp_path / "pack")
    assert "nothing is there, s3://bucket/nowhere; check the address" in fails(capsys, "data", f"{s3}/nowhere")
    assert "nothing is there, s3://bucket/nowhere; check" in fails(capsys, "pack", f"{s3}/nowhere", tmp_path / "p")
    assert "nothing is there" in fails(capsys, "data", f"{s3}/nowhere/*.parquet")
    assert "no such file" in fails(capsys, "data", tmp_path / "none.parquet")
    (tmp_path / "a.parquet").write_bytes(b"no table")
    assert "cannot be read as a table" in fails(capsys, "data", tmp_path / "a.parquet")
