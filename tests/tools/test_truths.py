"""The true answer and the loss of each sample beside its prediction: `predict --split`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from helpers.commands import make_run, succeeds, without_ray
from PIL import Image

import raytrain
from raytrain import CNN, Batch, Classification, Digits, Experiment, ImageFolder, Index, Regression, Supervised

__all__ = ["without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")


class Unlabelled(Digits):
    """Digits with a test split of which nothing is known."""

    def index(self) -> dict[str, Index]:
        found = super().index()
        return found | {"test": replace(found["val"], labels=None, classes=(), split="test")}


@dataclass(frozen=True)
class Halves(Supervised):
    """Whether a digit is above 4, by a loss of its own."""

    def wanted(self, batch: Batch) -> torch.Tensor:
        return (batch.labels > 4).float()

    def each(self, outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return (outputs[:, 0] - wanted).abs()

    def predictions(self, outputs: torch.Tensor, classes: Sequence[str]) -> list[dict[str, Any]]:
        return [{"loss": value, "high": value > 0.5} for value in outputs[:, 0].tolist()]

    def truths(self, batch: Batch, classes: Sequence[str]) -> list[dict[str, Any]]:
        return [{"true_high": digit > 4} for digit in batch.labels.tolist()]


@dataclass(frozen=True)
class Silent(Halves):
    """A task that adds up something else than the loss of each sample."""

    def sums(self, model: torch.nn.Module, batch: Batch) -> dict[str, Any]:
        return {"loss": model(batch.input).sum(), "count": torch.tensor(len(batch))}


def digits(folder: Path, task: Supervised | None = None, data: Digits | None = None) -> Any:
    return make_run(folder, Experiment(CNN((4,)), data or Digits(), task or Classification()))


def test_features_of_a_split_have_the_true_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, file = digits(tmp_path / "run"), tmp_path / "features.parquet"
    succeeds(capsys, "predict", run.path, "--split", "val", "--features", "--out", file)
    table = pq.read_table(file)
    assert table.column_names == ["sample", "features", "true_label"]
    assert table["true_label"].to_pylist() == [str(label) for label in Digits().index()["val"].labels.tolist()]


def test_a_split_without_labels_is_predicted_as_before(tmp_path: Path) -> None:
    rows = raytrain.predict(digits(tmp_path / "run", data=Unlabelled()), split="test")
    assert len(rows) == 359 and [*rows[0]] == ["sample", "label", "probability", "probabilities"]
    batch = Batch({"image": torch.zeros(2, 1, 8, 8)}, np.arange(2))
    assert Regression().compared(torch.zeros(2, 1), batch, ()) == [{}, {}]


def test_a_task_of_ones_own_has_the_loss_and_its_truths(tmp_path: Path) -> None:
    rows = raytrain.predict(digits(tmp_path / "run", Halves()), split="val")
    labels = Digits().index()["val"].labels
    assert [*rows[0]] == ["sample", "loss_", "high", "true_high", "loss"]
    assert [row["true_high"] for row in rows] == (labels > 4).tolist()
    assert [row["loss"] for row in rows] == pytest.approx([abs(row["loss_"] - row["true_high"]) for row in rows])
    rows = raytrain.predict(digits(tmp_path / "silent", Silent()), split="val")
    assert [*rows[0]] == ["sample", "loss_", "high", "true_high"]


def test_other_data_keep_the_names_of_their_classes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 4, 8, 8), np.uint8)
    for place, name in ("ours", "a"), ("ours", "b"), ("theirs", "b"):
        (tmp_path / place / name).mkdir(parents=True)
        for number, image in enumerate(pixels["ab".index(name)]):
            Image.fromarray(image).save(tmp_path / place / name / f"{number}.png")
    data = ImageFolder(str(tmp_path / "ours"), 8, channels=1, mean=(0.5,), std=(0.5,))
    run = make_run(tmp_path / "run", Experiment(CNN((4,)), data))
    place, out = tmp_path / "theirs", tmp_path / "rows.jsonl"
    succeeds(capsys, "predict", run.path, "--split", "val", "--data.root", place, "--out", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["true_label"] for row in rows] == ["b"] * 4 and "loss" not in rows[0], "the model's b is another number"
