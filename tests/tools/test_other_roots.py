"""`evaluate --data.root`: a copy of the run's data has the run's splits, other data has its own or is whole."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.commands import fails, make_run, succeeds, without_ray
from PIL import Image

import raytrain
from raytrain import CNN, Data, Experiment, Folds, ImageFolder, Manifest, MaskFolder, Run, UserError
from raytrain.data.checks import checked_indices, perhaps_moved
from raytrain.tools import inference
from raytrain.tools.listing import at_root

__all__ = ["without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
COUNT = 10
"""Images of each class."""
GREY: dict[str, Any] = {"channels": 1, "mean": (0.5,), "std": (0.5,)}


def folder(root: Path, seed: int = 0, count: int = COUNT) -> Path:
    pixels = np.random.default_rng(seed).integers(0, 256, (2, count, 8, 8), np.uint8)
    for label, name in enumerate("ab"):
        (root / name).mkdir(parents=True)
        for number, image in enumerate(pixels[label]):
            Image.fromarray(image).save(root / name / f"{number + 100 * seed}.png")
    return root


def table(root: Path, splits: str = "", seed: int = 0) -> Path:
    folder(root, seed)
    rows = [(file.relative_to(root), file.parent.name) for file in sorted(root.rglob("*.png"))]
    with open(root / "table.csv", "w", newline="") as file:
        head = ("path", "label", "split") if splits else ("path", "label")
        given = [(*row, splits) if splits else row for row in rows]
        csv.writer(file).writerows([head, *given])
    return root / "table.csv"


def trained(path: Path, data: Data) -> Run:
    """A run that knows what it was trained on."""
    run = make_run(path, Experiment(CNN(channels=(4,)), data))
    (path / "environment.json").write_text(json.dumps(known(data)))
    return run


def known(data: Data) -> dict[str, Any]:
    return {"data_fingerprint": {split: index.fingerprint() for split, index in checked_indices(data).items()}}


@pytest.fixture(scope="module")
def of_folder(tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("of_folder")
    return trained(place / "run", ImageFolder(str(folder(place / "images")), 8, **GREY))


def test_a_copy_of_the_data_has_the_runs_own_split(of_folder: Run, tmp_path: Path) -> None:
    copy = shutil.copytree(of_folder.experiment.data.root, tmp_path / "moved")  # type: ignore[attr-defined]
    own, there = inference.evaluate(of_folder), inference.evaluate(of_folder, str(copy))
    assert own["count"] == 4 and own.pop("baseline", None) is None and there == own


def test_other_data_without_splits_are_whole(of_folder: Run, tmp_path: Path) -> None:
    other = folder(tmp_path / "other", seed=1)
    found = inference.evaluate(of_folder, str(other))
    assert found["count"] == 2 * COUNT and np.sum(found["confusion"], 1).tolist() == [COUNT, COUNT]
    (tmp_path / "parted").mkdir()
    for split, seed in (("train", 2), ("val", 3)):
        folder(tmp_path / "parted" / split, seed, count=5 + seed)
    assert inference.evaluate(of_folder, str(tmp_path / "parted"))["count"] == 16, "its own val"
    (tmp_path / "last").mkdir()
    folder(tmp_path / "last" / "test", 4)
    assert inference.evaluate(of_folder, str(tmp_path / "last"), "test")["count"] == 2 * COUNT
    with pytest.raises(UserError, match="a class folder has a folder train"):
        inference.evaluate(of_folder, str(tmp_path))


def test_a_table_without_splits_or_with_one_alone_is_whole(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", Manifest(str(table(tmp_path / "own")), size=8, **GREY))
    assert inference.evaluate(run)["count"] == 4
    moved = shutil.copytree(tmp_path / "own", tmp_path / "moved") / "table.csv"
    assert inference.evaluate(run, str(moved)) == inference.evaluate(run)
    other = str(table(tmp_path / "other", seed=1))
    assert inference.evaluate(run, other)["count"] == 2 * COUNT
    for split in ("val", "test"):
        alone = str(table(tmp_path / split, split, seed=2))
        assert inference.evaluate(run, alone, split)["count"] == 2 * COUNT
        with pytest.raises(UserError, match="no row is in the split train"):
            checked_indices(Manifest(alone, size=8, **GREY))  # which training needs


def test_a_fold_stays_its_own_in_a_copy_and_not_elsewhere(tmp_path: Path) -> None:
    data = ImageFolder(str(folder(tmp_path / "images")), 8, **GREY, folds=Folds(count=5, fold=3))
    run = trained(tmp_path / "run", data)
    copy = str(shutil.copytree(tmp_path / "images", tmp_path / "copy"))
    assert at_root(run, copy)[1]["val"].fingerprint() == checked_indices(data)["val"].fingerprint()
    assert len(at_root(run, str(folder(tmp_path / "other", 1)))[1]["val"]) == 2 * COUNT


def test_masks_without_splits_are_whole(tmp_path: Path) -> None:
    for place, seed in (("own", 0), ("other", 1)):
        pixels = np.random.default_rng(seed).integers(0, 2, (COUNT, 8, 8), np.uint8)
        for name in ("images", "masks"):
            (tmp_path / place / name).mkdir(parents=True)
            for number, image in enumerate(pixels):
                Image.fromarray(image).save(tmp_path / place / name / f"{number + seed}.png")
    data = MaskFolder(str(tmp_path / "own"), 8, **GREY)
    run: Any = SimpleNamespace(experiment=Experiment(CNN(), data), environment=known(data))
    assert [len(at_root(run, place)[1]["val"]) for place in (None, data.root, str(tmp_path / "other"))] == [2, 2, COUNT]


def test_data_that_have_moved_are_told_by_the_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(tmp_path / "run", ImageFolder(str(folder(tmp_path / "images")), 8, **GREY))
    (tmp_path / "images").rename(tmp_path / "moved")
    there = ("--data.root", tmp_path / "moved")
    for command in (("evaluate", run.path), ("predict", run.path, "--split", "val")):
        said = fails(capsys, *command)
        assert f"no such folder, {tmp_path}/images; if the data have moved, give their place now: --data.root" in said
        assert succeeds(capsys, *command, *there)
    assert "or write .pth" in fails(capsys, "export", run.path, tmp_path / "m.pt2")
    assert succeeds(capsys, "report", run.path, "--evaluate")
    assert f"no such folder, {tmp_path}/images; put the data back." in (run.path / "report.html").read_text()
    assert "--data.root is that of a --split" in fails(capsys, "predict", run.path, tmp_path / "moved", *there)
    other = folder(tmp_path / "other", seed=1)
    assert len(raytrain.predict(run, split="val", root=other)) == 2 * COUNT
    with pytest.raises(UserError, match="root is where the data of a split are"):
        raytrain.predict(run, other, root=other)


def test_an_evaluation_of_all_samples_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place := tmp_path / "own").mkdir()
    file = table(place / "images")
    absolute = file.read_text().replace("\na/", f"\n{place}/images/a/").replace("\nb/", f"\n{place}/images/b/")
    file.write_text(absolute)
    run = trained(tmp_path / "run", Manifest(str(file), size=8, **GREY))
    told = "all of them: these are not the run's data"
    there = ("--data.root", tmp_path / "moved" / "images" / "table.csv")
    assert told not in succeeds(capsys, "evaluate", run.path, "--data.root", file)
    place.rename(tmp_path / "moved")
    there[1].write_text(absolute.replace(str(place), str(tmp_path / "moved")))
    assert told in succeeds(capsys, "evaluate", run.path, *there), "its fingerprint has the paths"
    assert json.loads(succeeds(capsys, "evaluate", run.path, *there, "--json"))["whole"] is True


@pytest.mark.parametrize("root", ["nowhere/x", "./nowhere/x", "../nowhere", "~/nowhere"])
def test_an_error_about_something_else_keeps_its_remedy(root: str) -> None:
    data = ImageFolder(root, 8)
    with pytest.raises(UserError, match="MOVED"), perhaps_moved(data, "MOVED"):
        checked_indices(data)
    with pytest.raises(UserError, match="too large; take less"), perhaps_moved(data, "MOVED"):
        raise UserError("the batch is too large", "", "take less")
