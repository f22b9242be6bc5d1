"""Packs: what is read from them is what the source gives, bit for bit, and whatever goes wrong is named."""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
import torch
from helpers.packs import packed
from helpers.scenes import Scenes
from PIL import Image
from pyarrow import fs, parquet

from raytrain import (
    Augment,
    BadSample,
    Data,
    Field,
    Folds,
    ImageFolder,
    Images,
    Index,
    Manifest,
    Mixed,
    Packed,
    UserError,
)
from raytrain.data import byte_files, decode, packs, shards
from raytrain.data.checks import checked_indices, checked_read, same_data
from raytrain.data.loader import Loader
from raytrain.data.packing import pack as resident
from raytrain.data.reader import Direct, Resident
from raytrain.tools import pack as packing
from raytrain.tools.pack_settings import Settings

AUGMENT = Augment(crop="random_resized", flip=0.5, policy="randaugment")

pytestmark = pytest.mark.usefixtures("small_shards")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of JPEGs and PNGs of several shapes, colours and an EXIF orientation."""
    root, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(48):
        height, width = random.integers(20, 60, 2)
        coarse = Image.fromarray(random.integers(0, 256, (4, 5, 3), dtype=np.uint8)).resize((width, height))
        image = coarse.convert("L") if number % 7 == 3 else coarse
        path = root / ("train" if number % 4 else "val") / f"class {number % 3}"
        path.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = 6 if number % 5 == 1 else 1
        image.save(path / f"{number:02d}.{'png' if number % 6 == 5 else 'jpg'}", exif=exif)
    return root


@dataclass(frozen=True)
class Anything(Data):
    """Fields of many types and shapes, without labels, with columns."""

    bad: tuple[int, ...] = ()

    def index(self) -> dict[str, Index]:
        kinds = {"f": "float32", "d": "float64", "half": "float16", "yes": "bool", "long": "int64", "b": "int8"}
        fields = [Field("image", (2, 5, 4), "float32", "image"), Field("mask", (5, 4), "uint16", "mask", 65535)]
        fields += [Field(name, (3,) if name in "fd" else (), kind) for name, kind in kinds.items()]
        found = {}
        for split, count in (("train", 211), ("val", 30), ("test", 7)):
            columns = {
                "weight": np.arange(count) / 7,
                "group": np.array([f"patient {one // 4}" for one in range(count)]),
                "even": np.arange(count) % 2 == 0,
            }
            found[split] = Index(rows=np.arange(count), split=split, fields=tuple(fields), columns=columns)
        return found

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        if set(index.rows[samples]) & set(self.bad):
            raise BadSample(f"row {index.rows[samples][0]}", "broken")
        found = index.empty(len(samples))
        for place, row in enumerate(index.rows[samples]):
            random = np.random.default_rng([int(row), len(index.split)])
            for field in index.fields:
                raw = random.integers(0, 256, (*field.shape, np.dtype(field.dtype).itemsize), dtype=np.uint8)
                raw = raw % 2 if field.dtype == "bool" else raw
                found[field.name][place] = raw.view(field.dtype)[..., 0]
        return found


@dataclass(frozen=True)
class Noise(Data):
    """Images whose pixels alone follow from the seed."""

    seed: int = 0

    def index(self) -> dict[str, Index]:
        labels = np.arange(12) % 2
        return {split: Index(labels, ("a", "b"), (3, 4, 4), split, np.arange(12)) for split in ("train", "val")}

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        return np.random.default_rng(self.seed).integers(0, 256, (12, 3, 4, 4), dtype=np.uint8)[samples]


def same_arrays(one: Data, other: Data, split: str = "train") -> None:
    index, theirs = checked_indices(one)[split], checked_indices(other)[split]
    assert len(index) == len(theirs) and index.fields == theirs.fields and index.classes == theirs.classes
    orders = (np.arange(len(index)), np.random.default_rng(1).permutation(len(index))[:37], np.array([3, 3, 4, 5, 2]))
    for rows in orders:
        expected, found = checked_read(one, index, rows), checked_read(other, theirs, rows)
        for name, array in expected.items():
            assert array.dtype == found[name].dtype and array.tobytes() == found[name].tobytes(), name


def whole(
    data: Data, world: int, streamed: bool, first: int = 0
) -> list[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
    """The global batches of an epoch, put together from all ranks' parts."""
    index = checked_indices(data)["train"]
    reader = Direct(data, index) if streamed else Resident(resident(data, index)[0] or {})
    many = [Loader(data, index, reader, 8, 5, rank, world, torch.device("cpu"), True) for rank in range(world)]
    found = []
    for parts in zip(*(loader.epoch(1, first) for loader in many), strict=True):
        batches = [batch for part in parts for batch in part.micro_batches(1000)]
        ids = np.concatenate([batch.ids for batch in batches])
        found.append((ids, *(torch.cat([getattr(batch, of) for batch in batches]) for of in ("images", "labels"))))
    return found


@pytest.mark.parametrize("codec", ["original", "raw"])
def test_batches_are_those_of_the_folder_bit_for_bit(photos: Path, tmp_path: Path, codec: str) -> None:
    source = ImageFolder(str(photos), size=24, crop=20, augment=AUGMENT, mean=(0.4, 0.5, 0.3))
    packed(source, tmp_path / "pack", codec=codec)
    pack = Packed(str(tmp_path / "pack"), augment=AUGMENT)
    assert len(pack._pack().values["shards"]) > 3
    expected = whole(source, 1, streamed=False)
    for world, streamed, first in ((1, False, 0), (2, True, 0), (4, False, 2), (1, True, 3)):
        found = whole(pack, world, streamed, first)
        assert len(found) == len(expected) - first
        for (ids, images, labels), (theirs, known, of) in zip(found, expected[first:], strict=True):
            assert np.array_equal(ids, theirs) and torch.equal(images, known) and torch.equal(labels, of)
    for split, index in source.index().items():
        theirs = pack.index()[split]
        assert index.names(np.arange(len(index))) == theirs.names(np.arange(len(index)))
        np.testing.assert_array_equal(index.labels, theirs.labels)


def test_an_original_pack_has_the_files_bytes_and_decodes_to_any_size(photos: Path, tmp_path: Path) -> None:
    packed(ImageFolder(str(photos)), tmp_path / "pack")
    pack = Packed(str(tmp_path / "pack"))
    index = pack.index()["train"]
    for raw, name in zip(pack.encoded(index, np.arange(len(index))), index.names(np.arange(len(index))), strict=True):
        assert raw == (photos / name).read_bytes()
    sizes: tuple[tuple[int, Literal[1, 3]], ...] = ((16, 1), (40, 3))
    for size, channels in sizes:
        same_arrays(ImageFolder(str(photos), size, channels=channels), replace(pack, size=size, channels=channels))
    assert pack.input_side == 224 and replace(pack, size=16).input_side == 16
    found = resident(replace(pack, size=16), replace(pack, size=16).index()["train"])[0]
    assert found is not None and pack.cache_entry(index) != replace(pack, size=16).cache_entry(index)
    again = resident(replace(pack, size=16), replace(pack, size=16).index()["train"])[0]  # from the disk cache
    assert again is not None and np.array_equal(again["image"], found["image"])


def test_a_pack_resizes_as_its_source(photos: Path, tmp_path: Path) -> None:
    cubic, linear = (ImageFolder(str(photos), 24, interpolation=how) for how in ("bicubic", "bilinear"))
    for codec in ("original", "raw"):
        packed(cubic, tmp_path / codec, codec=codec)
        same_arrays(cubic, Packed(str(tmp_path / codec)))
        with pytest.raises(UserError, match="another pack is there"):
            packed(linear, tmp_path / codec, codec=codec)
    pack = Packed(str(tmp_path / "original"))
    same_arrays(linear, replace(pack, interpolation="bilinear"))
    index = pack.index()["train"]
    assert pack.cache_entry(index) != replace(pack, interpolation="bilinear").cache_entry(index)
    packed(pack, tmp_path / "again", codec="raw")
    same_arrays(cubic, Packed(str(tmp_path / "again")))
    with pytest.raises(UserError, match="a raw pack has the interpolation that it was packed with"):
        Packed(str(tmp_path / "raw"), interpolation="bicubic").index()


def test_a_jpeg_pack_has_whole_images_with_their_aspect_ratio(photos: Path, tmp_path: Path) -> None:
    packed(ImageFolder(str(photos)), tmp_path / "pack", codec="jpeg", size=30, quality=95)
    pack, kept = Packed(str(tmp_path / "pack")), 0
    index = pack.index()["train"]
    for raw, name in zip(pack.encoded(index, np.arange(len(index))), index.names(np.arange(len(index))), strict=True):
        file = (photos / name).read_bytes()
        _, height, width = before = decode.pixels(file, 3).shape
        if min(height, width) <= 30:
            kept += 1
            assert raw == file
            continue
        assert Image.open(io.BytesIO(raw)).format == "JPEG"
        smaller = decode.pixels(raw, 3)
        short, long = sorted(smaller.shape[1:])
        assert short == 30 and long == round(max(before[1:]) * 30 / min(height, width))
        assert (height > width) == (smaller.shape[1] > smaller.shape[2]) or height == width
        exact = np.asarray(Image.fromarray(decode.pixels(file, 3).transpose(1, 2, 0)).resize(smaller.shape[:0:-1], 2))
        assert np.abs(smaller.transpose(1, 2, 0).astype(int) - exact).mean() < 6  # of noise, with halved chroma
    assert 0 < kept < len(index)
    assert checked_read(pack, index, np.arange(3))["image"].shape == (3, 3, 256, 256)


def test_a_raw_pack_holds_any_fields_and_columns(tmp_path: Path) -> None:
    source = Anything()
    packed(source, tmp_path / "pack")
    pack = Packed(str(tmp_path / "pack"))
    for split, index in checked_indices(source).items():
        same_arrays(source, pack, split)
        theirs = checked_indices(pack)[split]
        assert theirs.labels is None and list(theirs.columns) == list(index.columns)
        for name, column in index.columns.items():
            np.testing.assert_array_equal(theirs.columns[name], column)
            assert theirs.columns[name].dtype == column.dtype
    folds = Folds(3, 1, group="group")
    same_arrays(replace(source, folds=folds), replace(pack, folds=folds), "val")
    assert pack.normalisation(2) == ((0.5,), (0.5,)) and pack.input_side is None


def test_masks_mixtures_and_packs_of_packs(tmp_path: Path) -> None:
    scenes = Scenes("mask tags size", crop=4)
    packed(scenes, tmp_path / "one")
    packed(Packed(str(tmp_path / "one")), tmp_path / "two")
    pack = Packed(str(tmp_path / "two"))
    same_arrays(scenes, pack)
    assert pack.input_side == 4
    mixed = Mixed((scenes, Packed(str(tmp_path / "one"), crop=4, mean=(0.5,), std=(0.5,))), (0.3, 0.7), crop=4)
    packed(mixed, tmp_path / "mixed")
    same_arrays(mixed, Packed(str(tmp_path / "mixed")))
    index = Packed(str(tmp_path / "mixed")).index()["train"]
    assert index.shares == (0.3, 0.7) and set(index.columns["source"]) == {0, 1}


def test_folds_of_a_packed_mixture_are_those_of_the_mixture(tmp_path: Path) -> None:
    scenes = Scenes("mask tags size", crop=4)
    mixed = Mixed((scenes, scenes), validate=1, crop=4, folds=Folds(3, 1))
    packed(replace(mixed, folds=Folds()), tmp_path / "mixed")
    pack = Packed(str(tmp_path / "mixed"), folds=Folds(3, 1))
    same_arrays(mixed, pack)
    same_arrays(mixed, pack, "val")
    assert set(checked_indices(pack)["val"].columns["source"]) == {1}


def test_the_same_source_gives_the_same_bytes(photos: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        packed(ImageFolder(str(photos)), tmp_path / name, codec="jpeg", size=24)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "two").iterdir()) and ".packing" not in files
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert "already" in packed(ImageFolder(str(photos)), tmp_path / "one", codec="jpeg", size=24)
    with pytest.raises(UserError, match="another pack is there, of other data or with other settings"):
        packed(ImageFolder(str(photos)), tmp_path / "one", codec="jpeg", size=25)


@dataclass(frozen=True)
class Counted(ImageFolder):
    """Notes what is read, and dies at one image."""

    def encoded(self, index: Index, samples: np.ndarray) -> Iterator[bytes]:
        for name, raw in zip(index.names(samples), super().encoded(index, samples), strict=True):
            if any(part in name for part in FAILS):
                raise KeyboardInterrupt
            READ.append(name)
            yield raw


READ: list[str] = []
FAILS: list[str] = []


@dataclass(frozen=True)
class Added(ImageFolder):
    """Adds a number beside each image."""

    number: float = 1.0

    def index(self) -> dict[str, Index]:
        fields = Field("image", (3, 16, 16), kind="image"), Field("number", (), "float32")
        return {split: replace(index, fields=fields, shape=None) for split, index in super().index().items()}

    def further(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        return {"number": np.full(len(samples), self.number, np.float32)}


def test_a_pack_of_other_samples_in_the_same_places_is_refused(photos: Path, tmp_path: Path) -> None:
    place = tmp_path / "one"
    packed(Added(str(photos), size=16), place)
    assert "already" in packed(Added(str(photos), size=16), place)
    with pytest.raises(UserError, match="another pack is there"):
        packed(Added(str(photos), size=16, number=2.0), place)
    images = [Image.new("RGB", (8, 8), (shade, 0, 0)) for shade in range(8)]
    for shift in (0, 1):
        raw = []
        for number in range(4):
            content = io.BytesIO()
            images[number + shift].save(content, "PNG")
            raw.append(content.getvalue())
        parquet.write_table(pa.table({"image": raw, "label": [0, 1, 0, 1]}), tmp_path / "a.parquet")
        if not shift:
            packed(Manifest(str(tmp_path / "a.parquet"), bytes="image"), tmp_path / "two")
    with pytest.raises(UserError, match="another pack is there"):
        packed(Manifest(str(tmp_path / "a.parquet"), bytes="image"), tmp_path / "two")


def test_other_bytes_of_the_same_samples_are_other_data(tmp_path: Path) -> None:
    for name, seed in (("one", 0), ("other", 1)):
        packed(Noise(seed), tmp_path / name)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    one, copy, other = (
        {split: index.fingerprint() for split, index in Packed(str(tmp_path / name)).index().items()}
        for name in ("one", "copy", "other")
    )
    assert one == copy and all(one[split] != other[split] for split in one)
    assert same_data(one, copy) and not same_data(one, other), "which a resume asks"
    before = {split: print_.partition("-")[0] for split, print_ in one.items()}  # of an older version
    assert same_data(before, one) and not same_data({"train": before["train"]}, one) and not same_data(one, before)


def test_a_packer_that_was_cut_off_goes_on(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing.os, "sched_getaffinity", lambda _: {0})
    source = Counted(str(photos))
    FAILS.append("class 2/26")
    with pytest.raises(KeyboardInterrupt):
        packed(source, tmp_path / "pack")
    FAILS.clear()
    assert len(list((tmp_path / "pack").glob("*.bin"))) == len(list((tmp_path / "pack/.packing").glob("0*.json"))) > 0
    (tmp_path / "pack/.packing/00002.killed.partial").write_bytes(b"left by a kill")
    with pytest.raises(UserError, match=r"not complete: it has no manifest, .*; go on with the same"):
        Packed(str(tmp_path / "pack")).index()
    with pytest.raises(UserError, match="a part of another pack is there"):
        packed(source, tmp_path / "pack", codec="raw")
    job, indices = packing.planned(source, Settings())
    of = [set(indices[part.split].names(np.arange(part.start, part.stop))) for part in job.parts]
    done = [int(path.stem) for path in sorted((tmp_path / "pack/.packing").glob("0*.json"))]
    assert done[:2] == [0, 1] and len(done) < len(of)
    shard = tmp_path / "pack/shard-00001.bin"
    shard.write_bytes(shard.read_bytes()[:-1])  # it does not fit its record, and is packed again
    READ.clear()
    packed(source, tmp_path / "pack")
    assert set(READ) == of[1].union(*(names for number, names in enumerate(of) if number not in done))
    packed(source, tmp_path / "whole")
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "pack" / path.name).read_bytes(), path.name


def test_a_second_packer_is_refused(photos: Path, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Second(ImageFolder):
        def encoded(self, index: Index, samples: np.ndarray) -> Iterator[bytes]:
            with pytest.raises(UserError, match=r"another command is packing there \(process \d+ on "):
                packed(ImageFolder(str(photos), 30), tmp_path / "pack")
            return super().encoded(index, samples)

    packed(Second(str(photos)), tmp_path / "pack")
    same_arrays(ImageFolder(str(photos), 20), Packed(str(tmp_path / "pack"), 20))


@pytest.mark.parametrize("codec", ["original", "raw"])
def test_a_damaged_byte_names_the_shard_and_the_sample(photos: Path, tmp_path: Path, codec: str) -> None:
    packed(ImageFolder(str(photos), 20), tmp_path / "pack", codec=codec)
    pack = Packed(str(tmp_path / "pack"), on_bad_sample="skip")
    index = pack.index()["train"]
    table = pack._pack().table("train")
    sample = len(index) - 2
    shard = tmp_path / "pack" / shards.shard_name(int(table.shard[sample]))
    content = bytearray(shard.read_bytes())
    content[int(table.offset[sample]) + int(table.length[sample]) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(BadSample) as found:
        pack.read(index, np.arange(len(index)))
    assert found.value.path == f"{shard}: {index.name(sample)}" and "checksum" in found.value.reason
    _, good, skipped = resident(pack, index)
    assert [one.row for one in skipped] == [sample] and len(good) == len(index) - 1
    shard.write_bytes(content[:-1])
    with pytest.raises(UserError, match=rf"{shard.name}.*copy the pack again"):
        pack.index()


def test_bad_samples_stop_the_packer_or_are_left_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read sample: broken, row (5|60); "):
        packed(Anything(bad=(5, 60)), tmp_path / "pack")
    source = Anything(bad=(5, 60, 209), on_bad_sample="skip")
    assert "; 5 that cannot be read are left out" in packed(source, tmp_path / "skipped")
    pack, index = Packed(str(tmp_path / "skipped")), Anything().index()["train"]
    good = np.setdiff1d(np.arange(211), (5, 60, 209))
    assert len(pack.index()["train"]) == 208
    for name, array in checked_read(pack, pack.index()["train"], np.arange(208)).items():
        assert array.tobytes() == Anything().read(index, good)[name].tobytes()


@pytest.mark.parametrize("settings", [{}, {"codec": "jpeg", "size": 64}])
def test_damaged_images_are_not_packed_as_they_are(photos: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    shutil.copytree(photos, root := tmp_path / "photos")
    (cut := root / "train" / "class 0" / "27.jpg").write_bytes(
        (photos / "train" / "class 0" / "27.jpg").read_bytes()[:-300]
    )
    (other := root / "val" / "class 0" / "24.jpg").write_bytes(b"no image")
    source, dest = ImageFolder(str(root)), tmp_path / "pack"
    with pytest.raises(UserError, match=rf"cannot read sample: .*({cut}|{other}); .* --data.on_bad_sample skip"):
        packed(source, dest, **settings)
    said = packed(replace(source, on_bad_sample="skip"), dest, **settings)  # goes on where the first command stopped
    assert ": 46 samples in " in said and "; 2 that cannot be read are left out" in said
    splits = json.loads((dest / "manifest.json").read_text())["splits"]
    assert [[path for path, _ in splits[split]["skipped"]] for split in ("train", "val")] == [[str(cut)], [str(other)]]
    with pytest.raises(UserError, match="another pack is there"):
        packed(source, dest, **settings)


def test_a_manifest_that_is_not_known_is_refused(photos: Path, tmp_path: Path) -> None:
    packed(ImageFolder(str(photos)), tmp_path / "pack")
    manifest = tmp_path / "pack" / "manifest.json"
    known = json.loads(manifest.read_text())
    for change, message in (
        ({"version": 2}, "the pack has version 2, and this raytrain reads version 1, "),
        ({"codec": "jpg"}, r"unknown codec 'jpg', .*did you mean 'jpeg'|unknown codec 'jpg', .*did you mean jpeg\?"),
        ({"format": "x"}, "no pack's manifest"),
        ({"settings": {"size": 3}}, "manifest is damaged: its checksum differs"),
    ):
        manifest.write_text(json.dumps(known | change))
        with pytest.raises(UserError, match=message):
            Packed(str(tmp_path / "pack")).index()
    moved = {**known, "shards": [one | {"file": "../shard-00000.bin"} for one in known["shards"]]}
    del moved["sha256"]
    manifest.write_text(shards.manifest_text(moved))
    with pytest.raises(UserError, match="unknown names of files"):
        Packed(str(tmp_path / "pack")).index()
    manifest.write_text("{")
    with pytest.raises(UserError, match="it is no JSON"):
        Packed(str(tmp_path / "pack")).index()


def test_mistakes_are_named(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").touch()
    for data, dest, settings, message in (
        (Anything(), "a", {"codec": "jpeg"}, "jpeg packs encoded images, and this source has arrays"),
        (Anything(), "a", {"codec": "raw", "size": 3}, "have their own size"),
        (ImageFolder(str(photos)), "a", {"size": 3}, "original keeps the images as they are"),
        (ImageFolder(str(photos)), "full", {}, "the folder is not empty: note.txt"),
        (ImageFolder(str(photos)), "full/note.txt", {}, "a pack is a folder, and this is a file"),
        (ImageFolder(str(photos)), "full/note.txt/deeper/pack", {}, "and this is a file, .*/full/note.txt;"),
    ):
        with pytest.raises(UserError, match=message):
            packed(data, tmp_path / dest, **settings)
    with pytest.raises(UserError, match="quality = 0 is out of range"):
        Settings(quality=0)
    for root, message in (("", "data.root is not set"), ("nowhere", "no such folder"), ("full", "no pack there")):
        with pytest.raises(UserError, match=message):
            Packed(str(tmp_path / root) if root else "").index()
    packed(ImageFolder(str(photos), 20), tmp_path / "raw", codec="raw")
    with pytest.raises(UserError, match="a raw pack has the size that it was packed with"):
        Packed(str(tmp_path / "raw"), size=30).index()


@pytest.mark.parametrize("codec", ["original", "raw"])
def test_a_pack_at_a_url(photos: Path, tmp_path: Path, s3: str, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, url = ImageFolder(str(photos), 20), f"{s3}/packs/{codec}"
    assert "wrote" in packed(source, url, codec=codec) and "already" in packed(source, url, codec=codec)
    fetched = tmp_path / "cache" / "packs"
    pack = Packed(url, cache=str(tmp_path / "cache"))
    same_arrays(source, pack)
    there = sorted(path.name for path in fetched.glob("*/*.bin"))
    train = [one["file"] for one in pack._pack().values["shards"] if one["split"] == "train"]
    assert there == train and not list(fetched.glob("*/*.partial"))
    same_arrays(source, replace(pack, cache=str(tmp_path / "small"), fetched=40_000 / 2**30))  # and the rest in ranges
    shards = list((tmp_path / "small" / "packs").glob("*/*.bin"))  # an index is fetched even where these have no room
    assert 0 < len(shards) < len(train) and sum(path.stat().st_size for path in shards) <= 40_000
    monkeypatch.setattr(packs, "_EARNEST", 10)
    ahead = replace(pack, cache=str(tmp_path / "ahead"))
    ahead.read(ahead.index()["train"], np.zeros(12, np.int64))  # one shard; a thread fetches the others
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and len(list((tmp_path / "ahead" / "packs").glob("*/*.bin"))) < len(train):
        time.sleep(0.01)
    assert sorted(path.name for path in (tmp_path / "ahead" / "packs").glob("*/*.bin")) == train
    damaged = fetched / next(fetched.glob("*/*.bin")).parent.name
    shutil.rmtree(damaged)
    monkeypatch.setattr(byte_files, "_PAUSE", 0.0)
    files, root = fs.FileSystem.from_uri(url)
    with files.open_output_stream(f"{root}/{train[0]}") as stream:
        stream.write(b"x" * pack._pack().values["shards"][0]["bytes"])
    packs._PACKS.clear()
    with pytest.raises(BadSample, match="damaged: its checksum is not the manifest's") as found:
        pack.read(pack.index()["train"], np.arange(2))
    assert train[0] in found.value.path


def test_a_url_that_does_not_answer_is_one_line(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"no pack there .*s3://bucket/nothing; check the address"):
        Packed(f"{s3}/nothing").index()
    monkeypatch.setattr(packs, "FIRST_SECONDS", 0.2)
    monkeypatch.setattr(packs, "_Files", lambda url: packs.time.sleep(2))
    with pytest.raises(UserError, match="the URL cannot be read: no answer for 0 s"):
        Packed(f"{s3}/other").index()


def test_images_that_a_subclass_decodes_itself_are_packed_as_arrays(photos: Path, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Own(ImageFolder):
        def read(self, index: Index, samples: np.ndarray) -> np.ndarray:  # type: ignore[override]
            return 255 - Images.read(self, index, samples)

    packed(Own(str(photos), 20), tmp_path / "pack")
    assert Packed(str(tmp_path / "pack"))._pack().raw
    same_arrays(Own(str(photos), 20), Packed(str(tmp_path / "pack")))
