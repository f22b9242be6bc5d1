"""A cross-validation as a whole: its metrics are those of all samples, each as the fold that left it out answers; other
samples have the mean of all models' answers."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.commands import fails, make_run, succeeds, without_ray
from PIL import Image

import raytrain
from raytrain import AUROC, CNN, Classification, Experiment, Folds, Manifest, UserError
from raytrain.data.folds import AXIS
from raytrain.run.lock import Lock

__all__ = ["without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
COUNT = 47


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("images")
    rows = [("path", "label", "site")]
    for number, image in enumerate(np.random.default_rng(0).integers(0, 256, (COUNT, 8, 8), np.uint8)):
        Image.fromarray(image).save(root / f"{number}.png")
        rows.append((f"{number}.png", "ab"[number % 5 > 2], ("north", "south")[number % 2]))
    with open(root / "table.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    return str(root / "table.csv")


def write_sweep(place: Path, statuses: list[str], axis: str = AXIS) -> None:
    trials = [{"number": n, "status": status, "values": {axis: n}} for n, status in enumerate(statuses)]
    (place / "sweep.json").write_text(json.dumps({"sweep": {"axes": [{"path": axis}]}, "trials": trials}))


@pytest.fixture(scope="module")
def folds(table: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cv")
    (place / "trials").mkdir()
    grey: dict[str, Any] = {"channels": 1, "mean": (0.5,), "std": (0.5,)}
    for fold in range(3):
        data = Manifest(table, size=8, folds=Folds(3, fold), **grey)
        e = Experiment(CNN(channels=(4,)), data, Classification(metrics=(AUROC(),)))
        make_run(place / "trials" / f"{fold:04d}", e, steps=4 + 2 * fold)
    write_sweep(place, ["completed", "stopped", "completed"])
    return place


def auroc(labels: np.ndarray, scores: np.ndarray) -> float:
    """The share of pairs of a sample of each class in which the second class's has the higher score."""
    pairs = np.sign(scores[labels == 1][:, None] - scores[labels == 0][None])
    return float((pairs + 1).mean() / 2)


def test_all_samples_are_answered_once_by_the_fold_that_left_them_out(folds: Path) -> None:
    rows = raytrain.predict(folds, split="val")
    assert sorted(int(Path(row["sample"]).stem) for row in rows) == [*range(COUNT)]
    assert [*rows[0]] == ["sample", "fold", "label", "probability", "probabilities", "true_label", "loss"]
    assert all(row["true_label"] == "ab"[int(Path(row["sample"]).stem) % 5 > 2] for row in rows)
    alone = [raytrain.predict(folds / "trials" / f"{fold:04d}", split="val") for fold in range(3)]
    assert rows == [{**row, "fold": fold} for fold in range(3) for row in alone[fold]]


def test_metrics_are_those_of_all_samples(folds: Path) -> None:
    rows = raytrain.predict(folds, split="val")
    found = raytrain.evaluate(folds)
    labels = np.array([int(Path(row["sample"]).stem) % 5 > 2 for row in rows], np.int64)
    shares = np.array([row["probabilities"] for row in rows])
    said = shares.argmax(1)
    assert found["count"] == COUNT and found["checkpoint"] == "best" and found["skipped"] == []
    assert found["accuracy"] == pytest.approx(np.mean(said == labels))
    assert found["loss"] == pytest.approx(-np.log(shares[np.arange(COUNT), labels]).mean(), rel=1e-5)
    assert found["auroc"] == pytest.approx(auroc(labels, shares[:, 1]), abs=1e-6)
    assert found["confusion"] == [[int(np.sum((labels == i) & (said == j))) for j in range(2)] for i in range(2)]
    for fold in range(3):
        one = raytrain.evaluate(folds / "trials" / f"{fold:04d}")
        assert found["folds"][str(fold)] == {name: one[name] for name in ("loss", "accuracy", "auroc", "count")}
    assert [*found["folds"]] == ["0", "1", "2"]


def test_groups_are_those_of_all_folds(folds: Path) -> None:
    rows = raytrain.predict(folds, split="val")
    groups = raytrain.evaluate(folds, by="site")["groups"]
    for place, site in enumerate(("north", "south")):
        of = [row for row in rows if int(Path(row["sample"]).stem) % 2 == place]
        right = [row["label"] == "ab"[int(Path(row["sample"]).stem) % 5 > 2] for row in of]
        assert groups[site]["count"] == len(of) and groups[site]["accuracy"] == pytest.approx(np.mean(right))


@pytest.mark.parametrize("tta", ["", "flip"])
def test_images_are_answered_by_the_mean_of_all_models(folds: Path, table: str, tta: str) -> None:
    rows = raytrain.predict(folds, Path(table).parent, tta=tta)
    alone = [
        raytrain.predict(folds / "trials" / f"{fold:04d}", Path(table).parent, tta=tta, checkpoint="best")
        for fold in range(3)
    ]
    assert len(rows) == COUNT and [row["path"] for row in rows] == [row["path"] for row in alone[0]]
    wanted = np.mean([[row["probabilities"] for row in of] for of in alone], 0)
    np.testing.assert_allclose([row["probabilities"] for row in rows], wanted, atol=1e-6)
    assert [row["label"] for row in rows] == ["ab"[one] for one in wanted.argmax(1)]


def test_an_image_that_cannot_be_read_is_said_with_what_can_be_done(folds: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"broken\.png.*; repair it, or leave it out$"):
        raytrain.predict(folds, tmp_path / "broken.png")


def test_a_test_split_is_evaluated_by_the_mean_of_all_models(table: str, folds: Path, tmp_path: Path) -> None:
    with open(table, newline="") as file:
        rows = [*csv.DictReader(file)]
    root = Path(table).parent
    with open(root / "split.csv", "w", newline="") as file:
        parts = [{**row, "split": "test" if n < 12 else "train"} for n, row in enumerate(rows)]
        writer = csv.DictWriter(file, [*parts[0]])
        writer.writeheader()
        writer.writerows(parts)
    (tmp_path / "trials").mkdir()
    for fold in range(3):
        e = raytrain.Run(folds / "trials" / f"{fold:04d}").experiment
        e = replace(e, data=replace(e.data, root=str(root / "split.csv")))
        make_run(tmp_path / "trials" / f"{fold:04d}", e, steps=4 + 2 * fold)
    write_sweep(tmp_path, ["completed"] * 3)
    said, found = raytrain.predict(tmp_path, split="test"), raytrain.evaluate(tmp_path, split="test")
    labels = [int(Path(row["sample"]).stem) % 5 > 2 for row in said]
    right = [row["label"] == "ab"[label] for row, label in zip(said, labels, strict=True)]
    assert found["count"] == 12 and found["models"] == 3 and found["accuracy"] == pytest.approx(np.mean(right))


def test_commands_take_the_directory(folds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = succeeds(capsys, "evaluate", folds, "--checkpoint", "last")
    assert "the last checkpoints of all folds, each on what it left out" in said.replace("\n", " ")
    (head,) = (line for line in said.splitlines() if line.split()[:1] == ["fold"])
    assert head.split() == ["fold", "loss", "auroc", "accuracy", "count"]
    assert json.loads(succeeds(capsys, "evaluate", folds, "--json"))["count"] == COUNT
    succeeds(capsys, "predict", folds, "--split", "val", "--out", tmp_path / "all.csv")
    with open(tmp_path / "all.csv", newline="") as file:
        written = [*csv.DictReader(file)]
    assert [int(row["fold"]) for row in written] == sorted(int(row["fold"]) for row in written)
    assert len(written) == COUNT and [*written[0]][:3] == ["sample", "fold", "label"]


def test_mistakes_are_one_line(folds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in (("--split", "train"), ("--split", "val", "--data.root", tmp_path)):
        assert f"use the model of a fold for other samples: {folds}/trials/0000" in fails(
            capsys, "evaluate", folds, *more
        )
    assert "has no test split" in fails(capsys, "evaluate", folds, "--split", "test")
    parts = ("--split", "val", "--features", "--out", tmp_path / "x.parquet")
    assert "no features in common" in fails(capsys, "predict", folds, *parts[2:], Path(folds, "trials"))
    model = fails(capsys, "export", folds, tmp_path / "model.pth")
    assert model.endswith(f"each of its folds is a run, {folds}; use {folds}/trials/0000, or another fold")
    assert "is predicted by one process" in fails(capsys, "predict", folds, folds, "--out", tmp_path / "parts")
    for number, (status, axis, said) in enumerate(
        (
            ("crashed", AXIS, "fold 2 is crashed, so that nothing has been said of its samples"),
            ("completed", "optimizer.lr", "this is a sweep, and each of its trials is a run"),
            ("", AXIS, "the trials are not each fold of 0 to 2 once, but 0, 1,"),
        )
    ):
        place = tmp_path / str(number)
        place.mkdir()
        (place / "trials").symlink_to(folds / "trials")
        write_sweep(place, ["completed", "completed", *filter(None, [status])], axis)
        assert said in fails(capsys, "evaluate", place)


@pytest.mark.parametrize("status", ["running", "paused", "pending", "interrupted", ""])
def test_folds_that_are_left_are_said_with_how_to_go_on(
    folds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: str
) -> None:
    """A killed command leaves a fold as it was: there is nothing to wait for."""
    (tmp_path / "trials").symlink_to(folds / "trials")
    write_sweep(tmp_path, ["completed", "completed", *filter(None, [status])])
    how = f"go on with `raytrain sweep {tmp_path}`, or take a run in {tmp_path}/trials"
    what = f"fold 2 is {status}, so" if status else "the trials are not each fold of 0 to 2 once, but 0, 1"
    with Lock(tmp_path):
        said = fails(capsys, "evaluate", tmp_path)
        assert what in said and f"wait for it, or {how}" in said
    said = fails(capsys, "evaluate", tmp_path)
    assert f"; {how}" in said and ("fold 2 is not trained to its end, and nothing trains it" in said or not status)
    write_sweep(tmp_path, [])
    assert f"no fold has begun, {tmp_path}; go on with" in fails(capsys, "evaluate", tmp_path)
