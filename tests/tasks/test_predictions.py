"""What `predict` writes for each task, of image files and of a split of the run's own data."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from helpers.commands import fails, succeeds, without_ray
from helpers.ranks import new_run, train_rank
from helpers.scenes import experiment
from PIL import Image
from torch import nn

from raytrain import F1, Classification, Experiment, MultiLabel, Regression, Run, Segmentation, Task
from raytrain.data.checks import checked_read
from raytrain.tools import inference

__all__ = ["without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]


def trained(folder: Path, e: Experiment) -> Run:
    run = new_run(folder, e)
    assert train_rank(0, 1, e, run) == "completed"
    return Run(run)


def outputs(run: Run, split: str = "val", mirrored: bool = False) -> torch.Tensor:
    """What the model answers to images or their mirror images, worked out plainly."""
    data = run.experiment.data
    index = data.index()[split]
    images = torch.from_numpy(checked_read(data, index, np.arange(len(index)))["image"])
    with torch.no_grad():
        return run.model()(((images.flip(-1) if mirrored else images) / 255 - 0.5) / 0.5)


def test_masks_become_pictures_of_the_classes_numbers(tmp_path: Path, capsys: Capture) -> None:
    run = trained(tmp_path / "run", experiment(Segmentation(), "mask", 4, True))
    expected = outputs(run).argmax(1)
    file = tmp_path / "answers.csv"
    assert succeeds(capsys, "predict", run.path, "--split", "val", "--out", file) == f"wrote 21 predictions to {file}\n"
    with open(file, newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [row["sample"] for row in rows] == [f"sample {number}" for number in range(21)]
    for row, mask in zip(rows, expected, strict=True):
        with Image.open(row["mask"]) as picture:
            assert picture.mode == "L" and np.array_equal(np.array(picture), mask.numpy())
    assert Path(rows[0]["mask"]) == tmp_path / "answers_masks" / "000000.png", "no file has its name"
    first, loss = succeeds(capsys, "predict", run.path, "--split", "val").splitlines()[0].split("  loss=")
    assert loss == f"{float(rows[0]['loss']):.4f}"
    share = float((expected[0] == expected[0].max()).double().mean())
    assert first.startswith("sample 0  ") and first.endswith(f"{'abcd'[int(expected[0].max())]}:{share:.3f}")
    named = trained(tmp_path / "named", experiment(Segmentation(classes=("sky", "sea", "a b", "d")), "mask", 4, True))
    first = succeeds(capsys, "predict", named.path, "--split", "val").splitlines()[0].split("  loss=")[0]
    assert first.endswith(f"{('sky', 'sea', 'a b', 'd')[int(expected[0].max())]}:{share:.3f}")
    picture = tmp_path / "some.png"
    pixels = np.random.default_rng(0).integers(0, 256, (6, 6), dtype=np.uint8)
    Image.fromarray(pixels).save(picture)
    (tmp_path / "a b").mkdir()
    for name in ("some.png", "x;y?.v2.png"):
        Image.fromarray(pixels).save(tmp_path / "a b" / name)
    sources = picture, tmp_path / "a b" / "some.png", tmp_path / "a b" / "x;y?.v2.png"
    succeeds(capsys, "predict", run.path, *sources, "--out", tmp_path / "more.jsonl")
    assert sorted(one.name for one in (tmp_path / "more_masks").iterdir()) == [
        "000000_some.png",
        "000001_some.png",
        "000002_x_y_.v2.png",
    ]
    (row,) = inference.predict(run, [str(picture)])
    with torch.no_grad():
        answer = run.model()((torch.from_numpy(pixels)[None, None] / 255 - 0.5) / 0.5).argmax(1)[0]
    assert row["path"] == str(picture) and np.array_equal(row["mask"], answer.numpy())


@pytest.mark.parametrize(
    ("wanted", "given", "names"),
    [
        ("sizes", (), ["sizes_0", "sizes_1"]),
        ("size", (), ["size"]),
        ("sizes", ("sky", "path"), ["sky", "path_"]),
        ("size", ("cm",), ["cm"]),
    ],
)
def test_numbers_are_a_column_each(
    tmp_path: Path, capsys: Capture, wanted: str, given: tuple[str, ...], names: list[str]
) -> None:
    run = trained(tmp_path / "run", experiment(Regression(target=wanted, names=given), wanted, len(names)))
    file = tmp_path / "answers.parquet"
    succeeds(capsys, "predict", run.path, "--split", "train", "--out", file)
    table = pq.read_table(file)
    truths = [f"true_{name.strip('_')}" for name in names]
    assert table.column_names == ["sample", *names, *truths, "loss"] and len(table) == 45
    found, true = (np.stack([table[name].to_numpy() for name in each], axis=1) for each in (names, truths))
    np.testing.assert_allclose(found, outputs(run, "train").numpy(), rtol=1e-5, atol=1e-6)
    data = run.experiment.data
    stored = checked_read(data, data.index()["train"], np.arange(45))[wanted]
    assert np.array_equal(true, stored.reshape(45, -1))
    np.testing.assert_allclose(table["loss"].to_numpy(), ((found - true) ** 2).mean(1), rtol=1e-5)


def test_several_labels_are_a_probability_each(tmp_path: Path, capsys: Capture) -> None:
    names = ("v", "w", "x", "y", "z")
    run = trained(tmp_path / "run", experiment(MultiLabel(target="tags", classes=names), "tags", 5))
    file = tmp_path / "answers.jsonl"
    succeeds(capsys, "predict", run.path, "--split", "val", "--out", file)
    rows, shares = [json.loads(line) for line in file.read_text().splitlines()], outputs(run).sigmoid()
    assert list(rows[0]) == ["sample", "labels", "true_labels", "loss", *(f"p_{name}" for name in names)]
    data = run.experiment.data
    tags = torch.from_numpy(checked_read(data, data.index()["val"], np.arange(21))["tags"]).float()
    losses = nn.functional.binary_cross_entropy(shares, tags, reduction="none").mean(1)
    assert [row["loss"] for row in rows] == pytest.approx(losses.tolist(), rel=1e-5)
    assert np.mean([row["loss"] for row in rows]) == pytest.approx(inference.evaluate(run)["loss"])
    assert [row["true_labels"] for row in rows] == [
        " ".join(name for name, one in zip(names, each, strict=True) if one) for each in tags.tolist()
    ]
    for row, share in zip(rows, shares, strict=True):
        assert [row[f"p_{name}"] for name in names] == pytest.approx(share.tolist(), abs=1e-6)
        assert row["labels"] == " ".join(name for name, one in zip(names, share, strict=True) if one > 0.5)
    lines = succeeds(capsys, "predict", run.path, "--split", "val").splitlines()
    assert [line.split("  ", 1)[1] for line in lines] == [
        f"{row['labels'] or '(none)'}  true_labels={row['true_labels'] or '(none)'}  loss={row['loss']:.4f}"
        for row in rows
    ]
    table = succeeds(capsys, "evaluate", run.path).splitlines()
    assert [line.split()[0] for line in table[-6:]] == ["class", *names], "a row for each class"


def test_a_split_of_classification_is_what_evaluate_counts(tmp_path: Path, capsys: Capture) -> None:
    run = trained(tmp_path / "run", experiment(Classification(metrics=(F1(),)), "mask", 4))
    rows = inference.predict(run, split="val")
    labels = run.experiment.data.index()["val"].labels
    assert [row["true_label"] for row in rows] == ["abcd"[label] for label in labels]
    right = np.mean([row["label"] == row["true_label"] for row in rows])
    shares = np.array([row["probabilities"] for row in rows])
    np.testing.assert_allclose([row["loss"] for row in rows], -np.log(shares[np.arange(21), labels]), rtol=1e-5)
    result = inference.evaluate(run)
    assert np.mean([row["loss"] for row in rows]) == pytest.approx(result["loss"])
    assert right == pytest.approx(result["accuracy"]) and result["macro_f1"] == run.summary["val_macro_f1"]
    by_class = {row["class"]: row for row in result["per_class"]}
    assert [row["count"] for row in by_class.values()] == np.bincount(labels, minlength=4).tolist()
    found = [row["f1"] for row in by_class.values()]
    assert np.mean(found) == pytest.approx(result["macro_f1"]), "all classes occur"


def test_views_of_pixels_are_turned_back(tmp_path: Path, capsys: Capture) -> None:
    run = trained(tmp_path / "run", experiment(Segmentation(), "mask", 4, True))
    shares = (outputs(run).softmax(1) + outputs(run, mirrored=True).flip(-1).softmax(1)) / 2
    wanted = torch.from_numpy(
        checked_read(run.experiment.data, run.experiment.data.index()["val"], np.arange(21))["mask"]
    )
    each = [share.log().movedim(0, -1)[mask != 255] for share, mask in zip(shares, wanted, strict=True)]
    losses = [
        float(nn.functional.nll_loss(one, mask[mask != 255].long())) if len(one) else 0.0
        for one, mask in zip(each, wanted, strict=True)
    ]
    found = inference.evaluate(run, tta="flip")
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-6) and found["views"] == 2
    rows = inference.predict(run, split="val", tta="flip")
    assert np.array_equal([row["mask"] for row in rows], shares.argmax(1).numpy())
    assert "moves the pixels of an image" in fails(capsys, "evaluate", run.path, "--tta", "3")


def test_views_of_several_labels_and_of_numbers_are_averaged(tmp_path: Path) -> None:
    run = trained(tmp_path / "tags", experiment(MultiLabel(target="tags"), "tags", 5))
    shares = (outputs(run).sigmoid() + outputs(run, mirrored=True).sigmoid()) / 2
    data = run.experiment.data
    stored = checked_read(data, data.index()["val"], np.arange(21))
    wanted = torch.from_numpy(stored["tags"]).float()
    found = inference.evaluate(run, tta="flip")
    assert found["loss"] == pytest.approx(float(nn.functional.binary_cross_entropy(shares, wanted)), rel=1e-6)
    rows = inference.predict(run, split="val", tta="flip")
    np.testing.assert_allclose([row["probabilities"] for row in rows], shares, rtol=1e-5)

    run = trained(tmp_path / "size", experiment(Regression(target="size", mean=(3.0,), std=(2.0,)), "size", 1))
    numbers = (outputs(run) + outputs(run, mirrored=True))[:, 0] / 2 * 2.0 + 3.0
    rows = inference.predict(run, split="val", tta="flip")
    np.testing.assert_allclose([row["size"] for row in rows], numbers, rtol=1e-5)


@dataclass(frozen=True)
class Own(Task):
    def loss(self, model: Any, batch: Any) -> Any:
        return model(batch.images).square().sum(), len(batch)


def test_mistakes(tmp_path: Path, capsys: Capture) -> None:
    run = trained(tmp_path / "run", experiment(Regression(target="size"), "size", 1))
    assert "the data has no test split" in fails(capsys, "predict", run.path, "--split", "test")
    assert "both images and --split are given" in fails(capsys, "predict", run.path, "x.png", "--split", "val")
    assert "no images are given, and no --split" in fails(capsys, "predict", run.path)
    other = trained(tmp_path / "other", experiment(Own(), "size", 1))
    said = fails(capsys, "predict", other.path, "--split", "val")
    assert "this run's task is Own, in Own (" in said and "write `def predictions(self, outputs, classes)`" in said
    said = fails(capsys, "evaluate", other.path, "--tta", "flip")
    assert "--tta needs a task that averages its answers" in said and "write `def mean_of_views(self, outputs)`" in said
