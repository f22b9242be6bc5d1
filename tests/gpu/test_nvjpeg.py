"""On a GPU: nvJPEG decodes what the CPU does, with bits that depend on each image alone."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from raytrain import Run
from raytrain.data import decode
from raytrain.data.decode_gpu import Decoder, has_nvjpeg

pytestmark = pytest.mark.skipif(not (torch.cuda.is_available() and has_nvjpeg()), reason="needs a CUDA GPU with nvJPEG")
GPU = torch.device("cuda:0")
RANDOM = np.random.default_rng(0)


def photo(number: int, mode: str = "RGB", **how: Any) -> bytes:
    """A smooth JPEG, which decodes as photographs do."""
    width, height = RANDOM.integers(60, 700, 2).tolist()
    rough = Image.fromarray(RANDOM.integers(0, 256, (9, 12, 3), dtype=np.uint8))
    file = io.BytesIO()
    image = rough.resize((width, height), Image.Resampling.BICUBIC).convert(mode)
    chroma = number % 3 if mode == "RGB" or number % 2 else 0
    image.save(file, "JPEG", quality=90, subsampling=chroma, progressive=number % 4 == 3, **how)
    return file.getvalue()


RAWS = [photo(number, "L" if number % 7 == 6 else "RGB") for number in range(60)]


def decoded(raws: list[bytes], channels: int, size: int = 96) -> tuple[np.ndarray, int]:
    """The squares of images, and how many of these the CPU was left."""
    images = np.zeros((len(raws), channels, size, size), np.uint8)
    left = list(Decoder(GPU).fill(images, enumerate(raws), None, "bilinear", squashed=False))
    for row, raw in left:
        images[row] = decode.square(raw, size, channels)
    return images, len(left)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_nearly_the_cpus(channels: int) -> None:
    found, left = decoded(RAWS, channels)
    odd = sum(not decode.pixels_for_gpu(raw) for raw in RAWS)
    assert left == odd < 5, "grey and progressive images are decoded too, but for grey ones that name a subsampling"
    for row, raw in enumerate(RAWS):
        known = decode.square(raw, 96, channels).astype(int)
        assert np.abs(found[row] - known).mean() < 3, f"image {row}"  # chroma is repeated, not interpolated


def test_bits_do_not_depend_on_the_images_that_are_decoded_together() -> None:
    whole, _ = decoded(RAWS, 3)
    for start in range(0, len(RAWS), 7):
        part = slice(start, start + 7)
        assert np.array_equal(decoded(RAWS[part], 3)[0], whole[part])
        assert np.array_equal(decoded(RAWS[part][::-1], 3)[0], whole[part][::-1])
    assert np.array_equal(decoded([RAWS[5]], 3)[0][0], whole[5])


def test_a_damaged_image_leaves_the_others_as_they_are() -> None:
    damaged = RAWS[3][:200] + RAWS[3][-40:]
    images = np.zeros((20, 3, 96, 96), np.uint8)
    left = list(
        Decoder(GPU).fill(images, enumerate([*RAWS[:3], damaged, *RAWS[4:20]]), None, "bilinear", squashed=False)
    )
    assert [row for row, _ in left] in ([3], [])
    whole, _ = decoded(RAWS[:20], 3)
    assert np.array_equal(np.delete(images, 3, 0), np.delete(whole, 3, 0))


def test_a_run_decodes_on_the_gpu_and_resumes_with_the_same_losses(tmp_path: Path) -> None:
    for number, raw in enumerate(RAWS):
        folder = tmp_path / "photos" / ("train" if number < 48 else "val") / f"class {number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(raw)
    file = tmp_path / "photos.py"
    file.write_text(
        "from raytrain import CNN, SGD, Augment, Experiment, ImageFolder, Scaling\n"
        f"data = ImageFolder({str(tmp_path / 'photos')!r}, size=64, crop=48, whole=True, decode='gpu',\n"
        "    augment=Augment(crop='random_resized'))\n"
        "experiment = Experiment(model=CNN(channels=(8,)), data=data, optimizer=SGD(lr=0.01), batch_size=8, epochs=2,\n"
        "    scaling=Scaling(workers=1))\n"
    )

    def run(command: str, *rest: str) -> None:
        words = [sys.executable, "-m", "raytrain.cli", command, *rest]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=dict(os.environ))
        assert done.returncode == 0, done.stderr

    run("train", str(file), "--out", str(tmp_path), "--name", "gpu")
    run("train", str(file), "--out", str(tmp_path), "--name", "cpu", "--data.decode", "cpu")
    run("train", str(file), "--out", str(tmp_path), "--name", "again", "--steps", "5")
    run("resume", str(tmp_path / "again"), "--steps", "12")
    losses = {name: Run(tmp_path / name).metrics()["train_loss"].to_pylist() for name in ("gpu", "cpu", "again")}
    assert losses["gpu"] == pytest.approx(losses["cpu"], rel=0.02)
    assert losses["again"][-1] == pytest.approx(losses["gpu"][-1], rel=1e-3)
    assert json.loads((tmp_path / "again" / "experiment.json").read_text())["data"]["decode"] == "gpu"
