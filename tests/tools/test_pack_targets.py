"""Packs of encoded images with targets beside them: batches are those of the table, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.packs import packed
from PIL import Image

from raytrain import Augment, BadSample, Data, Field, ImageFolder, Index, Manifest, Packed, UserError
from raytrain.data.checks import checked_indices, checked_read
from raytrain.data.loader import Loader
from raytrain.data.packing import pack as resident
from raytrain.data.reader import Direct, Resident
from raytrain.tools.describe import describe

AUGMENT = Augment(flip=0.5, policy="trivialaugment")

pytestmark = pytest.mark.usefixtures("small_shards")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs and PNGs of several shapes, with numbers and lists of numbers as targets."""
    root, random = tmp_path_factory.mktemp("targets"), np.random.default_rng(0)
    lines = []
    for number in range(40):
        height, width = random.integers(25, 60, 2).tolist()
        coarse = Image.fromarray(random.integers(0, 256, (4, 5, 3), dtype=np.uint8)).resize((width, height))
        name = f"{number:02d}.{'png' if number % 6 == 5 else 'jpg'}"
        coarse.save(root / name)
        age, weight = (repr(float(np.float32(value))) for value in random.normal(size=2) * 1e3)
        tags = random.integers(0, 2, 3).tolist()
        split = "train" if number % 4 else "val"
        lines.append(f'{{"path": "{name}", "split": "{split}", "age": {age}, "weight": {weight}, "tags": {tags}}}')
    (root / "table.jsonl").write_text("\n".join(lines))
    return root / "table.jsonl"


def source(table: Path, target: tuple[str, ...], **more: Any) -> Manifest:
    return Manifest(str(table), size=24, crop=20, target=target, augment=AUGMENT, mean=(0.4, 0.5, 0.3), **more)


def whole(data: Data, world: int = 1, streamed: bool = True, first: int = 0) -> list[dict[str, torch.Tensor]]:
    """The global batches of an epoch, put together from all ranks' parts."""
    index = checked_indices(data)["train"]
    readers = [Direct(data, index, 2) if streamed else Resident(resident(data, index)[0] or {}) for _ in range(world)]
    many = [
        Loader(data, index, reader, 8, 5, rank, world, torch.device("cpu"), True) for rank, reader in enumerate(readers)
    ]
    found = []
    for parts in zip(*(loader.epoch(1, first) for loader in many), strict=True):
        batches = [batch for part in parts for batch in part.micro_batches(1000)]
        found.append({name: torch.cat([batch[name] for batch in batches]) for name in batches[0].arrays})
    return found


def same(found: list[dict[str, torch.Tensor]], expected: list[dict[str, torch.Tensor]]) -> bool:
    return len(found) == len(expected) and all(
        list(one) == list(known) and all(torch.equal(one[name], known[name]) for name in known)
        for one, known in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize(
    ("codec", "target"),
    [
        ("original", ("age",)),
        ("original", ("age", "weight")),
        ("original", ("tags",)),
        ("jpeg", ("age", "weight")),
        ("raw", ("age",)),
    ],
)
def test_batches_are_those_of_the_table_bit_for_bit(
    table: Path, tmp_path: Path, target: tuple[str, ...], codec: str
) -> None:
    data = source(table, target)
    expected = whole(data)
    name = target[0] if len(target) == 1 else "value"
    assert list(expected[0]) == ["image", name] and len(expected) == 4
    packed(data, tmp_path / "pack", codec=codec)  # a jpeg pack of 256 has these smaller images as they are
    pack = Packed(str(tmp_path / "pack"), augment=AUGMENT)
    assert len(pack._pack().values["shards"]) > 2 and pack._pack().raw == (codec == "raw")
    for world, streamed, first in ((1, True, 0), (2, True, 0), (2, False, 0), (1, False, 1), (2, True, 2)):
        assert same(whole(pack, world, streamed, first), expected[first:]), (world, streamed, first)
    packed(pack, tmp_path / "again", codec=codec)
    assert same(whole(Packed(str(tmp_path / "again"), augment=AUGMENT), 2), expected)


def test_auto_keeps_the_files_bytes_and_crops_whole_images(table: Path, tmp_path: Path) -> None:
    crops = Augment(crop="random_resized")
    data = replace(source(table, ("age", "weight")), augment=crops, whole=True)
    packed(data, tmp_path / "pack")
    pack = Packed(str(tmp_path / "pack"), augment=crops, whole=True)
    index = checked_indices(pack)["train"]
    rows, known = np.arange(len(index)), checked_indices(data)["train"]
    names = index.names(rows)
    assert [*pack.encoded(index, rows)] == [(table.parent / name).read_bytes() for name in names]
    assert index.sizes is not None and index.sizes.tolist() == known.sizes.tolist()  # type: ignore[union-attr]
    assert same(whole(pack, 2), whole(data))
    larger = checked_read(replace(pack, size=30), checked_indices(replace(pack, size=30))["val"], np.arange(3))
    assert larger["image"].shape == (3, 3, 30, 30)
    np.testing.assert_array_equal(larger["value"], data.further(checked_indices(data)["val"], np.arange(3))["value"])
    first, again = (resident(pack, index)[0] for _ in range(2))  # the second is from the disk cache
    assert first is not None and again is not None and not again["value"].flags.owndata
    assert all(array.tobytes() == again[name].tobytes() for name, array in first.items())


def test_the_description_has_sizes_of_images_and_ranges_of_targets(table: Path, tmp_path: Path) -> None:
    data = source(table, ("age",))
    packed(data, tmp_path / "pack")
    for one in (data, Packed(str(tmp_path / "pack"))):
        found, sheet = describe(one, 1000, 60.0)
        ages = np.concatenate([data.further(index, np.arange(len(index)))["age"] for index in data.index().values()])
        (values,) = [value for value in found.values if value.of.name == "age"]
        assert (values.low, values.high) == (ages.min(), ages.max()) and sheet is not None
        assert len(found.sides) == 40 and found.sides.min() >= 25 and not found.equal


def test_a_damaged_target_names_the_shard_and_the_sample(table: Path, tmp_path: Path) -> None:
    packed(source(table, ("age",)), tmp_path / "pack")
    shard = tmp_path / "pack" / "shard-00000.bin"
    pack = Packed(str(tmp_path / "pack"))
    index = pack.index()["train"]
    end = int(pack._pack().table("train").length[0])
    raw = bytearray(shard.read_bytes())
    raw[end - 1] ^= 1  # the last byte of the first sample is one of its target
    shard.write_bytes(raw)
    with pytest.raises(BadSample, match="checksum differs") as found:
        pack.read(index, np.array([0]))
    assert "shard-00000.bin: 01.jpg" in found.value.path
    with pytest.raises(UserError, match=r"shard-00000.bin: 01\.jpg"):
        packed(pack, tmp_path / "again")
    said = packed(replace(pack, on_bad_sample="skip"), tmp_path / "again")
    assert "39 samples" in said and "1 that cannot be read" in said


@dataclass(frozen=True)
class Own(ImageFolder):
    """Returns a further array by itself, of a kind and dtype."""

    kind: Any = "plain"
    dtype: str = "float32"

    def index(self) -> dict[str, Index]:
        fields = Field("image", (3, 8, 8), kind="image"), Field("more", (8, 8), "float32", self.kind)
        return {split: Index(rows=np.arange(4), split=split, fields=fields) for split in ("train", "val")}

    def encoded(self, index: Index, samples: np.ndarray) -> Any:
        return (Path(self.root).read_bytes() for _ in samples)

    def further(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        return {"more": np.full((len(samples), 8, 8), samples[:, None, None], self.dtype)}


def test_a_source_of_ones_own_packs_its_further_arrays(table: Path, tmp_path: Path) -> None:
    own = Own(str(table.parent / "01.jpg"), size=8)
    packed(own, tmp_path / "pack")
    pack = Packed(str(tmp_path / "pack"))
    for data in (own, pack):
        found = checked_read(data, checked_indices(data)["val"], np.array([3, 1]))
        assert found["more"][:, 0, 0].tolist() == [3, 1] and found["image"].shape == (2, 3, 8, 8)
    with pytest.raises(UserError, match=r"further\(\) must return float32 \[1, 8, 8\], got float64 \[1, 8, 8\] for"):
        packed(replace(own, dtype="float64"), tmp_path / "wrong")
    told = r"original packs one encoded image per sample, and 'more' is of kind mask, in Own; use --codec raw"
    with pytest.raises(UserError, match=told):
        packed(replace(own, kind="mask"), tmp_path / "mask")
    packed(replace(own, kind="mask"), tmp_path / "mask", codec="raw")
