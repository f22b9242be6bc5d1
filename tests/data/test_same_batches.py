"""The same samples from each kind of source, here and at S3: one sequence of batches, bit for bit, however it is read.

The expected batches come from plain Pillow and torchvision code; the order and the augmentation are the library's own,
which test_order.py and test_augment.py compare with others.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from helpers.packs import packed
from PIL import Image, ImageOps
from pyarrow import csv, fs, parquet
from torchvision.transforms import v2

from raytrain import Augment, ImageFolder, Images, Index, Manifest, Packed, WebDataset, order
from raytrain.data.checks import checked_indices
from raytrain.data.loader import Loader
from raytrain.data.packing import pack as resident
from raytrain.data.prepare import Prepare
from raytrain.data.reader import Direct, Resident
from raytrain.tools import pack as packing

SIZE, CROP, BATCH, SEED, EPOCH = 12, 10, 5, 3, 1
COMMON: dict[str, Any] = {"size": SIZE, "crop": CROP, "mean": (0.5,), "std": (128 / 255,)}
AUGMENT = Augment(crop="random_resized", flip=0.5, erase=0.5)
SOURCES: dict[str, Callable[[str], Images]] = {
    "folder": lambda at: ImageFolder(f"{at}/images", **COMMON),
    "table of paths": lambda at: Manifest(f"{at}/labels.csv", **COMMON),
    "table of bytes": lambda at: Manifest(f"{at}/rows.parquet", bytes="image", **COMMON),
    "tar shards": lambda at: WebDataset(f"{at}/shards", **COMMON),
    "original pack": lambda at: Packed(f"{at}/original"),
    "raw pack": lambda at: Packed(f"{at}/raw"),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, s3: str) -> dict[str, str]:
    """A folder with 14 images for training and 6 for validation, of unequal sizes and kinds, as each source stores
    them; and a copy at S3."""
    root, random = tmp_path_factory.mktemp("same"), np.random.default_rng(0)
    for number in range(20):
        height, width = random.integers(9, 40, 2)
        coarse = Image.fromarray(random.integers(0, 256, (3, 4, 3), dtype=np.uint8)).resize((width, height))
        path = root / "images" / ("val" if number % 10 > 6 else "train") / ("ant", "bee")[number % 2]
        path.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = 6 if number % 5 == 1 else 1
        image = coarse.convert("L") if number % 7 == 3 else coarse
        image.save(path / f"{number:02d}.{'png' if number % 3 == 2 else 'jpg'}", exif=exif)
    rows = []
    (root / "shards").mkdir()
    for split in ("train", "val"):
        files = list(images_of(root, split))
        rows += [
            {"path": str(path.relative_to(root)), "image": path.read_bytes(), "label": path.parent.name, "split": split}
            for path in files
        ]
        for shard in range(2):
            with tarfile.open(root / "shards" / f"x-{split}-{shard}.tar", "w") as tar:
                for path in files[shard * 5 : 5 if not shard else None]:
                    for name, raw in ((path.name, path.read_bytes()), (f"{path.stem}.cls", path.parent.name.encode())):
                        member = tarfile.TarInfo(name)
                        member.size = len(raw)
                        tar.addfile(member, io.BytesIO(raw))
    table = pa.Table.from_pylist(rows)
    csv.write_csv(table.drop(["image"]), root / "labels.csv")
    parquet.write_table(table.drop(["path"]), root / "rows.parquet", row_group_size=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "SHARD_BYTES", 2000)
        for codec in ("original", "raw"):
            packed(SOURCES["folder"](str(root)), root / codec, codec=codec)
    assert len(list((root / "raw").glob("*.bin"))) > 3
    system, there = fs.FileSystem.from_uri(f"{s3}/same")
    fs.copy_files(str(root), there, destination_filesystem=system)
    return {"here": str(root), "S3": f"{s3}/same"}


def images_of(root: Path, split: str) -> Iterator[Path]:
    """The files of a split in the order of a folder: by class, then by name."""
    for name in ("ant", "bee"):
        yield from sorted((root / "images" / split / name).iterdir())


def plain(root: Path, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The central squares of a split's images, uint8 [n, 3, SIZE, SIZE], and the labels."""
    squares, labels = [], []
    for path in images_of(root, split):
        with Image.open(path) as file:
            image = ImageOps.exif_transpose(file).convert("RGB")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        square = torch.from_numpy(np.array(image.crop((left, top, left + side, top + side)))).permute(2, 0, 1)
        squares.append(v2.functional.resize(square, [SIZE, SIZE], antialias=True))
        labels.append(path.parent.name == "bee")
    return torch.stack(squares), torch.tensor(labels, dtype=torch.int64)


def digest(ids: np.ndarray, images: torch.Tensor, labels: torch.Tensor) -> str:
    assert images.dtype == torch.float32 and images.shape == (len(ids), 3, CROP, CROP) and labels.dtype == torch.int64
    return hashlib.sha256(b"".join(one.tobytes() for one in (ids, images.numpy(), labels.numpy()))).hexdigest()


@pytest.fixture(scope="module")
def expected(places: dict[str, str]) -> dict[str, list[str]]:
    """The digests of the global batches of an epoch, and of the validation."""
    root, found = Path(places["here"]), {}
    for split in ("train", "val"):
        squares, labels = plain(root, split)
        count = len(labels)
        ids = order.samples(SEED, EPOCH, count, np.arange(count)) if split == "train" else np.arange(count)
        prepare = Prepare(
            ImageFolder(augment=AUGMENT, **COMMON), Index(labels.numpy(), ("ant", "bee"), (3, SIZE, SIZE), split)
        )
        found[split] = []
        for rows in np.split(ids, range(BATCH, count, BATCH)):
            if split == "train":
                images = prepare.augmented({"image": squares[rows]}, rows, SEED, EPOCH, mixed=False)["image"]
            else:
                images = (v2.functional.center_crop(squares[rows], [CROP]).float() - 127.5) / 128
            found[split].append(digest(rows, images, labels[rows]))
    assert [len(one) for one in found.values()] == [3, 2]
    return found


def digests(loaders: Iterable[Loader], first: int) -> Iterator[str]:
    """The digests of the global batches, which the ranks' micro-batches make up."""
    for parts in zip(*(loader.epoch(EPOCH, first) for loader in loaders), strict=True):
        batches = [batch for part in parts for batch in part.micro_batches(2)]
        ids = np.concatenate([batch.ids for batch in batches])
        yield digest(ids, *(torch.cat([getattr(batch, of) for batch in batches]) for of in ("images", "labels")))


@pytest.mark.parametrize("place", ["here", "S3"])
@pytest.mark.parametrize("source", SOURCES)
def test_each_source_gives_the_same_batches_however_they_are_read(
    source: str, place: str, places: dict[str, str], expected: dict[str, list[str]], tmp_path: Path
) -> None:
    data = replace(SOURCES[source](places[place]), augment=AUGMENT, cache=str(tmp_path / "cache"))
    assert data.direct and (data.decodes, data.raw) == ((True, False), (False, True))[source == "raw pack"]
    for split, index in checked_indices(data).items():
        decoded, again = (resident(data, index)[0] or {} for _ in range(2))
        cached = data.cache_entry(index) is not None  # files of a table at a URL have no times
        assert cached == (source not in ("table of bytes", "raw pack") and (source, place) != ("table of paths", "S3"))
        assert again["image"].tobytes() == decoded["image"].tobytes() and again["image"].flags.writeable != cached
        for world, streamed in product((1, 2, 4), (False, True)):
            loaders = [
                Loader(data, index, reader, BATCH, SEED, rank, world, torch.device("cpu"), split == "train")
                for rank in range(world)
                for reader in [Direct(data, index, threads=1) if streamed else Resident(decoded)]
            ]
            for first in (0, 1) if split == "train" else (0,):
                assert list(digests(loaders, first)) == expected[split][first:], (split, world, streamed, first)
