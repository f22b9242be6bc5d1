"""Targets that are scaled for the model: what people see keeps their units."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from helpers.ranks import new_run, train_rank
from helpers.scenes import Scenes, experiment

from raytrain import Index, Regression, Run, UserError
from raytrain.data.checks import checked_read
from raytrain.driver.baseline import baseline
from raytrain.driver.plan import make
from raytrain.driver.resources import Node, Resources
from raytrain.report import card
from raytrain.tools import inference
from raytrain.tools.export import export


@dataclass(frozen=True)
class Large(Scenes):
    """Sizes in other units."""

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        found = super().read(index, samples)
        return {**found, "sizes": found["sizes"] * 100}


SIZES: Any = {"mean": (300.0, -5.0), "std": (20.0, 0.5)}


def stored(run: Run) -> dict[str, np.ndarray]:
    index = run.experiment.data.index()["val"]
    return checked_read(run.experiment.data, index, np.arange(len(index)))


def in_units(run: Run, values: dict[str, tuple[float, ...]]) -> np.ndarray:
    """The model's answers for the validation split, worked out plainly."""
    images = (torch.from_numpy(stored(run)["image"]) / 255 - 0.5) / 0.5
    with torch.no_grad():
        return run.model()(images).numpy() * np.asarray(values["std"], np.float32) + np.asarray(
            values["mean"], np.float32
        )


def trained(folder: Path, task: Regression, wanted: str, outputs: int) -> Run:
    e = experiment(task, wanted, outputs)
    assert train_rank(0, 1, e, new_run(folder, e)) == "completed"
    return Run(folder)


@pytest.mark.parametrize(
    ("wanted", "values"), [("sizes", SIZES), ("sizes", {"mean": (300.0,), "std": (20.0,)}), ("size", SIZES)]
)
def test_predictions_metrics_and_programs_have_the_targets_units(tmp_path: Path, wanted: str, values: Any) -> None:
    count = 2 if wanted == "sizes" else 1
    values = {name: numbers[:count] for name, numbers in values.items()}
    run = trained(tmp_path / "run", Regression(target=wanted, monitor="val_mae", **values), wanted, count)
    expected, truth = in_units(run, values), stored(run)[wanted].reshape(21, -1)
    names = [wanted] if count == 1 else [f"{wanted}_{number}" for number in range(count)]
    said = [[row[name] for name in names] for row in inference.predict(run, split="val")]
    np.testing.assert_allclose(said, expected, rtol=1e-5)
    answers = inference.evaluate(run)
    assert answers["mae"] == pytest.approx(np.abs(expected - truth).mean(), rel=1e-5)
    assert answers["loss"] == pytest.approx((((expected - truth) / values["std"]) ** 2).mean(), rel=1e-4)
    for suffix in (".pt2", ".onnx"):
        file = tmp_path / f"model{suffix}"
        parity = export(run, file)
        assert parity is not None and parity.holds
        images = stored(run)["image"]
        found: Any
        if suffix == ".pt2":
            found = torch.export.load(file).module()(torch.from_numpy(images)).detach().numpy()
        else:
            found = onnxruntime.InferenceSession(str(file)).run(None, {"image": images})[0]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    text = card.text(run, tmp_path / "model.pth", "best", None)
    assert "the predicted numbers, scaled: times " in text
    assert "scaled: times" not in card.text(run, file, "best", parity)


def test_a_baseline_is_the_same_in_all_units() -> None:
    e = experiment(Regression(target="size", monitor="val_mae"), "size", 1)
    plain = baseline(e, e.data.index())
    scaled = baseline(replace(e, task=replace(e.task, mean=(7.0,), std=(0.25,))), e.data.index())
    assert scaled.scores["val_mae"] == pytest.approx(plain.scores["val_mae"], rel=1e-5)
    assert scaled.scores["val_loss"] == pytest.approx(plain.scores["val_loss"] / 0.25**2, rel=1e-5)
    assert scaled.line.split("by always")[1] == plain.line.split("by always")[1]


def test_the_plan_says_which_numbers_to_scale_by() -> None:
    e = replace(experiment(Regression(target="sizes"), "sizes", 2), data=Large(wanted="sizes"))
    note = baseline(e, e.data.index()).note
    index = e.data.index()["train"]
    sizes = checked_read(e.data, index, np.arange(len(index)))["sizes"]
    given = re.fullmatch(r".* scaled: Regression\(mean=\((.*), (.*)\), std=\((.*), (.*)\)\)", note)
    assert given, note
    np.testing.assert_allclose([float(one) for one in given.groups()], [*sizes.mean(0), *sizes.std(0)], rtol=1e-3)
    assert not baseline(replace(e, task=replace(e.task, mean=(130.0,), std=(9.0,))), e.data.index()).note
    many = torch.arange(10.0)[:, None] * torch.full((6,), 100.0)
    assert Regression().constant_note(many).endswith("scaled: set mean and std of Regression")
    for usual in (torch.tensor([-1.0, 0.5, 1]), torch.tensor([7.0, 7]), torch.tensor([[0.0, 1000], [1, 1000]])):
        assert not Regression().constant_note(usual)


def test_mistakes() -> None:
    with pytest.raises(UserError, match="give a value with finite numbers above 0"):
        Regression(std=(0.0,))
    with pytest.raises(UserError, match="give a value with finite numbers"):
        Regression(mean=(float("nan"),))
    e = experiment(Regression(target="sizes", mean=(1.0, 2.0, 3.0)), "sizes", 2)
    with pytest.raises(UserError, match="mean and std must have one number or 2, as many as the target, got 3"):
        make(e, lambda: Resources((Node("here", 2.0, 0.0, 2**33),), "this machine"), "run")
