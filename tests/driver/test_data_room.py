"""Where the plan lets samples be, and what it says of reading them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from raytrain import Data, Index
from raytrain.driver import data_room
from raytrain.driver.resources import Node, Resources
from raytrain.errors import BadSample


def machine(memory: int, cpus: float = 4) -> Resources:
    return Resources((Node("a", cpus, 0, memory), Node("b", cpus, 0, 2 * memory)), "this machine")


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


def said(data: Data, resources: Resources, mode: str = "streaming") -> list[str]:
    READ.clear()
    return data_room.notes(data, data.index(), resources, mode)


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
    (note,) = said(many, machine(16 << 30), "resident")
    assert note.startswith("234.4 MiB of resident samples do not fit into /dev/shm (64.0 MiB free), so Ray keeps them")
    assert said(Slow(), machine(16 << 30), "resident") == []
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=60 << 20, f_frsize=4096))
    assert said(many, machine(16 << 30), "resident") == []
