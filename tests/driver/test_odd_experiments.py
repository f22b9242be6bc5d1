"""What a plan makes of samples that are skipped, and of models that return a dict."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from helpers.scenes import Scenes, Small, experiment
from torch import nn

from raytrain import Index, Regression, Segmentation, UserError
from raytrain.driver.baseline import baseline
from raytrain.driver.plan import make
from raytrain.driver.resources import Node, Resources
from raytrain.errors import BadSample


@dataclass(frozen=True)
class Damaged(Scenes):
    """Scenes of which sample 3 of each split cannot be read."""

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        if 3 in samples:
            raise BadSample("scene 3", "it is damaged")
        return super().read(index, samples)


def _sizes(split: str) -> np.ndarray:
    index = Scenes(wanted="size").index()[split]
    return np.delete(Scenes(wanted="size").read(index, np.arange(len(index)))["size"], 3)


def test_a_baseline_leaves_out_what_is_skipped() -> None:
    e = experiment(Regression(target="size"), "size", 1)
    skipping, stopping = (Damaged(wanted="size", on_bad_sample=one) for one in ("skip", "error"))
    scores = baseline(replace(e, data=skipping), skipping.index()).scores
    train, val = (_sizes(split) for split in ("train", "val"))
    assert scores["val_loss"] == pytest.approx(np.square(val - train.mean()).mean(), rel=1e-5)
    with pytest.raises(UserError, match=r"cannot read sample: it is damaged, scene 3; .*--data.on_bad_sample skip"):
        baseline(replace(e, data=stopping), stopping.index())


@dataclass(frozen=True)
class Unfit(Scenes):
    """Scenes of which samples 3 and 5 of one split have no size, or whose masks are ignored."""

    split: str = "train"

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        found = super().read(index, samples)
        if index.split == self.split and self.wanted == "size":
            found["size"][np.isin(samples, (3, 5))] = np.nan
        elif index.split == self.split:
            found["mask"][:] = 255
        return found


@pytest.mark.parametrize("split", ["train", "val"])
def test_targets_that_no_loss_can_take_are_named(split: str) -> None:
    data = Unfit(wanted="size", split=split)
    found = baseline(replace(experiment(Regression(target="size"), "size", 1), data=data), data.index())
    some = f"the targets of 2 of {len(data.index()[split])} samples of {split} are not finite, as that of sample 3: "
    assert found.note.startswith(some) and not found.line and not found.scores
    data = Unfit(wanted="mask", split=split)
    found = baseline(replace(experiment(Segmentation(), "mask", 4, True), data=data), data.index())
    assert found.note == f"no pixel of the masks of {split} counts: all are ignored" and not found.line


class Boxed(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": self.model(images), "aux": images}


@dataclass(frozen=True)
class InDict(Small):
    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return Boxed(super().build(sample, classes))


def test_a_model_that_returns_a_dict_is_told_how_to_return_a_tensor() -> None:
    e = replace(experiment(Segmentation(), "mask", 4, True), model=InDict(4, True))
    with pytest.raises(UserError, match=r"returns a dict of out, aux.*; let .* return self\.net\(images\)\['out'\]"):
        make(e, lambda: Resources((Node("n0", 2.0, 0.0, 2**33),), "this machine"), "runs/x")
