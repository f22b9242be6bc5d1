"""What tasks and models of users answer, in tables, files, programs and servers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from helpers.commands import digit_files, fails, make_run, succeeds, without_ray
from torch import nn

from raytrain import CNN, Classification, Digits, Experiment, Index, Model, MultiLabel, Regression, Run, UserError
from raytrain.report import run_classes
from raytrain.tools import features, inference
from raytrain.tools.answers import Answers
from raytrain.tools.columns import for_json

__all__ = ["digit_files", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]


@dataclass(frozen=True)
class Own(Classification):
    """A task with rows and predictions of its own."""

    rows: str = ""
    first: int = 0

    def bound(self, index: Index) -> Own:
        return replace(self, first=7)

    def per_class(self, sums: Mapping[str, np.ndarray], classes: tuple[str, ...]) -> list[dict[str, Any]]:
        names = ["line\nbreak", "\x1b[31mred", *(f"class {number}" for number in range(40))]
        rows: list[dict[str, Any]] = [{"class": name, "score": math.nan, "size": np.int64(3)} for name in names]
        del rows[1]["score"]
        return rows

    def predictions(self, outputs: torch.Tensor, classes: tuple[str, ...]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [{"first": self.first, "best": one.max().cpu().numpy()[()]} for one in outputs]
        if self.rows == "none":
            return rows[1:]
        if self.rows == "more":
            rows[-1]["note"] = "x"
        if self.rows == "lists":
            return [row | {"box": [1, 2]} for row in rows]
        return rows


def own(path: Path, rows: str = "") -> Run:
    return make_run(path, Experiment(CNN(channels=(2,)), Digits(), Own(rows=rows)), steps=2)


def not_json(name: str) -> None:
    pytest.fail(f"{name} is not JSON")


def test_rows_of_classes_need_not_be_alike(tmp_path: Path, capsys: Capture) -> None:
    run = own(tmp_path / "run")
    lines = succeeds(capsys, "evaluate", run.path).splitlines()
    table = lines[[line.split() for line in lines].index(["class", "score", "size"]) + 1 :]
    assert [line.split() for line in table[:3]] == [
        ["line", "break", "nan", "3"],
        ["red", "3"],
        "class 0 nan 3".split(),
    ]
    assert len(table) == 42, "there is no f1 to choose by"
    result = json.loads(succeeds(capsys, "evaluate", run.path, "--json"), parse_constant=not_json)
    assert result["per_class"][0] == {"class": "line\nbreak", "score": None, "size": 3}
    page = run_classes.shown({"per_class": [{"class": "x", "score": 0.5, "size": 3}, {"class": "y", "size": 4}]})
    assert re.search(r"y</th><td[^>]*>-</td><td[^>]*>4</td>", page), page
    many = run_classes.shown({"per_class": [{"class": str(number), "size": 1} for number in range(1001)]})
    assert "Per class (the first 1,000 of 1,001)" in many


def test_predictions_are_checked(tmp_path: Path, capsys: Capture, digit_files: Path) -> None:
    run = own(tmp_path / "none", "none")
    said = fails(capsys, "predict", run.path, digit_files)
    assert "must return a dict for each of the 12 samples, got 11, in Own.predictions (" in said
    run = own(tmp_path / "more", "more")
    for suffix in ("csv", "parquet"):
        said = fails(capsys, "predict", run.path, digit_files, "--out", tmp_path / f"x.{suffix}")
        assert "the same columns for each sample, got also note" in said
    succeeds(capsys, "predict", run.path, digit_files, "--out", tmp_path / "x.jsonl")
    run = own(tmp_path / "lists", "lists")
    said = fails(capsys, "predict", run.path, digit_files, "--out", tmp_path / "x.csv")
    assert ".csv cannot hold the task's predictions: Unsupported Type:list" in said
    rows = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert isinstance(rows[0]["best"], float), "numbers of NumPy are numbers"


def test_the_task_knows_its_classes_wherever_it_predicts(tmp_path: Path, digit_files: Path) -> None:
    run, file = own(tmp_path / "run"), digit_files / "00.png"
    (row,) = inference.predict(run, [str(file)])
    answers = Answers(run)
    (answer,) = answers.predict([answers.decode(file.read_bytes())])
    assert row["first"] == answer["first"] == 7
    assert answer["best"] == pytest.approx(float(row["best"]), abs=1e-6) and json.dumps(answer)


@pytest.mark.parametrize("name", ["path", "sample", "error"])
def test_a_column_of_the_task_hides_no_other(tmp_path: Path, capsys: Capture, digit_files: Path, name: str) -> None:
    run = make_run(tmp_path / "run", Experiment(CNN(channels=(2,)), Digits(), Regression(target=name)), steps=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Regression, "predictions", lambda self, outputs, classes: [{name: 0.5} for _ in outputs])
        succeeds(capsys, "predict", run.path, digit_files, "--out", tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.column_names == ["path", f"{name}_"] and table[f"{name}_"].to_pylist() == [0.5] * 12


def test_labels_with_spaces_can_be_told_apart() -> None:
    task = MultiLabel(classes=("traffic light", "light", 'a "b"', "ü"))
    (row,) = task.predictions(torch.ones(1, 4), ())
    assert row["labels"] == '"traffic light" light "a \\"b\\"" ü'


def test_numbers_that_are_not_finite_are_null() -> None:
    given = {"a": [math.nan, 1.5], "b": np.float32(math.inf), "c": np.arange(2), "d": (True, None, "x")}
    assert for_json(given) == {"a": [None, 1.5], "b": None, "c": [0, 1], "d": [True, None, "x"]}


class Scaled(nn.Module):
    """Logits, of which the last one is always `value`."""

    def __init__(self, value: float):
        super().__init__()
        self.value, self.head = value, nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = self.head(images.flatten(1))
        return found if self.training else torch.cat([found[:, :9], torch.full_like(found[:, :1], self.value)], 1)


@dataclass(frozen=True)
class Scales(Model):
    value: float = 0.0

    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return Scaled(self.value)


@pytest.mark.parametrize("suffix", ["pt2", "onnx"])
def test_programs_may_rule_classes_out_and_nan_is_named(tmp_path: Path, capsys: Capture, suffix: str) -> None:
    run = make_run(tmp_path / "minus", Experiment(Scales(-math.inf), Digits()), steps=2)
    file = tmp_path / f"model.{suffix}"
    assert "on 64 validation samples" in succeeds(capsys, "export", run.path, file) and file.is_file()
    run = make_run(tmp_path / "nan", Experiment(Scales(math.nan), Digits()), steps=2)
    said = fails(capsys, "export", run.path, tmp_path / f"nan.{suffix}")
    assert "the model's own outputs are not a number for 64 of 64 validation samples" in said
    succeeds(capsys, "predict", run.path, "--split", "val", "--out", tmp_path / "nan.jsonl")
    for line in (tmp_path / "nan.jsonl").read_text().splitlines():
        assert json.loads(line, parse_constant=not_json)["probability"] is None


class Rounded(nn.Module):
    """Logits of bfloat16, which NumPy does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(images.flatten(1)).bfloat16()


@dataclass(frozen=True)
class Rounds(Model):
    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return Rounded()


def test_outputs_that_onnx_runtime_cannot_give(tmp_path: Path, capsys: Capture) -> None:
    run = make_run(tmp_path / "run", Experiment(Rounds(), Digits()), steps=2)
    said = fails(capsys, "export", run.path, tmp_path / "model.onnx")
    assert "ONNX Runtime cannot run the program: RuntimeError: No corresponding Numpy type" in said
    succeeds(capsys, "export", run.path, tmp_path / "model.pt2")


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1,), ()])
def test_numbers_may_have_no_axis_of_their_own(shape: tuple[int, ...]) -> None:
    task, outputs = Regression(), torch.arange(3.0)[: math.prod(shape)].reshape(shape)
    count = math.prod(shape)
    assert [row["prediction"] for row in task.predictions(outputs, ())] == [0.0, 1.0, 2.0][:count]
    assert task.fitted(outputs, torch.zeros(count)).shape == (count,)
    with pytest.raises(UserError, match=r"the model gives \["):
        task.fitted(outputs, torch.zeros(count + 1))


class Named(nn.Module):
    """Returns a dict, as a layer that collects the outputs of others does."""

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"first": images.flatten(1), "second": images}


def test_features_of_a_layer_that_returns_a_dict() -> None:
    model, images = nn.Sequential(Named()), torch.rand(2, 3, 4, 4)
    assert torch.equal(features.Features(model, features.Layer("0", False))(images), images.flatten(1))
    model = nn.Sequential(nn.Identity())
    model[0].forward = lambda images: None  # type: ignore[method-assign]
    with pytest.raises(UserError, match="the layer '0' gives no tensor"):
        features.Features(model, features.Layer("0", False))(images)


@dataclass(frozen=True)
class Four(Digits):
    """Images of four channels."""

    def index(self) -> dict[str, Index]:
        found = super().index()
        return {split: Index(one.labels, one.classes, (4, 8, 8), split=split) for split, one in found.items()}

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        return super().read(super().index()[index.split], samples).repeat(4, 1)


def test_image_files_have_one_or_three_channels(tmp_path: Path, capsys: Capture, digit_files: Path) -> None:
    run = make_run(tmp_path / "run", Experiment(CNN(channels=(2,)), Four()), steps=2)
    said = fails(capsys, "predict", run.path, digit_files)
    assert "image files become 1 or 3 channels, and this run's images have 4, in its data" in said
    with pytest.raises(UserError, match="this run's images have 4"):
        Answers(run)
    assert len(succeeds(capsys, "predict", run.path, "--split", "val").splitlines()) == 359
