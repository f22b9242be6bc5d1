"""Progressive resizing: the size of images is a function of the epoch, for any number of workers and after a resume."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.cut_runs import BASE, cut_rank, rows, weights
from helpers.ranks import Ranks, losses, new_run, on_workers, reference, train_rank
from torch import nn
from torchvision.transforms.v2 import functional as F

from raytrain import (
    SGD,
    Augment,
    Data,
    Digits,
    Experiment,
    Field,
    HorizontalFlip,
    Index,
    Model,
    Progressive,
    RandomCrop,
    config,
)
from raytrain.config import from_dict, to_dict
from raytrain.data.prepare import Prepare
from raytrain.driver import model_check
from raytrain.driver.first_batch import blank
from raytrain.errors import UserError

GROWS = Progressive(start=4, until=0.75, multiple=2)


@dataclass(frozen=True)
class Pooled(Model):
    """Takes images of any size, and notes their sides."""

    file: str = ""

    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, classes)
        )
        if self.file:
            net.register_forward_pre_hook(self.note)
        return net

    def note(self, module: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        with open(self.file, "a") as file:
            file.write(f"{'train' if module.training else 'val'} {inputs[0].shape[-1]}\n")


FLIPPED = Augment(operations=(HorizontalFlip(),), progressive=GROWS)
PLAIN = Experiment(Pooled(), Digits(augment=FLIPPED), optimizer=SGD(lr=0.05, momentum=0.9), batch_size=256, epochs=4)


@pytest.mark.parametrize(
    ("value", "epochs", "full", "sides"),
    [
        (Progressive(start=128), 10, 224, [128, 128, 160, 160, 192, 192, 224, 224, 224, 224]),
        (Progressive(start=100, end=150, until=1.0, multiple=1), 5, 200, [100, 110, 120, 130, 140]),
        (Progressive(start=128, until=0.01), 3, 224, [128, 224, 224]),
        (Progressive(start=224), 3, 224, [224, 224, 224]),
        (Progressive(start=150, multiple=64), 4, 200, [150, 192, 192, 200]),
        (GROWS, 4, 8, [4, 6, 6, 8]),
        (Progressive(), 3, 8, [8, 8, 8]),
    ],
)
def test_the_side_is_a_function_of_the_epoch(value: Progressive, epochs: int, full: int, sides: list[int]) -> None:
    assert [value.side(epoch, epochs, full) for epoch in range(epochs)] == sides
    assert value.sides(epochs, full) == {side: sides.index(side) for side in sides}


@pytest.mark.parametrize("flat", [True, False])
def test_images_are_torchvisions_resized_ones_and_masks_move_along(flat: bool) -> None:
    fields = Field("image", (3, 24, 24), kind="image"), Field("mask", (24, 24), "int64", "mask")
    index, ids = Index(fields=fields, count=9), np.arange(9)
    augment = replace(Augment(flip=0.5) if flat else FLIPPED, progressive=Progressive(start=10, multiple=2))
    data = Data(mean=(0.5,), std=(0.2,), augment=augment)
    data.sample(index)
    stored = torch.randint(0, 256, (9, 3, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    arrays = {"image": stored, "mask": stored[:, 0].long()}
    whole, small = (Prepare(data, index).augmented(arrays, ids, 1, 0, False, epochs) for epochs in (None, 10))
    assert whole["image"].shape == (9, 3, 24, 24) and small["mask"].shape == (9, 10, 10)
    expected = F.resize(whole["image"] * 0.2 + 0.5, [10, 10], antialias=True)
    torch.testing.assert_close(small["image"], (expected - 0.5) / 0.2, atol=1e-5, rtol=0)
    assert torch.equal(small["mask"], F.resize(whole["mask"], [10, 10], F.InterpolationMode.NEAREST_EXACT))
    one = Prepare(data, index).augmented({k: v[4:5] for k, v in arrays.items()}, ids[4:5], 1, 0, False, 10)
    assert torch.equal(one["image"], small["image"][4:5])


def grown(
    e: Experiment, images: torch.Tensor, labels: torch.Tensor, epoch: int, ids: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    whole = Prepare(e.data, e.data.index()["train"]).augmented({"image": images}, ids, e.seed, epoch, False)["image"]
    return F.resize(whole, [[4, 6, 6, 8][epoch]] * 2, antialias=True), labels


@pytest.mark.parametrize("world", [1, 2])
def test_losses_equal_a_plain_loops(ranks: Ranks, tmp_path: Path, world: int) -> None:
    e = on_workers(replace(PLAIN, model=Pooled(str(tmp_path / "sides.txt"))), world)
    run = new_run(tmp_path / "run", e)
    assert ranks.run(world, train_rank, e, run) == ["completed"] * world
    found = losses(run)
    np.testing.assert_allclose(found, reference(PLAIN, len(found), grown)[0], rtol=1e-5)
    seen = [line.split() for line in (tmp_path / "sides.txt").read_text().splitlines()]
    assert {side for kind, side in seen if kind == "val"} == {"8"}
    trained = [side for kind, side in seen if kind == "train"]
    assert sorted(trained) == sorted((["4"] * 6 + ["6"] * 12 + ["8"] * 6) * world)


def test_a_run_resumes_bit_identical_in_an_epoch_of_small_images(ranks: Ranks, tmp_path: Path) -> None:
    augment = Augment(operations=(RandomCrop(padding=1),), progressive=GROWS)
    e = on_workers(replace(BASE, model=Pooled(), data=Digits(augment=augment), epochs=2), 2)
    whole, cut = new_run(tmp_path / "whole", e), new_run(tmp_path / "cut", e)
    ranks.run(2, train_rank, e, whole)
    for call in (13, 19):  # in both epochs
        ranks.run(2, cut_rank, e, cut, call)
    ranks.run(2, train_rank, e, cut)
    assert rows(cut) == rows(whole) and weights(cut) == weights(whole)


def test_it_survives_json_and_old_runs_have_none() -> None:
    value = to_dict(PLAIN.data)
    assert from_dict(Data, {"class": "raytrain:Digits"} | value, "x") == PLAIN.data
    del value["augment"]["progressive"], value["augment"]["operations"]
    assert from_dict(Digits, value, "x") == Digits()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": 9}, "start = 9 is out of range, in Progressive; give a value of at most 8"),
        ({"end": 9}, "end = 9 is out of range, in Progressive; give a value of at most 8"),
        ({"end": 3}, "start = 4 .* of at most 3"),
        ({"until": 0.0}, "until = 0.0 .*above 0 and at most 1"),
        ({"start": 0}, "start = 0 "),
    ],
)
def test_values_that_do_not_suit_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        data = PLAIN.data
        for name, value in changes.items():
            data = config.replace(data, f"augment.progressive.{name}", value)
        data.sample(data.index()["train"])


def test_images_that_are_not_square_or_no_input_are_refused() -> None:
    data = Data(augment=Augment(progressive=GROWS))
    with pytest.raises(UserError, match="progressive resizing is for squares, and the model sees 8 x 9 pixels"):
        data.sample(Index(fields=(Field("image", (3, 8, 9), kind="image"),), count=3))
    with pytest.raises(UserError, match="progressive resizing is for models of images, and the input is 'x'"):
        data.sample(Index(fields=(Field("x", (3,)), Field("image", (3, 8, 8), kind="image")), count=3))


def test_the_plan_passes_every_size_through_the_model() -> None:
    module = Pooled().build((1, 8, 8), 10)
    digit = blank(PLAIN, PLAIN.data.index()["train"])
    [note] = model_check.check_sides(PLAIN, module, digit, PLAIN.epochs)
    assert note == "images grow: 4 pixels from epoch 1, 6 pixels from epoch 2, 8 pixels from epoch 4"
    stepped = replace(PLAIN, epochs=1, steps=19)  # in epochs of 6
    assert model_check.check_sides(stepped, module, digit, 19 / 6) == [note]
    flat = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(
        UserError, match=r"the model cannot take images of 4 x 4 pixels: .*progressive; use a model that pools"
    ):
        model_check.check_sides(PLAIN, flat, digit, PLAIN.epochs)
    many = config.replace(replace(PLAIN, epochs=9, compile=True), "data.augment.progressive.multiple", 1)
    with pytest.raises(UserError, match=r"5 sizes of images are too many for torch.compile, .*--no_compile"):
        model_check.check_sides(many, module, digit, 9)
    assert model_check.check_sides(replace(PLAIN, data=Digits()), module, digit, 4) == []
