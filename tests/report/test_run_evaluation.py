"""What a report shows of single samples: calibration, worst samples and plots, against a plain loop over the data."""

from __future__ import annotations

import base64
import io
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from raytrain import Batch, Classification, ExpectedCalibrationError, MultiLabel, Regression, Run, Segmentation, Task
from raytrain.report import run_evaluation, run_page, run_samples
from raytrain.tools import inference
from tests.helpers.pages import Page
from tests.helpers.ranks import new_run, train_rank
from tests.helpers.scenes import CLASSES, SIDE, experiment


@dataclass(frozen=True)
class OwnLoss(Task):
    """A task that compares nothing with a target."""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        return model(batch.input).square().sum(), len(batch)


def trained(folder: Path, task: Task, wanted: str, outputs: int = CLASSES, dense: bool = False) -> Run:
    value = experiment(task, wanted, outputs, dense)
    path = new_run(folder, replace(value, epochs=1))
    train_rank(0, 1, replace(value, epochs=1), path)
    return Run(path)


def outputs_of(run: Run) -> tuple[torch.Tensor, dict[str, np.ndarray], np.ndarray]:
    """The model's outputs for the whole validation split, its arrays as they are stored, and its labels."""
    data = run.experiment.data
    index = data.index()["val"]
    arrays: Any = data.read(index, np.arange(len(index)))
    mean, std = (torch.tensor(one)[:, None, None] for one in data.normalisation(1))
    with torch.inference_mode():
        outputs = run.model()((torch.from_numpy(arrays["image"]).float() / 255 - mean) / std)
    assert index.labels is not None
    return outputs, arrays, index.labels


def sections(run: Run) -> dict[str, Page]:
    return {name: Page(content) for name, _, content in run_evaluation.sections_of(run, "raytrain report x", None)}


def pictures(page: Page) -> list[np.ndarray]:
    sources = [str(given["src"]) for tag, given in page.tags if tag == "img"]
    assert all(given["alt"] for tag, given in page.tags if tag == "img")
    return [np.array(Image.open(io.BytesIO(base64.b64decode(one.partition(",")[2])))) for one in sources]


def test_calibration_and_the_worst_samples_of_a_classifier(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", Classification(metrics=(ExpectedCalibrationError(bins=5),)), "size")
    found, (outputs, arrays, labels) = sections(run), outputs_of(run)
    assert [*found] == ["classes", "calibration", "worst"]
    value = inference.evaluate(run)["expected_calibration_error"]
    assert f"{value:.4f}" in found["calibration"].texts
    rows = found["calibration"].tables["Calibration"][1:]
    shares, answers = outputs.softmax(1).max(1)
    for number, row in enumerate(rows):
        within = (shares >= number / 5) & (shares < (number + 1) / 5)
        assert int(row[1]) == within.sum()
        if within.any():
            assert float(row[2]) == pytest.approx(shares[within].mean().item(), abs=1e-4)
            right = (answers == torch.from_numpy(labels))[within].float().mean()
            assert float(row[3]) == pytest.approx(right.item(), abs=1e-4)
    losses = nn.functional.cross_entropy(outputs, torch.from_numpy(labels), reduction="none")
    worst = losses.argsort(descending=True)[:12].tolist()
    shown = [text for text in found["worst"].texts if text.startswith("sample ")]
    assert shown == [f"sample {number}" for number in worst]
    assert [text.split()[1] for text in found["worst"].texts if text.startswith("loss ")] == [
        f"{losses[number]:.4f}" for number in worst
    ]
    for seen, number in zip(pictures(found["worst"]), worst, strict=True):
        np.testing.assert_array_equal(seen, arrays["image"][number, 0])


def test_the_residuals_of_a_regression(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", Regression(), "size", 1)
    found, (outputs, arrays, _) = sections(run), outputs_of(run)
    assert [*found] == ["predictions", "worst"]
    rows = found["predictions"].tables["Predicted and true"][1:]
    np.testing.assert_allclose([float(row[1]) for row in rows], arrays["size"], rtol=1e-6)
    np.testing.assert_allclose([float(row[2]) for row in rows], outputs[:, 0], rtol=1e-5)
    first = int(np.square(outputs[:, 0].numpy() - arrays["size"]).argmax())
    text = f"{arrays['size'][first]:.4g}, predicted {float(outputs[first, 0]):.4g}"
    assert next(text for text in found["worst"].texts if ", predicted" in text) == text
    two = sections(trained(tmp_path / "two", Regression(target="sizes"), "sizes", 2))
    assert [*two["predictions"].tables] == ["Predicted and true, number 0", "Predicted and true, number 1"]


def test_the_masks_of_a_segmentation_are_drawn_over_its_images(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", Segmentation(), "mask", dense=True)
    found, (outputs, arrays, _) = sections(run), outputs_of(run)
    assert [*found] == ["classes", "worst"]
    wanted = torch.from_numpy(arrays["mask"].astype(np.int64))
    each = nn.functional.cross_entropy(outputs, wanted, ignore_index=255, reduction="none").sum((1, 2))
    losses = each / (wanted != 255).sum((1, 2)).clamp_min(1)
    first = int(losses.argmax())
    picture = pictures(found["worst"])[0]
    assert picture.shape == (SIDE, 2 * SIDE + 4, 3)
    grey = np.repeat(arrays["image"][first, 0][:, :, None], 3, 2).astype(int)
    for side, mask in ((picture[:, :SIDE], arrays["mask"][first]), (picture[:, -SIDE:], outputs[first].argmax(0))):
        plain = (np.asarray(mask) == 0) | (np.asarray(mask) == 255)
        np.testing.assert_array_equal(side[plain], grey[plain])
        colours = [run_samples.PALETTE[int(number) - 1] for number in np.asarray(mask)[~plain]]
        blended = (np.array(colours).reshape(-1, 3) * 140 + grey[~plain] * 115) / 255
        np.testing.assert_allclose(side[~plain], blended, atol=1)


def test_the_colours_of_masks_are_named() -> None:
    masks = np.array([[0, 1], [8, -1]]), np.array([[0, 0], [2, 8]])
    one = run_samples.Sample(0, 0.5, (), "right", np.zeros((3, 2, 2), np.float32), masks)
    page = run_samples.gallery([one], ["a.png"], ("ground", "<scratch>", "dent"))
    red, blue = ("#{:02x}{:02x}{:02x}".format(*run_samples.PALETTE[place]) for place in (0, 1))
    (legend,) = re.findall('<ul class="legend">(.*?)</ul>', page)
    found = [(re.findall('fill="(.*?)"', item), re.sub("<.*?>", "", item)) for item in legend.split("</li>")[:-1]]
    assert found == [
        ([], "ground: without a colour"),
        ([red], "&lt;scratch&gt;"),
        ([blue], "dent"),
        ([red], "class 8"),
    ]


def test_other_tasks_have_what_fits_them(tmp_path: Path) -> None:
    assert [*sections(trained(tmp_path / "many", MultiLabel(), "tags", 5))] == ["classes"]
    assert not sections(trained(tmp_path / "own", OwnLoss(), "size"))


def test_a_pass_that_takes_longer_than_expected_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path / "run", Classification(), "size")
    monkeypatch.setattr(run_evaluation, "_LATE", 0.0)
    (name, _, said), *more = run_evaluation.sections_of(run, "raytrain report x", 60.0)
    assert name == "validation" and "it takes longer than the run" in said and not more


def test_the_end_of_a_run_needs_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, said = trained(tmp_path / "run", Classification(), "size"), list[str]()
    run_page.at_end(run, said.append)
    text = (run.path / "report.html").read_text()
    assert not said and "Reliability" in text
    summary = run.summary
    (run.path / "summary.json").write_text(json.dumps(summary | {"status": "failed"}))
    run_page.at_end(run, said.append)
    assert not said and "Reliability" not in (run.path / "report.html").read_text()
    (run.path / "report.html").unlink()
    (run.path / "report.html").mkdir()
    run_page.at_end(run, said.append)
    assert len(said) == 1 and said[0].startswith("no report was written: ")
    monkeypatch.setattr(run_page, "single", lambda run, limit: 1 / 0)
    run_page.at_end(run, said.append)
    assert said[1] == "no report was written: division by zero"
