"""`fit="squash"`: the whole image becomes the square, alike in folders, packs, mixtures and predictions of files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.commands import make_run, without_ray
from helpers.packs import packed
from PIL import Image
from torchvision.transforms.v2 import functional

import raytrain
from raytrain import CNN, Experiment, ImageFolder, Mixed, Packed
from raytrain.data.checks import checked_indices, checked_read

__all__ = ["without_ray"]

COUNT = 6


@pytest.fixture
def folder(tmp_path: Path) -> str:
    images = np.random.default_rng(0).integers(0, 256, (4 * COUNT, 20, 34, 3), np.uint8)
    for number, image in enumerate(images):
        file = tmp_path / "images" / ("train" if number % 2 else "val") / "ab"[number // 2 % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image if number % 3 else image.transpose(1, 0, 2)).save(file)
    return str(tmp_path / "images")


def pixels(data: Any) -> np.ndarray:
    index = checked_indices(data)["train"]
    found = checked_read(data, index, np.arange(len(index)))
    return found["image"]


def expected(folder: str, side: int) -> list[np.ndarray]:
    """What torchvision makes of the whole images."""
    files = sorted(Path(folder, "train").rglob("*.png"))
    tensors = [torch.from_numpy(np.asarray(Image.open(file)).transpose(2, 0, 1).copy()) for file in files]
    return [functional.resize(tensor, [side, side], antialias=True).numpy() for tensor in tensors]


def test_pixels_are_those_of_the_whole_image(folder: str, tmp_path: Path) -> None:
    wanted = expected(folder, 12)
    for cache in ("off", str(tmp_path / "cache")):
        data = ImageFolder(folder, size=12, fit="squash", cache=cache)
        assert np.array_equal(pixels(data), wanted) and data.input_side == 12
    cut = ImageFolder(folder, size=12, cache="off")
    assert not np.array_equal(pixels(cut), wanted)
    entries = [ImageFolder(folder, size=12, fit=fit, cache=str(tmp_path)) for fit in ("auto", "cut", "squash")]
    names = [data.cache_entry(checked_indices(data)["train"]) for data in entries]
    assert names[0] == names[1] != names[2], "the cache keeps them apart"
    assert ImageFolder(folder, size=256).input_side == 224 != ImageFolder(folder, size=256, fit="squash").input_side


@pytest.mark.parametrize("codec", ["original", "raw"])
def test_a_pack_and_a_mixture_do_as_their_source(folder: str, tmp_path: Path, codec: str) -> None:
    data = ImageFolder(folder, size=12, fit="squash", cache="off")
    packed(data, tmp_path / "pack", codec=codec)
    there = Packed(str(tmp_path / "pack"), cache="off")
    assert there.squashed and there.input_side == 12 and np.array_equal(pixels(there), expected(folder, 12))
    if codec == "original":
        cut = ImageFolder(folder, size=12, cache="off")
        assert np.array_equal(pixels(replace(there, fit="cut")), pixels(cut))
    data = replace(data, crop=12, mean=(0.5,), std=(0.5,))
    mixed = Mixed(sources=(data, data), crop=12, mean=(0.5,), std=(0.5,))
    assert mixed.squashed


@pytest.mark.usefixtures("without_ray")
def test_files_are_predicted_as_the_data(folder: str, tmp_path: Path) -> None:
    data = ImageFolder(folder, size=12, fit="squash", cache="off", mean=(0.5,), std=(0.5,))
    run = make_run(tmp_path / "run", Experiment(CNN(channels=(4,)), data))
    own = raytrain.predict(run, split="val")
    files = raytrain.predict(run, [Path(folder, row["sample"]) for row in own])
    assert [row["probabilities"] for row in files] == [row["probabilities"] for row in own]
