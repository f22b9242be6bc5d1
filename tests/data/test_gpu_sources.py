"""Decoding on a worker's GPU from every source that promises it: what each returns is decoded by the `Decoder`."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from raytrain import Data, ImageFolder, Manifest, Mixed, Packed, Scaling, WebDataset, order
from raytrain.data import decode_torch
from raytrain.data.checks import checked_indices
from raytrain.data.decode_gpu import Decoder
from raytrain.data.reader import Direct, Epoch
from raytrain.driver import gpu_decoding
from raytrain.tools import pack as packing
from raytrain.tools.pack_settings import Settings

COMMON: dict[str, Any] = {"size": 20, "crop": None, "decode": "gpu"}
decode_torch.has_decoder()  # loads the operators


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Data]:
    """The same JPEGs in the same order, from each kind of source."""
    root, random = tmp_path_factory.mktemp("gpu"), np.random.default_rng(0)
    rows, folder = list[dict[str, Any]](), ImageFolder(str(root / "photos"), **COMMON)
    for number in range(24):
        split, name = ("train" if number < 20 else "val"), f"class {number // 2 % 2}"
        path = root / "photos" / split / name / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        height, width = random.integers(21, 60, 2).tolist()
        pixels = random.integers(0, 256, (5, 7, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((width, height)).save(path, quality=95)
        rows.append(
            {"path": str(path), "label": name, "split": split, "age": float(number), "image": path.read_bytes()}
        )
    rows.sort(key=lambda row: row["path"])
    parquet.write_table(pa.Table.from_pylist(rows), root / "table.parquet")
    for split in ("train", "val"):
        with tarfile.open(root / f"{split}-000.tar", "w") as tar:
            for row in rows:
                if row["split"] == split:
                    path = Path(row["path"])
                    (root / "label").write_text(row["label"])
                    tar.add(root / "label", f"{path.stem}.cls")
                    tar.add(path, path.name)
    found = {
        "folder": folder,
        "paths": Manifest(str(root / "table.parquet"), **COMMON),
        "bytes": Manifest(str(root / "table.parquet"), bytes="image", **COMMON),
        "targets": Manifest(str(root / "table.parquet"), target=("age",), **COMMON),
        "shards": WebDataset(str(root / "{train,val}-000.tar"), **COMMON),
    }
    for name, of, codec in (("original", "folder", "original"), ("jpeg", "bytes", "jpeg")):
        packing.pack(found[of], str(root / name), Settings(codec), lambda total, done: None, lambda count: None)  # type: ignore[arg-type]
        found[name] = Packed(str(root / name), decode="gpu")
    found["mixture"] = Mixed((Packed(str(root / "jpeg"), mean=(0.5,), std=(0.5,), **COMMON),) * 2)
    return found


@pytest.mark.parametrize("name", ["paths", "bytes", "targets", "shards", "original", "jpeg", "mixture"])
def test_every_source_of_jpegs_is_decoded_by_the_gpu(
    sources: dict[str, Data], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = list[int]()

    def nvjpeg(raws: list[torch.Tensor], channels: int) -> list[torch.Tensor]:
        decoded.append(len(raws))
        return [torch.ops.image.decode_jpeg(raw, channels, False) for raw in raws]

    def images(data: Data) -> np.ndarray:
        index, decoder = checked_indices(data)["train"], Decoder(torch.device("cpu"), nvjpeg)
        way = Epoch(order.Shard(len(index), 7, 0, 1), 3, None)
        direct = Direct(data, index, 2, decoder=decoder)
        found = np.concatenate([arrays["image"] for _, arrays in direct.read(way)])
        direct.close()
        return found

    monkeypatch.setattr(gpu_decoding, "has_nvjpeg", lambda: True)
    data, expected = sources[name], images(sources["folder"])
    assert sum(decoded) == 20 and data.direct
    one = Scaling(workers=1, cpus_per_worker=1.0, gpus_per_worker=1.0)
    assert gpu_decoding.check(data, checked_indices(data)["train"], one) == []
    found = images(data)
    np.testing.assert_array_equal(found, np.concatenate([expected, expected])[: len(found)])
    assert sum(decoded) == 20 + len(found) == 20 + 20 * (1 + (name == "mixture"))
