"""`predict RUN new.csv` of a run on a mixture of tables."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import fails, make_run, succeeds, without_ray
from PIL import Image

import raytrain
from raytrain import CNN, Experiment, ImageFolder, Manifest, Mixed

__all__ = ["without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")


def table(root: Path, seed: int) -> Manifest:
    (root / "images").mkdir(parents=True)
    lines = ["id,label"]
    for number, image in enumerate(np.random.default_rng(seed).integers(0, 256, (10, 9, 12), np.uint8)):
        Image.fromarray(image).save(root / "images" / f"{number}.png")
        lines.append(f"{number},{'ab'[number % 2]}")
    (root / "train.csv").write_text("\n".join(lines))
    return Manifest(str(root / "train.csv"), path="id", suffix=".png", folder=str(root / "images"), size=8, channels=1)


@pytest.mark.parametrize("validate", [None, 1])
def test_the_rows_of_another_table_are_those_of_its_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], validate: int | None
) -> None:
    first, second = table(tmp_path / "one", 0), table(tmp_path / "two", 1)
    data = Mixed((first, second), validate=validate, mean=(0.25,), std=(0.5,))
    run = make_run(tmp_path / "run", Experiment(CNN((4,)), data))
    (new := tmp_path / "new.csv").write_text("id\n7\n2\n2\n")
    expected = raytrain.predict(run, [tmp_path / "two" / "images" / f"{number}.png" for number in (7, 2, 2)])
    rows = raytrain.predict(run, new, folder=tmp_path / "two" / "images")
    assert [row["path"] for row in rows] == ["7.png", "2.png", "2.png"]
    assert [row["probabilities"] for row in rows] == [row["probabilities"] for row in expected]
    assert len(succeeds(capsys, "predict", run.path, new, "--folder", tmp_path / "one" / "images").splitlines()) == 3


def test_a_mixture_of_folders_takes_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(tmp_path / "one", 0)
    for name in "ab":
        (tmp_path / "folder" / name).mkdir(parents=True)
        for number in range(4):
            shutil.copy(tmp_path / "one" / "images" / f"{number}.png", tmp_path / "folder" / name)
    source = ImageFolder(str(tmp_path / "folder"), size=8, channels=1)
    run = make_run(tmp_path / "run", Experiment(CNN((4,)), Mixed((source, source))))
    said = fails(capsys, "predict", run.path, tmp_path / "one" / "train.csv")
    assert "a table suits a run on a Manifest, and this run's data is Mixed" in said
