"""Where the plan lets samples be, and what it says of reading them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raytrain import MLP, Data, Experiment, Index, Scaling
from raytrain.driver import data_room
from raytrain.driver.resources import Node, Resources
from raytrain.errors import BadSample


def machine(memory: int, cpus: float = 4, where: str = "a cluster") -> Resources:
    return Resources((Node("a", cpus, 0, memory), Node("b", cpus, 0, 2 * memory)), where)


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
