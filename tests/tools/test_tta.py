"""Test-time augmentation: the mean of the probabilities of several views, worked out plainly."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.commands import VALUE, digit_files, fails, finished, make_run, succeeds, without_ray
from torch import nn
from torchmetrics.functional.classification import multiclass_accuracy

from raytrain import Augment, Classification, Digits, RandomAffine, RandomErasing, Run
from raytrain.data.prepare import Prepare

__all__ = ["digit_files", "finished", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]
SHIFTED = Digits(augment=Augment(operations=(RandomAffine(translate=(0.2, 0.2)), RandomErasing(p=0.3)), mixup=0.1))


def shares(run: Run, data: Digits, views: int | None, count: int = 359) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean of the probabilities of an image and its mirror image (None), or of its first views."""
    index = data.index()["val"]
    stored, ids = torch.from_numpy(data.read(index, np.arange(count))), np.arange(count)
    prepare, model = Prepare(data, index), run.model()
    plain = prepare.plain({"image": stored})["image"]
    every = [plain, plain.flip(-1)] if views is None else [plain]
    for epoch in range(1, views or 1):
        every.append(prepare.augmented({"image": stored}, ids, run.experiment.seed, epoch, mixed=False)["image"])
    with torch.no_grad():
        return torch.stack([model(one).softmax(1) for one in every]).mean(0), torch.from_numpy(index.labels[:count])


@pytest.fixture(scope="module")
def shifted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("tta") / "run", replace(VALUE, data=SHIFTED), steps=15)


@pytest.mark.parametrize(("tta", "views"), [("flip", None), ("4", 4)])
def test_evaluate_averages_probabilities(shifted: Run, capsys: Capture, tta: str, views: int | None) -> None:
    result = json.loads(succeeds(capsys, "evaluate", shifted.path, "--tta", tta, "--json"))
    found, labels = shares(shifted, SHIFTED, views)
    assert result["views"] == (views or 2) and result["count"] == 359
    assert result["accuracy"] == pytest.approx(multiclass_accuracy(found, labels, 10, average="micro").item(), abs=1e-6)
    assert result["loss"] == pytest.approx(nn.functional.nll_loss(found.log(), labels).item(), abs=1e-6)
    plain = json.loads(succeeds(capsys, "evaluate", shifted.path, "--json"))
    assert "views" not in plain and abs(plain["loss"] - result["loss"]) > 1e-4


@pytest.mark.parametrize(("tta", "views"), [("flip", None), ("3", 3)])
def test_predict_averages_probabilities(
    shifted: Run, digit_files: Path, tmp_path: Path, capsys: Capture, tta: str, views: int | None
) -> None:
    succeeds(capsys, "predict", shifted.path, digit_files, "--tta", tta, "--out", tmp_path / "p.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    expected, _ = shares(shifted, SHIFTED, views, 12)
    found = torch.tensor([[row[f"p_{digit}"] for digit in range(10)] for row in rows])
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("tta", ["mirror", "1", "0", "-3", "2.5", "1001"])
def test_another_value_is_refused(shifted: Run, capsys: Capture, tta: str) -> None:
    said = fails(capsys, "evaluate", shifted.path, f"--tta={tta}")
    assert f"tta must be flip or a number of views from 2 to 1000, got '{tta}'; take flip, or 8" in said


def test_views_need_an_augmentation(finished: Run, capsys: Capture) -> None:
    assert "that changes no image by itself, in data.augment; take flip" in fails(
        capsys, "evaluate", finished.path, "--tta", "4"
    )


@dataclass(frozen=True)
class Other(Classification):
    """Still a classification."""


def test_a_task_of_ones_own_that_classifies_is_averaged(tmp_path: Path, capsys: Capture) -> None:
    run = make_run(tmp_path / "run", replace(VALUE, task=Other()), steps=2)
    result = json.loads(succeeds(capsys, "evaluate", run.path, "--tta", "flip", "--json"))
    found, labels = shares(run, Digits(), None)
    assert result["accuracy"] == pytest.approx(multiclass_accuracy(found, labels, 10, average="micro").item(), abs=1e-6)
