"""Random crops of whole images: torchvision's boxes and pixels, and equal bits from every source, on any ranks."""

from __future__ import annotations

import json
import math
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from raytrain import (
    CNN,
    Augment,
    Balanced,
    Experiment,
    HorizontalFlip,
    ImageFolder,
    Images,
    Index,
    Manifest,
    Mixed,
    Packed,
    Progressive,
    RandomResizedCrop,
    Regression,
    Sampler,
    Scaling,
    UserError,
    WebDataset,
    order,
)
from raytrain.data import Data, decode
from raytrain.data.checks import checked_indices, checked_read
from raytrain.data.geometry import boxes
from raytrain.data.loader import Loader
from raytrain.data.operation import BOX_DRAWS
from raytrain.data.reader import Direct, Epoch
from raytrain.data.streaming import Streaming
from raytrain.data.transforms import Normalise
from raytrain.driver.data_room import mode
from raytrain.driver.resources import Node, Resources
from raytrain.driver.sizing import reading_threads
from raytrain.sweep.record import reads
from raytrain.tools import pack as packing
from raytrain.tools.pack_settings import Settings

SCALE, RATIO = (0.08, 1.0), (0.75, 4 / 3)
CROP = Augment(crop="random_resized")
SEED, SIDE = 5, 24


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs and PNGs of several shapes, of which some are grey, or turned by their EXIF data."""
    root, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(40):
        height, width = random.integers(20, 90, 2)
        image = Image.fromarray(random.integers(0, 256, (7, 9, 3), dtype=np.uint8)).resize((width, height))
        path = root / ("train" if number % 4 else "val") / f"class {number % 3}"
        path.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = 6 if number % 5 == 1 else 1
        name = f"{number:02d}.{'png' if number % 6 == 5 else 'jpg'}"
        (image.convert("L") if number % 7 == 3 else image).save(path / name, exif=exif)
    return root


def folder(photos: Path, **values: Any) -> ImageFolder:
    settings: dict[str, Any] = {"size": 30, "crop": SIDE, "whole": True, "augment": CROP} | values
    return ImageFolder(str(photos), **settings)


def batches(
    data: Data, world: int = 1, first: int = 0, epoch: int = 1, sampler: Sampler = Sampler(), train: bool = True
) -> list[tuple[np.ndarray, torch.Tensor]]:
    """The global batches of an epoch, put together from all ranks' parts."""
    index = checked_indices(data)["train"]
    ranks = [
        Loader(data, index, Direct(data, index), 8, SEED, rank, world, torch.device("cpu"), train, sampler=sampler)
        for rank in range(world)
    ]
    found = []
    for parts in zip(*(loader.epoch(epoch, first) for loader in ranks), strict=True):
        every = [batch for part in parts for batch in part.micro_batches(3)]
        found.append((np.concatenate([one.ids for one in every]), torch.cat([one.images for one in every])))
    return found


def same(found: list[tuple[np.ndarray, torch.Tensor]], expected: list[tuple[np.ndarray, torch.Tensor]]) -> bool:
    return len(found) == len(expected) and all(
        np.array_equal(ids, known) and torch.equal(images, wanted)
        for (ids, images), (known, wanted) in zip(found, expected, strict=True)
    )


def largest_gap(one: np.ndarray, other: np.ndarray) -> float:
    """The statistic of Kolmogorov and Smirnov for two samples."""
    at = np.concatenate([one, other])
    shares = [np.searchsorted(np.sort(values), at, side="right") / len(values) for values in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max())


def described(box: np.ndarray, height: int, width: int) -> dict[str, np.ndarray]:
    """Area, aspect ratio and place of boxes, int64 [n, 4]."""
    top, left, tall, wide = box.T
    free = np.maximum(height - tall, 1), np.maximum(width - wide, 1)
    return {
        "area": tall * wide / (height * width),
        "ratio": np.log(wide / tall),
        "down": top / free[0],
        "across": left / free[1],
    }


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 333), (64, 64), (60, 400)])
def test_boxes_are_distributed_as_torchvisions(height: int, width: int) -> None:
    count = 2500
    reference, image = v2.RandomResizedCrop(8, SCALE, RATIO), torch.empty(3, height, width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        drawn = [reference.make_params([image]) for _ in range(count)]
    theirs = np.array([[one[name] for name in ("top", "left", "height", "width")] for one in drawn])
    ids = np.arange(count)
    found, fits = boxes(order.uniform(2, 3, ids, BOX_DRAWS), height, width, SCALE, RATIO)
    assert (fits.mean() < 0.9) == (width > 4 * height), "the narrow case often falls back to the centre"
    bound = 1.95 * math.sqrt(2 / count)  # which chance exceeds once in 1,000 times
    expected = described(theirs, height, width)
    for name, values in described(found, height, width).items():
        assert largest_gap(values, expected[name]) < bound, name
    other, _ = boxes(order.uniform(2, 3, ids, BOX_DRAWS), height, width, (0.2, 1.0), RATIO)
    assert largest_gap(described(other, height, width)["area"], expected["area"]) > bound, "the test cannot fail"


@pytest.mark.parametrize("channels", [1, 3])
def test_batches_are_torchvisions_crops_of_the_whole_images(photos: Path, channels: Any) -> None:
    data = folder(photos, channels=channels)
    index, seen = data.index()["train"], set()
    for ids, images in batches(data):
        draws = order.uniform(order.key(SEED, 5 << 32), 1, ids, BOX_DRAWS)
        for sample, numbers, image in zip(ids, draws, images, strict=True):
            (raw,) = data.encoded(index, np.array([sample]))
            pixels = decode.pixels(raw, channels)
            height, width = pixels.shape[1:]
            (box,), _ = boxes(numbers[None], height, width, SCALE, RATIO)
            top, left, tall, wide = box.tolist()
            image_of = torch.from_numpy(pixels.copy())
            wanted = v2.functional.resized_crop(image_of, top, left, tall, wide, [SIDE, SIDE], antialias=True)
            mean, std = data.normalisation(channels)
            known = Normalise(mean, std)(wanted[None])[0]
            if "AVX" in torch.backends.cpu.get_cpu_capability():
                assert torch.equal(image, known)
            else:  # torchvision resizes as floats there, which it rounds
                torch.testing.assert_close(image, known, rtol=0, atol=1.01 / 255 / min(std))
            edge = [(length - min(height, width)) / 2 for length in (height, width)]  # of the central square
            seen.add(min(top - edge[0], left - edge[1]) < -1)
    assert seen == {True, False}, "some crops must reach beyond the central square"


def test_bits_are_equal_on_any_ranks_after_a_resume_and_from_any_source(photos: Path, tmp_path: Path) -> None:
    data = folder(photos, augment=replace(CROP, flip=0.5, policy="trivialaugment", erase=0.3))
    expected = batches(data)
    for world, first in ((2, 0), (4, 0), (1, 2), (2, 3)):
        assert same(batches(data, world, first), expected[first:]), (world, first)
    assert not same(batches(data, epoch=2), expected)
    common: dict[str, Any] = {"size": 30, "crop": SIDE, "whole": True, "augment": data.augment}
    index = data.index()
    lines = [
        f"{photos / name},{index[split].classes[label]},{split}"
        for split in ("train", "val")
        for name, label in zip(index[split].names(np.arange(len(index[split]))), index[split].labels, strict=True)
    ]
    (tmp_path / "table.csv").write_text("\n".join(["path,label,split", *lines]))
    assert same(batches(Manifest(str(tmp_path / "table.csv"), **common), 2), expected)
    for split in ("train", "val"):
        with tarfile.open(tmp_path / f"{split}-000.tar", "w") as tar:
            for name, label in zip(index[split].names(np.arange(len(index[split]))), index[split].labels, strict=True):
                place = photos / name
                (tmp_path / f"{place.stem}.cls").write_text(index[split].classes[label])
                tar.add(tmp_path / f"{place.stem}.cls", f"{place.stem}.cls")
                tar.add(place, place.name)
    assert same(batches(WebDataset(str(tmp_path / "{train,val}-000.tar"), **common)), expected)
    packing.pack(data, str(tmp_path / "pack"), Settings(), lambda total, done: None, lambda count: None)
    assert same(batches(Packed(str(tmp_path / "pack"), whole=True, augment=data.augment), 2), expected)


def test_operations_follow_the_crop_and_are_given_its_size(photos: Path) -> None:
    plain = batches(folder(photos))
    operations = folder(photos, augment=Augment(operations=(RandomResizedCrop(), HorizontalFlip(p=1.0))))
    for (ids, images), (known, expected) in zip(batches(operations), plain, strict=True):
        assert np.array_equal(ids, known)
        torch.testing.assert_close(images, expected.flip(-1))  # normalised in another order
    half = folder(photos, augment=replace(CROP, progressive=Progressive(start=12)))
    index = half.index()["train"]
    loader = Loader(half, index, Direct(half, index), 8, SEED, 0, 1, torch.device("cpu"), train=True)
    loader.epochs = 4
    sides = [next(loader.epoch(epoch)).passes(8, False) for epoch in (0, 3)]
    assert [next(one).batch.images.shape[-1] for one in sides] == [12, SIDE]


def test_evaluation_and_other_training_keep_their_central_squares(photos: Path) -> None:
    data = folder(photos)
    assert same(batches(data, train=False), batches(replace(data, whole=False), train=False))
    index = data.index()["train"]
    assert checked_read(data, index, np.arange(2))["image"].shape == (2, 3, 30, 30)
    squares = batches(replace(data, crop=None, augment=replace(CROP, scale=(1.0, 1.0), ratio=(1.0, 1.0))))
    for ids, images in squares:  # of the largest square box, which lies anywhere
        assert images.shape == (len(ids), 3, 30, 30)


def test_a_sample_that_is_drawn_twice_is_cropped_twice(photos: Path) -> None:
    class Twice(Balanced):
        def samples(self, index: Index, seed: int, epoch: int, positions: np.ndarray) -> np.ndarray:
            return positions // 2

    data = folder(photos)
    expected = batches(data, sampler=Twice())
    assert same(batches(data, 2, sampler=Twice()), expected) and same(
        batches(data, 1, 2, sampler=Twice()), expected[2:]
    )
    ids, images = expected[0]
    assert ids[0] == ids[1] and not torch.equal(images[0], images[1])


def test_a_rank_without_samples_of_a_last_batch_reads_none(photos: Path) -> None:
    data = folder(photos)
    index = data.index()["train"]
    last = order.Shard(len(index), len(index) - 1, 1, 2)
    for one in (data, replace(data, whole=False)):
        reads = [len(ids) for ids, _ in Direct(one, index).read(Epoch(last, SEED, 0))]
        assert reads == [last.count() - reads[1], 0]


def test_a_mixture_takes_crops_of_each_source(photos: Path) -> None:
    one = folder(photos)
    sources = [replace(one, mean=(0.5,), std=(0.5,), augment=augment) for augment in (CROP, Augment())]
    mixed = Mixed(tuple(sources), crop=SIDE, augment=CROP)
    assert mixed.whole and mixed.direct and mixed.sample(mixed.index()["train"]) == (3, SIDE, SIDE)
    (ids, images), *_ = batches(mixed, 2)
    index, count = sources[0].index()["train"], len(sources[0].index()["train"])
    draws = order.uniform(order.key(SEED, 5 << 32), 1, ids, BOX_DRAWS)
    for sample, numbers, image in zip(ids, draws, images, strict=True):
        (raw,) = sources[0].encoded(index, np.array([sample % count]))
        crop = RandomResizedCrop().apply(torch.from_numpy(decode.pixels(raw, 3).copy())[None], numbers[None], SIDE)
        assert torch.equal(image, Normalise((0.5,), (0.5,))(crop)[0])
    with pytest.raises(UserError, match="source 0 has whole=True, and source 1 False"):
        Mixed((sources[0], replace(sources[1], whole=False)), crop=SIDE, augment=CROP)


def test_numbers_to_predict_stay_with_their_images(photos: Path, tmp_path: Path) -> None:
    names = sorted(str(path) for path in photos.rglob("*.*"))
    lines = [f"{name},{number / 10},{'val' if number % 5 == 4 else 'train'}" for number, name in enumerate(names)]
    (tmp_path / "ages.csv").write_text("\n".join(["path,age,split", *lines]))
    data = Manifest(str(tmp_path / "ages.csv"), target=("age",), size=30, crop=SIDE, whole=True, augment=CROP)
    index: Any = data.index()["train"]
    loader = Loader(data, index, Direct(data, index), 8, SEED, 0, 1, torch.device("cpu"), train=True)
    for loaded in loader.epoch(0):
        (batch,) = loaded.micro_batches(8)
        assert batch.images.shape[-1] == SIDE
        assert batch["age"].flatten().tolist() == np.float32(index.targets[index.rows[batch.ids]]).flatten().tolist()
    Regression(target="age").check_data(index)


def test_samples_that_cannot_be_read_are_left_out_with_their_crops(photos: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    for path in photos.rglob("*.*"):
        (broken / path.relative_to(photos)).parent.mkdir(parents=True, exist_ok=True)
        (broken / path.relative_to(photos)).write_bytes(path.read_bytes())
    data = folder(broken, on_bad_sample="skip")
    index = data.index()["train"]
    (broken / index.name(3)).write_bytes(b"no image")
    expected = dict(images for step in batches(folder(photos)) for images in zip(*step, strict=True))
    index, reader = data.index()["train"], Direct(data, data.index()["train"])
    loader = Loader(data, index, reader, 8, SEED, 0, 1, torch.device("cpu"), train=True)
    found = {}
    for loaded in loader.epoch(1):
        for batch in loaded.micro_batches(8):
            found |= dict(zip(batch.ids.tolist(), batch.images, strict=True))
    assert reader.skipped == [str(broken / index.name(3))] and sorted(found) == sorted(set(expected) - {3})
    assert all(torch.equal(image, expected[sample]) for sample, image in found.items())


def test_sweeps_without_whole_images_keep_the_keys_of_what_they_read(photos: Path) -> None:
    experiments = [Experiment(model=CNN(), data=folder(photos, whole=value)) for value in (False, True)]
    own, whole = (json.loads(reads(one)) for one in experiments)
    assert "whole" not in own and whole == own | {"whole": True}


def test_threads_of_the_workers_read_crops_also_beside_nodes_with_more_cpus(photos: Path) -> None:
    nodes = (Node("gpu", 8, 1, 1 << 30), Node("cpu", 64, 0, 1 << 30))
    scaling, there = Scaling(workers=1, cpus_per_worker=1.0, gpus_per_worker=1.0), Resources(nodes, "a cluster")
    threads = [reading_threads(folder(photos, whole=one), "streaming", scaling, there) for one in (True, False)]
    assert threads == [8, 0]
    data = folder(photos)
    index = data.index()["train"]
    with pytest.raises(AssertionError, match="Direct alone"):
        next(Streaming(data, index, None).read(Epoch(order.Shard(len(index), 8, 0, 1), SEED, 0)))


@dataclass(frozen=True)
class Own(Images):
    """Reads for itself."""

    def index(self) -> dict[str, Index]:
        return {}

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:  # type: ignore[override]
        return np.zeros((len(samples), 3, 30, 30), np.uint8)


def test_what_has_no_crops_of_whole_images_is_refused(photos: Path, tmp_path: Path) -> None:
    data = folder(photos)
    index = data.index()
    late = Augment(operations=(HorizontalFlip(), RandomResizedCrop()))
    for augment in (Augment(), replace(CROP, crop="random"), late):
        with pytest.raises(UserError, match=r"begins with none, in ImageFolder.whole; use --data.augment.crop random"):
            replace(data, augment=augment).sample(index["train"])
    nothing: Any = None
    with pytest.raises(UserError, match=r"resident memory has the central squares .*, in data.mode"):
        replace(data, mode="resident").sample(index["train"])
    assert mode(data, index, nothing) == "streaming"
    own = Own(size=30, crop=SIDE, whole=True, augment=CROP)
    with pytest.raises(UserError, match=r"Own has a read of its own"):
        own.sample(index["train"])
    packing.pack(data, str(tmp_path / "raw"), Settings(codec="raw"), lambda total, done: None, lambda count: None)
    with pytest.raises(UserError, match=r"a raw pack has .*, in Packed.whole; pack the images with --codec original"):
        Packed(str(tmp_path / "raw"), whole=True, augment=CROP).index()
    assert Packed(str(tmp_path / "raw"), augment=CROP).index()
