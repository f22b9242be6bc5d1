"""Decoding on a worker's GPU, with torchvision's decoder of the CPU in the place of nvJPEG: the CPU's images, in the
same batches; and what nvJPEG cannot decode is decoded, or named, as ever."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from raytrain import (
    CNN,
    Augment,
    Digits,
    Experiment,
    ImageFolder,
    Images,
    Index,
    Mixed,
    Packed,
    Scaling,
    UserError,
    order,
)
from raytrain.data import Data, decode, decode_gpu, decode_torch, reader
from raytrain.data.checks import checked_indices
from raytrain.data.decode_gpu import Decoder
from raytrain.data.loader import Loader
from raytrain.data.reader import Direct, Epoch
from raytrain.driver import gpu_decoding, worker
from raytrain.driver.correction import may_change
from raytrain.driver.data_room import mode
from raytrain.driver.resources import Node, Resources
from raytrain.driver.resumption import changed
from raytrain.driver.sizing import reading_threads
from raytrain.sweep.record import reads
from raytrain.tools import pack as packing
from raytrain.tools.pack_settings import Settings

SEED, SIZE = 3, 30
CPU = torch.device("cpu")
CROP = Augment(crop="random_resized", flip=0.5)
NVJPEG = "decode_jpegs_cuda, decode_jpegs_cuda.cpp:1, Error while decoding JPEG images: Failed to "
decode_torch.has_decoder()  # loads the operators


class StandIn:
    """Decodes as nvJPEG does in a worker, and keeps the number of pixels of each batch.

    Args:
        fails: what it says of some images, by their bytes.
    """

    def __init__(self, fails: dict[bytes, str] | None = None):
        self.fails, self.pixels = fails or {}, list[list[int]]()

    def __call__(self, raws: list[torch.Tensor], channels: int) -> list[torch.Tensor]:
        found = []
        for raw in raws:
            if text := self.fails.get(raw.numpy().tobytes()):
                raise RuntimeError(text)
            try:
                found.append(torch.ops.image.decode_jpeg(raw, channels, False))
            except RuntimeError:
                raise RuntimeError(f"{NVJPEG}decode jpeg stream: 3") from None
        self.pixels.append([image[0].numel() for image in found])
        return found


def jpeg(
    random: np.random.Generator, height: int, width: int, kind: str = "JPEG", mode: str = "RGB", **how: Any
) -> bytes:
    """An encoded image of a few soft colours."""
    image = Image.fromarray(random.integers(0, 256, (7, 9, 3), dtype=np.uint8)).resize((width, height)).convert(mode)
    file = io.BytesIO()
    image.save(file, kind, **how)
    return file.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs of several shapes, of which some are grey or progressive; PNGs, CMYK, and what EXIF data turn."""
    root, random = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(50):
        height, width = random.integers(20, 90, 2).tolist()
        how: dict[str, Any] = {"mode": {3: "L", 5: "CMYK"}.get(number % 8, "RGB"), "progressive": number % 3 == 0}
        if number % 8 == 6:
            how = {"exif": turned(6)}
        how = {"kind": "PNG"} if number % 8 == 7 else how
        path = root / ("train" if number % 5 else "val") / f"class {number % 3}"
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{number:02d}.jpg").write_bytes(jpeg(random, height, width, **how))
    return root


def folder(photos: Path, **values: Any) -> ImageFolder:
    return ImageFolder(str(photos), **{"size": SIZE, "crop": None, "decode": "gpu"} | values)


def batches(
    data: Data, decoder: Decoder | None, world: int = 1, first: int = 0, train: bool = True
) -> list[tuple[np.ndarray, torch.Tensor]]:
    """The global batches of an epoch, put together from all ranks' parts."""
    index = checked_indices(data)["train"]
    direct = [Direct(data, index, 2, decoder=decoder) for _ in range(world)]
    ranks = [Loader(data, index, one, 8, SEED, rank, world, CPU, train) for rank, one in enumerate(direct)]
    found = []
    for parts in zip(*(loader.epoch(1, first) for loader in ranks), strict=True):
        ids = np.concatenate([part.ids for part in parts])
        images = [batch.images for part in parts for batch in part.micro_batches(3)]
        found.append((ids, torch.cat(images)))
    for one in direct:
        one.close()
    return found


def same(found: list[tuple[np.ndarray, torch.Tensor]], expected: list[tuple[np.ndarray, torch.Tensor]]) -> bool:
    return len(found) == len(expected) and all(
        np.array_equal(ids, known) and torch.equal(images, wanted)
        for (ids, images), (known, wanted) in zip(found, expected, strict=True)
    )


def stored(data: Data, decoder: Decoder | None = None) -> np.ndarray:
    """All images of the training split, uint8 [n, channels, SIZE, SIZE]."""
    index = checked_indices(data)["train"]
    epoch = Epoch(order.Shard(len(index), 7, 0, 1), SEED, None)
    return np.concatenate([arrays["image"] for _, arrays in Direct(data, index, 2, decoder=decoder).read(epoch)])


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_the_cpus_but_for_how_floats_are_rounded(photos: Path, channels: Any, interpolation: Any) -> None:
    data, stand_in = folder(photos, channels=channels, interpolation=interpolation), StandIn()
    known, found = (stored(data, one).astype(int) for one in (None, Decoder(CPU, stand_in)))
    assert np.abs(found - known).max() <= 2 and (found != known).mean() < 0.05
    raws = list(data.encoded(index := data.index()["train"], np.arange(len(index))))
    taken = [bool(decode.pixels_for_gpu(raw)) for raw in raws]
    assert sum(map(len, stand_in.pixels)) == sum(taken) and 0.4 * len(raws) < sum(taken) < 0.7 * len(raws)
    assert np.array_equal(found[~np.array(taken)], known[~np.array(taken)]), "those are the CPU's"


def test_images_that_are_not_resized_have_the_bits_of_the_decoder(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    for number in range(12):
        path = tmp_path / f"{number % 2}"
        path.mkdir(exist_ok=True)
        (path / f"{number}.jpg").write_bytes(jpeg(random, SIZE, SIZE + number))
    data = folder(tmp_path)
    assert np.array_equal(stored(data, Decoder(CPU, StandIn())), stored(data))


@pytest.mark.parametrize("whole", [False, True])
def test_bits_are_equal_on_any_ranks_after_a_resume_and_from_a_pack(
    photos: Path, tmp_path: Path, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = folder(photos, whole=whole, augment=CROP if whole else Augment(flip=0.5))
    expected = batches(data, Decoder(CPU, StandIn()))
    ids = np.concatenate([one for one, _ in expected])
    assert sorted(ids) == list(range(len(ids))) and len(ids) == 40
    for (_, found), (_, known) in zip(expected, batches(data, None), strict=True):
        torch.testing.assert_close(found, known, rtol=0, atol=2.01 / 255 / 0.22)
    for world, first in ((2, 0), (4, 0), (1, 2), (2, 3)):
        assert same(batches(data, Decoder(CPU, StandIn()), world, first), expected[first:]), (world, first)
    monkeypatch.setattr(reader, "_PART", 0)
    monkeypatch.setattr(reader, "_PART_ROWS", 3)
    monkeypatch.setattr(decode_gpu, "_PIXELS", 8000)
    decoder = Decoder(CPU, stand_in := StandIn())
    assert same(batches(data, decoder, 2), expected), "the images that are decoded together change no bits"
    sums = [sum(pixels) for pixels in stand_in.pixels]
    assert 6000 < max(sums) <= 8000 and max(map(len, stand_in.pixels)) > 1
    monkeypatch.undo()
    packing.pack(data, str(tmp_path / "pack"), Settings(), lambda total, done: None, lambda count: None)
    packed = Packed(str(tmp_path / "pack"), whole=whole, augment=data.augment, decode="gpu", crop=None)
    assert packed.on_gpu and same(batches(packed, Decoder(CPU, stand_in), 2), expected)
    source = replace(data, mean=(0.5,), std=(0.5,))
    mixed = Mixed((source, source), crop=None, augment=data.augment)
    once = Decoder(CPU, StandIn())
    assert mixed.on_gpu and same(batches(mixed, once, 2), batches(mixed, Decoder(CPU, StandIn())))
    assert once._groups, "the sources of a mixture decode on the GPU"


def test_threads_make_no_context_on_another_gpu(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, contexts = threading.local(), set[int]()

    @contextlib.contextmanager
    def device(chosen: torch.device) -> Iterator[None]:
        before, here.number = getattr(here, "number", 0), chosen.index
        yield
        here.number = before  # without a context there: torch's `_maybe_exchange_device`

    @contextlib.contextmanager
    def stream(chosen: Any) -> Iterator[None]:
        before = getattr(here, "number", 0)
        contexts.add(chosen.device.index)
        yield
        contexts.add(before)  # torch's StreamContext sets the stream that was the current one, and its device

    decoder, stand_in = Decoder(CPU, StandIn()), SimpleNamespace(device=torch.device("cuda", 1))
    monkeypatch.setattr(decoder, "_stream", stand_in)
    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    data = folder(photos)
    assert np.array_equal(stored(data, decoder), stored(data, Decoder(CPU, StandIn()))) and contexts == {1}


def test_an_image_of_more_pixels_than_the_gpu_takes_is_the_cpus(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_gpu, "_PIXELS", 3000)
    data = folder(photos)
    stored(data, Decoder(CPU, stand_in := StandIn()))
    assert stand_in.pixels and 1000 < max(map(sum, stand_in.pixels)) <= 3000
    monkeypatch.setattr(decode_gpu, "_PIXELS", 100)
    assert np.array_equal(stored(data, Decoder(CPU, stand_in)), stored(data))


@pytest.mark.parametrize(
    "text",
    [
        f"{NVJPEG}parse jpeg stream: 4",
        f"{NVJPEG}get image info: 10\nmore",
        f"{NVJPEG}x: 9",
        "Unknown chroma subsampling",
    ],
    ids=["4", "10", "9", "chroma"],
)
def test_an_image_that_nvjpeg_refuses_is_decoded_on_the_cpu_and_no_other(photos: Path, text: str) -> None:
    data = folder(photos)
    index = data.index()["train"]
    raws = list(data.encoded(index, np.arange(len(index))))
    (refused, *_) = [row for row, raw in enumerate(raws) if decode.pixels_for_gpu(raw)][5:]
    plain, found = (stored(data, Decoder(CPU, StandIn(fails))) for fails in ({}, {raws[refused]: text}))
    assert np.array_equal(found[refused], stored(data)[refused])
    assert np.array_equal(np.delete(found, refused, 0), np.delete(plain, refused, 0))


@pytest.mark.parametrize(
    "text", ["CUDA out of memory", f"{NVJPEG}synchronize CUDA stream: 4", f"{NVJPEG}decode batch: 5"]
)
def test_an_error_of_the_gpu_is_none_of_an_image(photos: Path, text: str) -> None:
    data = folder(photos)
    index = data.index()["train"]
    raws = list(data.encoded(index, np.arange(len(index))))
    last = [raw for raw in raws if decode.pixels_for_gpu(raw)][-1]
    with pytest.raises(RuntimeError, match=text.partition(":")[0]) as caught:
        stored(data, Decoder(CPU, StandIn({last: text})))
    assert not isinstance(caught.value, UserError)


def test_damaged_images_are_named_as_by_the_cpu(photos: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    raw = jpeg(random, 400, 500, quality=95)
    damaged = {3: raw[:-900], 7: raw[:300] + raw[-2:], 11: b"no image", 15: b"", 17: raw[:600] + raw[-80:]}
    for number in range(22):
        path = tmp_path / ("train" if number < 20 else "val") / "a"
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{number:02d}.jpg").write_bytes(damaged.get(number) or jpeg(random, 40, 50) * (number != 15))
    data, said, skipped = folder(tmp_path), list[str](), []
    index = data.index()["train"]
    for decoder in (None, Decoder(CPU, StandIn())):
        with pytest.raises(UserError) as caught:
            list(Direct(data, index, 2, decoder=decoder).read(Epoch(order.Shard(len(index), 6, 0, 1), SEED, None)))
        said.append(str(caught.value))
        direct = Direct(replace(data, on_bad_sample="skip"), index, 2, decoder=decoder)
        ids = np.concatenate([one for one, _ in direct.read(Epoch(order.Shard(len(index), 6, 0, 1), SEED, None))])
        skipped.append((direct.skipped, ids.tolist()))
    assert said[0] == said[1] and "03.jpg" in said[0]
    assert skipped[0] == skipped[1] and [Path(one).stem for one in skipped[0][0]] == ["03", "07", "11", "15", "17"]


def test_a_gpu_that_gives_other_images_is_refused(photos: Path) -> None:
    def black(raws: list[torch.Tensor], channels: int) -> list[torch.Tensor]:
        return [torch.zeros_like(image) for image in StandIn()(raws, channels)]

    with pytest.raises(UserError, match=r"another image than the CPU: they differ by \d+ of 255, in data.decode"):
        stored(folder(photos), Decoder(CPU, black))


def test_a_gpu_that_enlarges_chroma_otherwise_is_taken(photos: Path) -> None:
    def coarse(raws: list[torch.Tensor], channels: int) -> list[torch.Tensor]:
        return [
            image[:, ::2, ::2].repeat_interleave(2, 1).repeat_interleave(2, 2)[:, : image.shape[1], : image.shape[2]]
            for image in StandIn()(raws, channels)
        ]

    found, known = stored(folder(photos), Decoder(CPU, coarse)), stored(folder(photos))
    assert np.abs(found.astype(int) - known).mean() > 1


NOISE = np.random.default_rng(4)
WHOLE = jpeg(NOISE, 40, 50)


@pytest.mark.parametrize(
    ("raw", "pixels"),
    [
        (WHOLE, 2000),
        (jpeg(NOISE, 40, 50, mode="L"), 2000),
        (jpeg(NOISE, 40, 50, progressive=True), 2000),
        (jpeg(NOISE, 40, 50, exif=turned(1)), 2000),
        (jpeg(NOISE, 40, 50, exif=turned(3)), 0),
        (jpeg(NOISE, 40, 50, mode="CMYK"), 0),
        (jpeg(NOISE, 40, 50, mode="L"), 2000),
        (jpeg(NOISE, 40, 50, mode="L", subsampling=1), 0),
        (jpeg(NOISE, 40, 50, subsampling=1), 2000),
        (jpeg(NOISE, 40, 50, keep_rgb=True), 0),
        (jpeg(NOISE, 40, 50, "PNG"), 0),
        (jpeg(NOISE, 40, 50, "WEBP"), 0),
        (WHOLE[:-70], 0),
        (WHOLE[:3] + WHOLE[-64:], 0),
        (WHOLE[:2], 0),
        (b"", 0),
        (b"GIF89a", 0),
    ],
    ids=lambda value: str(len(value)) if isinstance(value, bytes) else str(value),
)
def test_the_kind_of_an_image_decides_who_decodes_it(raw: bytes, pixels: int) -> None:
    assert decode.pixels_for_gpu(raw) == pixels


def test_jpegs_that_would_take_the_decoder_minutes_are_left_to_the_cpu_which_refuses_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = jpeg(NOISE, 40, 50, progressive=True)
    monkeypatch.setattr(decode, "_MAX_SCANNED", 2000 * raw.count(b"\xff\xda") - 1)
    assert decode.pixels_for_gpu(raw) == 0
    with pytest.raises(ValueError, match="scans are too many"):
        decode.pixels(raw, 3)


@dataclass(frozen=True)
class Own(Images):
    """Reads for itself."""

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:  # type: ignore[override]
        return np.zeros((len(samples), 3, SIZE, SIZE), np.uint8)


ONE = Scaling(workers=1, cpus_per_worker=1.0, gpus_per_worker=1.0)


def test_what_a_gpu_cannot_decode_is_refused_by_the_plan(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, built = folder(photos), torch.ops.image.decode_jpegs_cuda
    index = data.index()["train"]

    def said(data: Data, scaling: Scaling = ONE) -> str:
        with pytest.raises(UserError) as caught:
            gpu_decoding.check(data, checked_indices(data)["train"] if data is not own else index, scaling)
        return str(caught.value)

    own = Own("x", size=SIZE, decode="gpu")
    monkeypatch.setattr(gpu_decoding, "has_nvjpeg", lambda: True)
    (note,) = gpu_decoding.check(data, index, ONE)
    left = sum(not decode.pixels_for_gpu(raw) for raw in data.encoded(index, np.linspace(0, 39, 32).astype(int)))
    assert note == f"of 32 images looked at, {left} are decoded on the CPU: they are no JPEGs for a GPU" and left > 8
    auto = replace(data, decode="auto", mode="resident")
    assert gpu_decoding.check(auto, index, replace(ONE, gpus_per_worker=0.0)) == []
    assert gpu_decoding.check(Digits(), Digits().index()["train"], ONE) == []
    assert "the workers have no GPU, in scaling.gpus_per_worker; give" in said(data, replace(ONE, gpus_per_worker=0.0))
    assert "in data.mode; leave out --data.mode resident, or use" in said(replace(data, mode="resident"))
    assert "Own has a read of its own" in said(own)
    with pytest.raises(UserError, match="Own has a read of its own"):
        gpu_decoding.check(Mixed((replace(own, mean=(0.5,), std=(0.5,), crop=None),) * 2), index, ONE)
    packing.pack(data, str(tmp_path / "raw"), Settings(codec="raw"), lambda total, done: None, lambda count: None)
    raw = Packed(str(tmp_path / "raw"), decode="gpu")
    assert "a raw pack has pixels, and no JPEGs to decode, in Packed.decode" in said(raw)
    for number in range(6):
        path = tmp_path / "png" / str(number % 2)
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{number}.png").write_bytes(jpeg(NOISE, 20, 20, "PNG"))
    assert "none of 4 images looked at is a JPEG that a GPU decodes" in said(folder(tmp_path / "png"))
    monkeypatch.undo()

    def without(*_: object) -> None:
        raise RuntimeError("decode_jpegs_cuda: torchvision not compiled with nvJPEG support")

    monkeypatch.setattr(torch.ops.image, "decode_jpegs_cuda", without)
    assert not decode_gpu.has_nvjpeg()
    assert "built without nvJPEG, in data.decode; install torchvision for CUDA, or" in said(data)
    monkeypatch.setattr(torch.ops.image, "decode_jpegs_cuda", built)
    with pytest.raises(UserError, match="source 1 decodes on the CPU, and source 0 does not"):
        Mixed((source := replace(data, mean=(0.5,), std=(0.5,)), replace(source, decode="cpu")), crop=None)


def test_torchvisions_own_builds_are_told_apart_without_a_gpu() -> None:
    if torch.version.cuda is None:
        pytest.skip("needs a build of torchvision for CUDA")
    assert decode_gpu.has_nvjpeg()


def test_images_for_a_gpu_are_streamed_to_the_threads_of_its_worker(photos: Path) -> None:
    data = folder(photos)
    indices, there = data.index(), Resources((Node("gpu", 8, 1, 1 << 40), Node("cpu", 64, 0, 1 << 40)), "a cluster")
    assert [mode(replace(data, decode=one), indices, there) for one in ("gpu", "cpu", "auto")] == [
        "streaming",
        "resident",
        "resident",
    ]
    threads = [reading_threads(replace(data, decode=one), "streaming", ONE, there) for one in ("gpu", "cpu")]
    assert threads == [8, 0], "tasks on the nodes without workers have no GPU"
    job: Any = SimpleNamespace(experiment=Experiment(model=CNN(), data=data), threads=2)
    readers: Any = worker._streams(job, indices, CPU)
    assert readers["train"].decoder is readers["val"].decoder is not None
    job.experiment = replace(job.experiment, data=replace(data, decode="auto"))
    assert worker._streams(job, indices, CPU)["train"].decoder is None  # type: ignore[attr-defined]


def test_sweeps_on_cpus_keep_the_keys_of_what_they_read(photos: Path) -> None:
    auto, cpu, gpu = (
        json.loads(reads(Experiment(model=CNN(), data=folder(photos, decode=one)))) for one in ("auto", "cpu", "gpu")
    )
    assert "decode" not in auto and cpu == auto and gpu == auto | {"decode": "gpu"}


def test_a_run_that_goes_on_keeps_its_decoder(photos: Path) -> None:
    before, after = (Experiment(model=CNN(), data=folder(photos, decode=one)) for one in ("gpu", "cpu"))
    (path,) = changed(before, after)
    assert path == "data.decode" and not may_change(path)
