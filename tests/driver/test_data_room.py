"""Where the plan lets samples be, and what it says of reading them."""

from __future__ import annotations

import dataclasses
import io
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet
from torch import nn

from raytrain import MLP, Data, Experiment, ImageFolder, Index, Manifest, Packed, Scaling
from raytrain.data import Images, cache, packing
from raytrain.driver import data_room, ray_cluster, room
from raytrain.driver.resources import Node, Resources
from raytrain.errors import BadSample, UserError


def machine(memory: int, cpus: float = 4, where: str = "a cluster", store: int | None = None) -> Resources:
    return Resources((Node("a", cpus, 0, memory, store), Node("b", cpus, 0, 2 * memory)), where)


HERE = machine(16 << 30, where="this machine")


@dataclass(frozen=True)
class Slow(Data):
    """Images that take 2 ms each; every third is bad."""

    root: str = ""
    count: int = 300

    def index(self) -> dict[str, Index]:
        return {
            split: Index(np.zeros(self.count, np.int64), ("a",), (3, 64, 64), split, rows=np.arange(self.count))
            for split in ("train", "val", "test")
        }

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        if samples[0] % 3 == 2:
            raise BadSample("x", "bad")
        time.sleep(0.002)
        READ.append(int(samples[0]))
        return np.zeros((len(samples), 3, 64, 64), np.uint8)


READ: list[int] = []


def said(
    data: Data,
    resources: Resources,
    mode: str = "streaming",
    module: nn.Module | None = None,
    scaling: Scaling = Scaling(),
) -> list[str]:
    READ.clear()
    experiment = Experiment(MLP(), data, scaling=scaling)
    return data_room.notes(experiment, data.index(), resources, mode, module or nn.Identity())


@pytest.mark.parametrize(
    ("memory", "room"),
    [(8 << 30, 2 << 30), (600 * 10**9, 150 * 10**9), (4000 * 10**9, 10**9 * 500 // 3)],
)
def test_resident_samples_take_a_quarter_of_memory_and_of_rays_most(memory: int, room: int) -> None:
    assert data_room.resident_room(machine(memory)) == room
    # Ray's own numbers: what raytrain keeps there stays below what the store can hold.
    from ray._private import ray_constants

    most = min(memory * ray_constants.DEFAULT_OBJECT_STORE_MEMORY_PROPORTION, _most(ray_constants))
    assert room < most


def test_the_object_store_of_a_running_cluster_counts() -> None:
    small = machine(16 << 30, store=6 << 20)
    assert data_room.resident_room(small) == 5 << 20 < data_room.resident_room(machine(16 << 30, store=8 << 30))
    assert data_room.resident_room(machine(16 << 30, store=8 << 30)) == 4 << 30, "a quarter of memory is less"
    data = Slow()
    assert data_room.mode(data, data.index(), machine(16 << 30)) == "resident"
    assert data_room.mode(data, data.index(), small) == "streaming"
    (note,) = said(data, small)
    assert note.startswith("samples are streamed: 7.0 MiB are more than the 5.0 MiB that a node may keep (Ray's object")
    with pytest.raises(UserError, match="keeping all samples resident needs 7 MiB and there are 5 MiB"):
        data_room.mode(Slow(mode="resident"), data.index(), small)


def test_ray_tells_a_nodes_object_store() -> None:
    has = {"CPU": 2.0, "GPU": 1.0, "memory": 7e9, "object_store_memory": 78643200.0}
    assert ray_cluster._node("a", has, 5) == Node("a", 2, 1, 7 * 10**9, 78643200)
    assert ray_cluster._node("b", {"CPU": 2.0}, 5) == Node("b", 2, 0, 5, None)
    assert Resources((Node("a", 2, 0, 5, 9), Node("b", 2, 0, 5, 7), Node("c", 2, 0, 5)), "").store == 7
    assert machine(5).store is None


def _most(constants: Any) -> int:
    return constants.DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES


def test_streaming_says_why_and_how_fast_reading_is() -> None:
    (note,) = said(Slow(), machine(16 << 20))
    assert note.startswith("samples are streamed: 7.0 MiB are more than the 4.0 MiB that a node may keep (a quarter of")
    each, most = (float(text.replace(",", "")) for text in _rates(note))
    assert 0 < each <= 500 and most == pytest.approx(8 * each, rel=0.1), "2 ms each, on 8 CPUs"
    assert len(READ) > 15 and READ[0] == 0 and READ[-1] > 250, "evenly chosen, without the bad ones"
    (note,) = said(Slow(mode="streaming"), machine(16 << 30))
    assert note.startswith("samples are streamed: data.mode is streaming; reading does at most")
    assert said(Slow(), machine(16 << 30)) == [], "a raw pack that the system's own memory keeps"


class Waits(nn.Module):
    """A model whose pass takes a time for each image."""

    def __init__(self, seconds: float):
        super().__init__()
        self.seconds, self.scale = seconds, nn.Parameter(torch.ones(()))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds * len(images))
        return images.flatten(1) * self.scale


def test_the_slower_of_reading_and_the_model_is_the_bottleneck() -> None:
    slow, fast = Waits(0.02), Waits(0.0001)
    (note,) = said(Slow(mode="streaming"), HERE, module=slow)
    assert note.endswith(": the model is the bottleneck") and 25 < _trained(note) <= 50, "20 ms each"
    (note,) = said(Slow(mode="streaming"), HERE, module=fast)
    assert note.endswith(": reading is the bottleneck") and _trained(note) > 500, "0.1 ms each, and 2 ms to read"
    (note,) = said(Slow(mode="streaming"), HERE, module=Waits(0.6))
    assert _trained(note) == pytest.approx(1 / 0.6, rel=0.2), "a model that takes long is tried with one image"
    assert all(one.scale.grad is None and one.scale == 1 for one in (slow, fast)), "the model stays as it is"


@pytest.mark.parametrize(
    ("resources", "gpus", "module"),
    [
        (machine(16 << 30), 0.0, Waits(0.0)),
        (HERE, 1.0, Waits(0.0)),
        (HERE, 0.0, Waits(0.0).to("meta")),
        (HERE, 0.0, nn.Conv2d(5, 1, 1)),
    ],
    ids=["on other machines", "on GPUs", "without memory", "fails on zeros"],
)
def test_a_model_that_cannot_be_measured_is_not_compared(resources: Resources, gpus: float, module: nn.Module) -> None:
    (note,) = said(Slow(mode="streaming"), resources, "streaming", module, Scaling(gpus_per_worker=gpus))
    assert note.endswith(", and a model that is faster waits for it")


def _trained(note: str) -> float:
    return float(note.split(" about ")[1].split()[0].replace(",", ""))


def _rates(note: str) -> tuple[str, str]:
    words = note.split()
    return words[words.index("by") - 1], words[words.index("most") + 1]


@dataclass(frozen=True)
class Threaded(Slow):
    """What threads of the workers read."""

    @property
    def direct(self) -> bool:
        return True


def test_threads_of_the_workers_are_what_reads_for_them() -> None:
    two = Scaling(workers=2, cpus_per_worker=1.0, gpus_per_worker=0.0, threads_per_worker=1)
    (note,) = said(Threaded(mode="streaming"), machine(1 << 30), scaling=two)
    each, most = (float(text.replace(",", "")) for text in _rates(note))
    assert "samples/s on 4 threads, " in note, "two on each CPU of one node; the other one has no worker"
    assert most == pytest.approx(4 * each, rel=0.1)
    (note,) = said(Slow(mode="streaming"), machine(1 << 30), scaling=two)
    assert "samples/s on 8 CPUs, " in note, "tasks of Ray Data run on all nodes"


PNG = io.BytesIO()
Image.new("RGB", (200, 200), (1, 2, 3)).save(PNG, "png")


@dataclass(frozen=True)
class Far(Images):
    """Images that a network brings, with a damaged one."""

    root: str = "s3://bucket/images"

    def index(self) -> dict[str, Index]:
        return {split: Index(np.zeros(40, np.int64), ("a",), (3, 64, 64), split) for split in ("train", "val")}

    def encoded(self, index: Index, samples: np.ndarray) -> Iterator[bytes]:
        for sample in samples:
            READ.append(int(sample))
            time.sleep(0.05)
            yield b"none" if sample == 2 else PNG.getvalue()

    def where(self, index: Index, sample: int) -> str:
        return f"s3://bucket/images/{sample}.png"


def test_of_images_at_a_url_decoding_alone_is_measured() -> None:
    one = Scaling(workers=1, cpus_per_worker=1.0, gpus_per_worker=0.0)
    (note,) = said(Far(size=64, mode="streaming"), HERE, module=Waits(0.0001), scaling=one)
    each, _ = (float(text.replace(",", "")) for text in _rates(note))
    assert READ == list(range(8)) and each > 25, "50 ms each would be less than 20"
    assert note.startswith("samples are streamed: data.mode is streaming; decoding, without the network, does at most")
    assert note.endswith("is the bottleneck, if the network is not")
    (note,) = said(Far(size=64, mode="streaming"), machine(16 << 30), scaling=one)
    assert note.endswith(", and a model that is faster waits for it")


def test_images_at_urls_that_a_table_here_lists_are_not_read_to_measure(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("path,label,split\nx.png,a,train\ny.png,a,val\n")
    data = Manifest(str(tmp_path / "a.csv"), folder="s3://bucket/images")
    assert data_room._remote(data, data.index()["train"])
    assert not data_room._remote(dataclasses.replace(data, folder=""), data.index()["train"])


def test_a_first_start_that_skips_bad_samples_says_that_it_reads_all(tmp_path: Path) -> None:
    note = "all samples are read before the first step, to find those to skip (data.on_bad_sample)"
    assert note in said(Slow(mode="streaming", on_bad_sample="skip"), machine(1 << 30))
    assert note not in said(Slow(mode="streaming"), machine(1 << 30))
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / split / "a" / "1.png")
    data = ImageFolder(str(tmp_path), size=8, mode="streaming", on_bad_sample="skip")
    assert note in said(data, machine(1 << 30))
    for index in data.index().values():
        packing.pack(data, index, keep=False)
    assert note not in said(data, machine(1 << 30)), "the disk cache has which are bad"
    experiment = Experiment(MLP(), Slow(mode="streaming", on_bad_sample="skip"))
    args = (experiment, Slow().index(), machine(1 << 30), "streaming", nn.Identity())
    assert note not in data_room.notes(*args, resumed=True)


def test_large_row_groups_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = pa.table({"image": [PNG.getvalue() * 9] * 8, "label": ["a"] * 8})
    parquet.write_table(cells, tmp_path / "a.parquet", row_group_size=4, use_dictionary=False)
    data = Manifest(str(tmp_path / "a.parquet"), bytes="image", size=8)
    kept = sum(map(len, cells["image"].slice(0, 4).to_pylist()))
    assert said(data, machine(1 << 40), "resident") == []
    monkeypatch.setattr(data_room, "_LARGE_GROUP", kept)
    (note,) = said(data, machine(1 << 40), "resident")
    assert note.startswith("row groups of up to ") and note.endswith("row_group_size=1000, or `raytrain pack` it")
    monkeypatch.setattr(data_room, "_LARGE_GROUP", kept + 100)
    assert said(data, machine(1 << 40), "resident") == []


def test_the_room_for_shards_on_other_nodes_is_said_to_be_unknown() -> None:
    pack = Packed("s3://bucket/pack")
    (note,) = data_room._elsewhere(pack, machine(1 << 30))
    assert "each node fetches shards to its own disk" in note
    own = Resources((Node(socket.gethostname(), 4, 0, 1 << 30),), "127.0.0.1:6379")
    assert data_room._elsewhere(pack, own) == data_room._elsewhere(Packed("/pack"), machine(1 << 30)) == []


def test_decoded_images_that_the_cache_has_no_room_for_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/1", "a/2", "b/1", "b/2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (9, 9)).save(tmp_path / f"{name}.png")
    data = ImageFolder(str(tmp_path), size=64, cache=str(tmp_path / "cache"), cache_size=40_000 / 2**30)
    (note,) = said(data, HERE, "resident")
    begins = "not all of 48.0 KiB of decoded images fit into the cache, which may take 39.1 KiB"
    assert note == f"{begins}: --data.cache_size gives it more"
    with monkeypatch.context() as full:
        full.setattr(cache, "limit", lambda folder, gib: 409)
        (note,) = said(data, HERE, "resident")
    wanted = f"make room on the disk of {tmp_path / 'cache'}, or name a folder of another by --data.cache"
    assert note.endswith(f"may take 409 bytes: {wanted}")
    for other in ({"cache_size": 49_152 / 2**30}, {"cache_size": None}, {"cache": "off"}):
        assert said(dataclasses.replace(data, **other), HERE, "resident") == []


def test_storage_at_a_url_and_bad_samples_are_not_measured() -> None:
    assert (
        said(Slow(root="s3://bucket/x", mode="streaming"), machine(1 << 30))
        == ["samples are streamed: data.mode is streaming"]
        and not READ
    )


def test_samples_that_take_long_are_read_for_half_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_room, "_SECONDS", 0.0)
    assert "samples/s" in said(Slow(mode="streaming"), machine(1 << 30))[0] and len(READ) == 2


def test_shared_memory_without_room_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    many = Slow(count=10_000)  # 229 MiB
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=16 << 10, f_frsize=4096))
    (note,) = said(many, HERE, "resident")
    assert note.startswith("234.4 MiB of resident samples do not fit into /dev/shm (64.0 MiB free), so Ray keeps them")
    assert said(Slow(), HERE, "resident") == []
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=60 << 20, f_frsize=4096))
    assert said(many, HERE, "resident") == []


def test_what_a_run_that_finds_no_room_needs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        {"NodeID": name, "NodeManagerHostname": name, "Alive": name != "c", "Resources": {"CPU": 4.0, "GPU": 1.0}}
        for name in "abc"
    ]
    monkeypatch.setattr(room.ray, "nodes", lambda: nodes)
    monkeypatch.setattr(room.cluster_state, "free_cpus", lambda: {"a": 0.5})
    said = room.needed_and_free(Scaling(workers=2, cpus_per_worker=3.0))
    assert said == "it needs 2 workers of 3 CPUs each, and a has 4 CPUs, 0.5 CPUs free; b has 4 CPUs"
    said = room.needed_and_free(Scaling(workers=1, cpus_per_worker=1.0, gpus_per_worker=1.0))
    assert said.startswith("it needs 1 CPU and 1 GPU, and a has 4 CPUs and 1 GPU, 0.5 CPUs free")
