"""Packs whose shards are fetched: a disk that others fill, a cache that somebody removes; and many ranks at once."""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.packs import packed

from raytrain import Data, Field, Index, Packed
from raytrain.data import byte_files, packs
from raytrain.data.reader import Direct, Epoch
from raytrain.errors import UserError
from raytrain.order import Shard
from raytrain.tools import pack as packing


class Numbers(Data):
    """Sample i is the number i, four times."""

    def index(self) -> dict[str, Index]:
        fields = (Field("x", (4,), "int64"),)
        return {split: Index(fields=fields, count=count, split=split) for split, count in COUNTS.items()}

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        return np.repeat(samples[:, None], 4, 1)


COUNTS = {"train": 1000, "val": 50}


def write(dest: str) -> str:
    packed(Numbers(), dest, codec="raw")
    return dest


@pytest.fixture(scope="module")
def written(s3: str) -> str:
    """A pack that no test changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "SHARD_BYTES", 1_000)
        return write(f"{s3}/fetching/pack")


@pytest.fixture
def url(written: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(byte_files, "_PAUSE", 0.0)
    packs._PACKS.clear()
    return written


def all_of(pack: Packed) -> list[int]:
    index = pack.index()["train"]
    found = pack.read(index, np.arange(len(index)))
    assert isinstance(found, dict)
    return found["x"][:, 3].tolist()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_others_fill_leaves_shards_at_the_url(
    url: str, tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = os.posix_fallocate, [8]

    def full(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(code, os.strerror(code))
        real(*arguments)

    pack = Packed(url, cache=str(tmp_path / "cache"))
    assert len(pack.index()) == 2  # the lists of samples are here
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert all_of(pack) == list(range(1000))
    there = list((tmp_path / "cache" / "packs").glob("*/*.bin"))
    assert 0 < len(there) < 32 and not list((tmp_path / "cache" / "packs").glob("*/*.partial"))


def test_a_disk_without_room_for_the_list_of_samples_is_an_error(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(Exception, match="No space left on device") as found:
        Packed(url, cache=str(tmp_path / "cache")).index()
    assert "index-train.arrow" in str(found.value)


def test_a_cache_that_cannot_be_written_is_named(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    where = tmp_path / "file" / "cache"
    told = rf"^index-train.arrow of the pack cannot be kept in the cache: Not a directory, {where}/packs; name another"
    with pytest.raises(UserError, match=told) as found:
        Packed(url, cache=str(where)).index()
    assert "--data.cache" in found.value.how and "\n" not in str(found.value)
    assert all_of(Packed(url, cache=str(tmp_path / "cache"))) == list(range(1000))
    monkeypatch.setattr(os, "utime", raises_read_only)  # a later start with a cache that is only read
    packs._PACKS.clear()
    assert all_of(Packed(url, cache=str(tmp_path / "cache"))) == list(range(1000))


def raises_read_only(*_: Any) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_cache_that_is_removed_while_a_shard_is_fetched_is_made_again(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack, real = Packed(url, cache=str(tmp_path / "cache")), packs._Fetched._fetch
    pack.index()

    def removed(place: Any, name: str, *arguments: Any) -> None:
        real(place, name, *arguments)
        if name in ("shard-00003.bin", "shard-00023.bin") and name not in gone:
            gone.append(name)
            shutil.rmtree(tmp_path / "cache")

    gone: list[str] = []
    monkeypatch.setattr(packs._Fetched, "_fetch", removed)
    assert all_of(pack) == list(range(1000)) and len(gone) == 2


def test_a_pack_that_is_larger_than_the_room_for_it_is_said(url: str, tmp_path: Path) -> None:
    pack = Packed(url, cache=str(tmp_path / "cache"))
    assert pack.notes() == []
    (note,) = replace(pack, fetched=10_000 / 2**30).notes()
    assert note.startswith("the pack has 32.8 KiB, and shards of 9.8 KiB fit into the cache")
    (note,) = replace(pack, fetched=10_000 / 2**30, cache=str(tmp_path / "none")).notes()
    assert "9.8 KiB" in note and (tmp_path / "none").exists() is False


def test_64_ranks_read_each_sample_of_a_pack_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "SHARD_BYTES", 1_000)
    data = Packed(write(str(tmp_path / "pack")))
    index = data.index()["train"]

    def steps(rank: int, ranks: int, epoch: int) -> Iterator[tuple[list[int], list[int]]]:
        part = Epoch(Shard(COUNTS["train"], 96, rank, ranks), seed=3, number=epoch)
        for samples, arrays in Direct(data, index).read(part):
            yield samples.tolist(), arrays["x"][:, 3].tolist()

    for epoch in (0, 1):
        seen: Counter[int] = Counter()
        expected = list(steps(0, 1, epoch))
        for alone, parts in zip(
            expected, zip(*(steps(rank, 64, epoch) for rank in range(64)), strict=True), strict=True
        ):
            samples, values = ([one for part in parts for one in part[side]] for side in (0, 1))
            assert (samples, values) == alone and samples == values
            seen.update(values)
        assert seen == Counter(range(1000)), f"epoch {epoch}"
