"""Direct: threads that read batches ahead, into memory that is used again. No Ray."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from raytrain import order
from raytrain.data import Data, Field, ImageFolder, Index, Manifest, Mixed, Packed, buffers, reader, streaming
from raytrain.data.checks import checked_indices
from raytrain.data.loader import Loader
from raytrain.data.reader import Direct, Epoch, Resident
from raytrain.data.sampler import Weighted, drawing
from raytrain.errors import BadSample, UserError
from raytrain.tools import pack as packer
from raytrain.tools.pack import pack
from raytrain.tools.pack_settings import Settings
from raytrain.user_code.shipping import Shipped

N = 103
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 3, 4, 4), dtype=np.uint8)
VALUES = np.random.default_rng(1).normal(size=N).astype(np.float32)
FIELDS = Field("image", (3, 4, 4), kind="image"), Field("value", (), "float32")
INDEX = Index(np.arange(N) % 10, tuple("0123456789"), split="train", fields=FIELDS)


@dataclass(frozen=True, eq=False)
class Arrays(Data):
    """IMAGES and VALUES, and which samples were read; sample `stop` waits until `go` is set."""

    seen: Any = field(default_factory=list)
    bad: tuple[int, ...] = ()
    stop: int = -1
    go: Any = field(default_factory=threading.Event)

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        self.seen.extend(samples.tolist())
        if self.stop in samples:
            assert self.go.wait(30)
        for sample in samples:
            if sample in self.bad:
                raise BadSample(f"{sample}.png", "broken")
        return {"image": IMAGES[samples], "value": VALUES[samples]}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_PART", 0)
    monkeypatch.setattr(reader, "_PART_ROWS", 5)


def way(rank: int = 0, world: int = 1, batch: int = 16, number: int | None = 0, **more: Any) -> Epoch:
    return Epoch(order.Shard(N, batch, rank, world), 7, number, **more)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(("world", "batch"), [(1, 16), (2, 17), (3, 103), (8, 102), (5, 2)])
def test_batches_and_bits_are_those_of_memory(world: int, batch: int, sampled: bool) -> None:
    index = replace(INDEX, columns={"w": np.arange(N) + 1.0})
    draw = drawing(Weighted(column="w"), index) if sampled else None
    once = []
    for rank in range(world):
        direct = Direct(Arrays(), index, threads=3)
        for number, first in ((0, 2), (1, 0), (None, 0)):
            taken = None if number is None else draw
            epoch = way(rank, world, batch, number, epochs=2, draw=taken, first_step=min(first, -(-N // batch) - 1))
            expected = Resident({"image": IMAGES, "value": VALUES}).read(epoch)
            for (ids, arrays), (same, theirs) in zip(direct.read(epoch), expected, strict=True):
                assert np.array_equal(ids, same) and list(arrays) == ["image", "value"]
                for name, array in arrays.items():
                    assert array.dtype == theirs[name].dtype and np.array_equal(array, theirs[name])
                    assert array.flags.writeable and array.flags.c_contiguous
                once += ids.tolist() if number is None else []
    assert sorted(once) == list(range(N)), "every sample is read once by all ranks together"


def test_tasks_of_ray_data_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_fetch", lambda _: INDEX)
    epoch, data = way(1, 2), Arrays()
    (ids,) = [np.concatenate(list(epoch.steps()))]
    span = {"start": np.array([0]), "stop": np.array([len(ids)])}
    blocks = list(streaming._read(span, Shipped(data), None, lambda local: ids[local], 7))
    found = [arrays for _, arrays in Direct(data, INDEX).read(epoch)]
    for name in ("image", "value"):
        tasks, threads = (np.concatenate([one[name] for one in many]) for many in (blocks, found))
        assert np.array_equal(tasks, threads)


def test_the_next_epoch_is_read_before_it_is_asked_for_and_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_MOST", 3)
    data = Arrays()
    direct = Direct(data, INDEX, threads=2)
    loader = Loader(data, INDEX, direct, 16, 7, 0, 1, torch.device("cpu"), train=True)
    loader.epochs = 3
    list(loader.epoch(0))
    assert [one.place.step for one in direct._begun] == [0, 1, 2] and direct._begun[0].place.epoch.number == 1
    for _, part in (part for one in direct._begun for part in one.parts):
        part.result()
    before = len(data.seen)
    assert before == N + 3 * 16
    next(iter(loader.epoch(1)))  # then the validation comes, and the pass goes on from there
    for _ in loader.epoch(1, first_step=1):
        pass
    assert sorted(data.seen[: 2 * N]) == sorted([*range(N), *range(N)])
    list(loader.epoch(2))
    assert sorted(data.seen) == sorted([*range(N)] * 3), "nothing is read after the last epoch"
    assert not direct.buffers.free, "its memory is free"


def test_a_pass_that_begins_elsewhere_drops_what_was_begun() -> None:
    direct = Direct(Arrays(), INDEX, threads=2)
    passes: Any = direct.read(way(epochs=4))
    next(passes)
    passes.close()
    for epoch in (way(first_step=4, epochs=4), way(number=3, epochs=4), way(number=None)):
        ids = np.concatenate([ids for ids, _ in direct.read(epoch)])
        assert np.array_equal(ids, np.concatenate(list(epoch.steps())))
    assert not direct._begun


def test_batches_that_are_kept_keep_their_values_and_memory_serves_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Counted(mmap.mmap):
        def __new__(cls, number: int, size: int, **more: Any) -> Any:
            made.append(size)
            return super().__new__(cls, number, size, **more)

    monkeypatch.setattr(buffers.mmap, "mmap", Counted)
    monkeypatch.setattr(reader, "_AHEAD", 0)
    ten = way(batch=10)
    kept = [(ids, torch.from_numpy(arrays["image"])[1:]) for ids, arrays in Direct(Arrays(), INDEX).read(ten)]
    assert all(np.array_equal(images, IMAGES[ids][1:]) for ids, images in kept) and len(made) == 11
    made.clear()
    data = Arrays()
    loader = Loader(data, INDEX, Direct(data, INDEX), 10, 7, 0, 1, torch.device("cpu"), train=True)
    loader.epochs = 9
    for number in range(9):
        for loaded in loader.epoch(number):
            assert np.array_equal(loaded.arrays["image"], IMAGES[loaded.ids])
    assert len(made) <= 4, "two ahead, the one in use and the one before it"
    assert max(made) <= 10 * INDEX.sample_bytes + 2 * 64, "each has the size of a batch"


def test_all_threads_work_on_one_batch() -> None:
    data = Arrays(stop=int(next(way(batch=N).steps())[0]))
    direct = Direct(data, INDEX, threads=2)
    waiting = threading.Thread(target=lambda: next(direct.read(way(batch=N))))
    waiting.start()
    for _ in range(3000):
        if len(data.seen) == N:
            break
        waiting.join(0.01)
    assert len(data.seen) == N and waiting.is_alive(), "the other thread reads the rest of the batch meanwhile"
    data.go.set()
    waiting.join()


def test_each_thread_computes_alone_and_the_caller_as_before() -> None:
    before, found = torch.get_num_threads(), []

    @dataclass(frozen=True)
    class Counted(Arrays):
        def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
            found.append(torch.get_num_threads())
            return super().read(index, samples)

    torch.set_num_threads(3)
    try:
        list(Direct(Counted(), INDEX, threads=2).read(way()))
        later = threading.Thread(target=lambda: found.append(10 + torch.get_num_threads()))
        later.start()
        later.join()
        assert set(found) == {1, 13} and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_runs_bad_sample_is_named_and_lost_if_it_was_good() -> None:
    for data, message in (
        (Arrays(bad=(40,)), r"cannot read sample: broken, 40\.png; repair or remove it"),
        (Arrays(bad=(40,), on_bad_sample="skip"), r"could be read when the run began: broken, 40\.png; restore it"),
    ):
        direct = Direct(data, INDEX, complete=True)
        with pytest.raises(UserError, match=message):
            list(direct.read(way(1, 2)) if 40 in np.concatenate(list(way(1, 2).steps())) else direct.read(way(0, 2)))
        assert not direct._begun
    direct.close()
    with pytest.raises(RuntimeError):
        next(direct.read(way()))


def test_images_of_every_source_are_decoded_into_the_batch(tmp_path: Path) -> None:
    pixels, lines = np.random.default_rng(2), ["path,label,split,age"]
    for number in range(20):
        split, kind = ("train", "val")[number % 5 == 0], "ab"[number % 2]
        path = tmp_path / "files" / split / kind / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.integers(0, 256, (12, 9, 3), dtype=np.uint8)).save(path)
        lines.append(f"{path.relative_to(tmp_path)},{kind},{split},{number}")
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    common: Any = {"crop": None, "mean": (0.5,), "std": (0.5,)}
    folder = ImageFolder(str(tmp_path / "files"), size=8, cache="off", **common)
    sources: list[Data] = [
        folder,
        Manifest(str(tmp_path / "labels.csv"), size=8, cache="off"),
        Manifest(str(tmp_path / "labels.csv"), size=8, cache="off", target=("age",)),
        Mixed(sources=(folder, folder), **common),
    ]
    for settings in (Settings("original"), Settings("raw", 8)):
        pack(folder, str(tmp_path / settings.codec), settings, lambda total, done: None, lambda count: None)
        sources.append(Packed(str(tmp_path / settings.codec), cache="off"))
    for source in sources:
        assert source.direct and source.raw == (source is sources[-1])
        index = checked_indices(source)["train"]
        epoch = Epoch(order.Shard(len(index), 6, 0, 1), 7, 0)
        for ids, arrays in Direct(source, index).read(epoch):
            found: Any = source.read(index, ids)
            for name, array in (found if isinstance(found, dict) else {"image": found}).items():
                assert np.array_equal(arrays[name], array) and array.dtype == arrays[name].dtype


@dataclass(frozen=True)
class Numbered(Data):
    """101 arrays of random numbers and their numbers."""

    def index(self) -> dict[str, Index]:
        fields = Field("values", (700,), "float32"), Field("number", (), "int64")
        return {split: Index(split=split, fields=fields, count=n) for split, n in (("train", 101), ("val", 8))}

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        values = [np.random.default_rng(one).normal(size=700).astype(np.float32) for one in samples.tolist()]
        return {"values": np.stack(values), "number": samples}


def never(total: int, done: int = 0) -> None:
    """Show no progress of a packer."""


@pytest.mark.parametrize("case", ["in memory", "dropped", "some are not", "no such call", "cut off"])
def test_raw_samples_in_memory_are_copied_and_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(packer, "SHARD_BYTES", 100_000)
    pack(Numbered(), str(tmp_path / "pack"), Settings("raw"), never, never)
    data, read, calls = Packed(str(tmp_path / "pack"), cache="off"), list[int](), itertools.count()
    index, real, fill = checked_indices(data)["train"], os.preadv, reader._fill
    with open(tmp_path / "pack" / "manifest.json", "rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError as error:
            pytest.skip(f"the file system of {tmp_path} cannot tell what is in memory: {error}")

    def preadv(descriptor: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags and case == "no such call":
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        if flags and case == "some are not" and next(calls) % 9 == 4:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        if flags and case == "cut off" and next(calls) % 9 == 4:
            return real(descriptor, [memoryview(buffers[0])[:100]], offset)
        return real(descriptor, buffers, offset, flags)

    def filled(source: Data, of: Index, samples: np.ndarray, *rest: Any) -> Any:
        read.extend(samples.tolist())
        return fill(source, of, samples, *rest)

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(reader, "_fill", filled)
    direct, shards = Direct(data, index), sorted((tmp_path / "pack").glob("shard-*"))
    assert len(shards) > 2
    for number in (0, 1, 2, None):
        if case == "dropped" and number == 2:
            for shard in shards:
                with open(shard, "rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        read.clear()
        epoch = Epoch(order.Shard(len(index), 13, 0, 1), 7, number)
        for ids, arrays in direct.read(epoch):
            assert np.array_equal(arrays["number"], ids)
            assert np.array_equal(arrays["values"], Numbered().read(index, ids)["values"])
        if number in (0, None) or case == "no such call":
            assert sorted(read) == list(range(101)), "not checked yet, or next to each other"
        elif case == "in memory":
            assert len(read) < 50, "batches in which two samples are next to each other"
        elif case != "dropped":
            assert 10 < len(read) < 101


@dataclass(frozen=True)
class Brightened(ImageFolder):
    """A folder whose images are changed by Python code of the user."""

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:  # type: ignore[override]
        return np.minimum(super().read(index, samples), 200)


def test_sources_with_a_read_of_their_own_stay_with_ray_data() -> None:
    assert not Brightened("x").direct and not Arrays().direct
    common: Any = {"crop": 8, "mean": (0.5,), "std": (0.5,)}
    assert not Mixed(sources=(ImageFolder("x", **common), Brightened("y", **common)), **common).direct


@pytest.mark.parametrize("given", [False, True])  # a worker's threads are given: its share of the node's CPUs
@pytest.mark.parametrize(("raw", "cpus", "threads"), [(True, 1, 8), (True, 20, 20), (True, 64, 32), (False, 1, 1)])
def test_raw_samples_are_read_by_more_threads_than_cpus(
    monkeypatch: pytest.MonkeyPatch, raw: bool, cpus: int, threads: int, given: bool
) -> None:
    monkeypatch.setattr(reader, "host_cpus", lambda: 2 if given else cpus)
    monkeypatch.setattr(Arrays, "raw", raw)
    direct = Direct(Arrays(), INDEX, cpus if given else None)
    together = threading.Barrier(threads)
    found = [direct._pool.submit(together.wait, 30) for _ in range(threads)]
    assert sorted(one.result() for one in found) == list(range(threads))
    direct.close()
    assert direct.threads == threads
