"""Models of several inputs: the task's `forward` in the plan, evaluation, prediction and exported programs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.ranks import Ranks, new_run, on_workers, train_rank
from helpers.scenes import CLASSES, Join, Joining, Small, experiment
from PIL import Image
from torch import nn

from raytrain import (
    SGD,
    Batch,
    Classification,
    Distillation,
    Experiment,
    Manifest,
    MultiLabel,
    Pipeline,
    Run,
    UserError,
    config,
)
from raytrain.checkpoint import layout
from raytrain.data.checks import checked_read
from raytrain.driver.plan import make
from raytrain.driver.resources import Node, Resources
from raytrain.hooks.sample_images import SampleImages
from raytrain.report import card
from raytrain.tools import inference
from raytrain.tools.export import export

E = experiment(Joining(), "mask sizes", CLASSES)


def here() -> Resources:
    return Resources((Node("here", 2, 0, 8 << 30),), "this machine")


@pytest.fixture(scope="module")
def run(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Run:
    e = replace(E, hooks=(SampleImages(),))
    path = new_run(tmp_path_factory.mktemp("joined") / "run", e)
    ranks.run(1, train_rank, on_workers(e, 1), path)
    return Run(path)


@dataclass(frozen=True)
class JoinTwo(Join):
    """A model of two inputs with two outputs."""

    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return super().build(sample, 2)


@dataclass(frozen=True)
class OfTable(Classification):
    """Gives a model the image and two columns of a table."""

    def forward(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return model(batch.images, batch["inputs"])


def test_an_export_names_the_columns_of_a_table_and_what_becomes_of_16_bits(tmp_path: Path) -> None:
    lines = ["path,label,age,weight"]
    for number in range(8):
        Image.new("L", (6, 6), number).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{'ab'[number % 2]},{number},{number / 2}")
    (tmp_path / "a.csv").write_text("\n".join(lines))
    data = Manifest(str(tmp_path / "a.csv"), inputs=("age", "weight"), size=6, channels=1)
    e = Experiment(Join(), data, OfTable(), SGD(lr=0.1), batch_size=2, epochs=1)
    path = new_run(tmp_path / "run", e)
    assert train_rank(0, 1, e, path) == "completed"
    parity = export(Run(path), tmp_path / "m.pt2")
    found = {"raytrain.json": ""}
    torch.export.load(tmp_path / "m.pt2", extra_files=found)
    assert [one.get("columns") for one in json.loads(found["raytrain.json"])["inputs"]] == [None, ["age", "weight"]]
    text = card.text(Run(path), tmp_path / "m.pt2", "best", parity)
    assert r"| inputs | float32 \[batch, 2\]: age, weight |" in text
    assert "resized to 6 x 6 pixels (grey of 16 bits is divided by 257 and rounded)" in text


@dataclass(frozen=True)
class OfNumbers(MultiLabel):
    """Gives a model the image and the further inputs."""

    def forward(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return model(batch.images, batch["inputs"])


def test_the_target_columns_of_a_table_are_the_default_beside_inputs(tmp_path: Path) -> None:
    lines = ["path,haze,sun,age,weight"]
    for number in range(8):
        Image.new("L", (6, 6), number).save(tmp_path / f"{number}.png")
        lines.append(f"{number}.png,{number % 2},{number // 4},{number + 7},{number / 2}")
    (tmp_path / "a.csv").write_text("\n".join(lines))
    data = Manifest(str(tmp_path / "a.csv"), target=("haze", "sun"), inputs=("age", "weight"), size=6, channels=1)
    e = Experiment(JoinTwo(), data, OfNumbers(), SGD(lr=0.1), batch_size=2, epochs=1)
    planned = make(e, here, "runs/x")
    assert "val_accuracy" in planned.baseline.scores
    named = replace(e, task=OfNumbers(target="value"))
    assert make(named, here, "runs/x").baseline.scores == planned.baseline.scores
    with pytest.raises(UserError, match="needs the name of its target field, and the data has inputs"):
        MultiLabel().check_data(replace(data, target=(), label="haze").index()["train"])


def expected(run: Run) -> tuple[torch.Tensor, dict[str, np.ndarray]]:
    """Return the model's outputs on the validation split, without the package's tools, and the stored arrays."""
    index = E.data.index()["val"]
    stored = checked_read(E.data, index, np.arange(len(index)))
    images = (torch.from_numpy(stored["image"]) / 255 - 0.5) / 0.5
    with torch.inference_mode():
        return run.model()(images, torch.from_numpy(stored["sizes"])), stored


def test_evaluation_and_prediction_are_the_models(run: Run) -> None:
    outputs, labels = expected(run)[0], torch.from_numpy(E.data.index()["val"].labels)
    found = inference.evaluate(run)
    assert found["loss"] == pytest.approx(nn.functional.cross_entropy(outputs, labels).item(), rel=1e-6)
    assert found["accuracy"] == pytest.approx((outputs.argmax(1) == labels).float().mean().item())
    predicted = inference.predict(run, split="val")
    np.testing.assert_allclose([one["probabilities"] for one in predicted], outputs.softmax(1), rtol=1e-5)
    flipped = inference.evaluate(run, tta="flip")
    assert flipped["views"] == 2 and flipped["loss"] != found["loss"]
    assert [*(run.path / "samples").iterdir()]


def test_views_are_of_all_images_and_masks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Joining, model: nn.Module, batch: Batch) -> torch.Tensor:
        return model(numbers=batch["sizes"], images=batch.images + batch["mask"][:, None] / 64)

    monkeypatch.setattr(Joining, "forward", forward)
    stored, labels = expected(run)[1], torch.from_numpy(E.data.index()["val"].labels)
    both = (torch.from_numpy(stored["image"]) / 255 - 0.5) / 0.5 + torch.from_numpy(stored["mask"])[:, None] / 64
    with torch.inference_mode():
        views = [run.model()(one, torch.from_numpy(stored["sizes"])).softmax(1) for one in (both, both.flip(-1))]
    shares = torch.stack(views).mean(0)
    found = inference.evaluate(run, tta="flip")
    assert found["loss"] == pytest.approx(nn.functional.nll_loss(shares.log(), labels).item(), rel=1e-6)
    predicted = inference.predict(run, split="val", tta="flip")
    np.testing.assert_allclose([one["probabilities"] for one in predicted], shares, rtol=1e-5)


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_programs_take_all_inputs(run: Run, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"model{suffix}"
    parity = export(run, file)
    assert parity is not None and parity.holds and [one.name for one in parity.fields] == ["image", "sizes"]
    outputs, stored = expected(run)
    if suffix == ".onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(file)
        found = session.run(["outputs"], {name: stored[name] for name in ("image", "sizes")})[0]
    else:
        given = (torch.from_numpy(stored[name]) for name in ("image", "sizes"))
        found = torch.export.load(file).module()(*given).detach().numpy()
    np.testing.assert_allclose(found, outputs, atol=1e-5)
    text = card.text(run, file, "best", parity)
    assert "| sizes | float64" in text
    exec(text.split("```python\n")[1].split("```")[0].replace(file.name, str(file)), {})


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, model, batch: model(batch.input, batch.arrays["sizes"]),
        lambda self, model, batch: model(batch.arrays.get("image"), batch["sizes"]),
        lambda self, model, batch: model(*[*batch.arrays.values()][::2]),
    ],
)
def test_programs_take_what_forward_takes_from_the_arrays(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forward: Any
) -> None:
    monkeypatch.setattr(Joining, "forward", forward)
    parity = export(run, tmp_path / "model.pt2")
    assert parity is not None and parity.holds and {"image", "sizes"} <= {one.name for one in parity.fields}


def test_a_forward_pass_that_asks_for_the_length_is_not_exported(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: Joining, model: nn.Module, batch: Batch) -> torch.Tensor:
        return model(batch.images, torch.zeros(len(batch), 2))

    monkeypatch.setattr(Joining, "forward", forward)
    with pytest.raises(UserError, match=r"asks for len\(batch\), .*; write batch.input.shape\[0\]"):
        export(run, tmp_path / "model.pt2")


def test_what_gives_a_model_images_alone_is_refused(run: Run, tmp_path: Path) -> None:
    state = layout.load_state(run.checkpoint())
    with pytest.raises(UserError, match=r"image files do not suit .*, which Joining.forward gives .*--split val"):
        inference.check_task(run, state, images=True, features=None, tta="")
    with pytest.raises(UserError, match=r"--features does not suit .*--split val, and without --features"):
        inference.predict(run, split="val", features="")
    assert "what Joining.forward gives it" in card.text(run, tmp_path / "m.pth", "best", None)
    with pytest.raises(
        UserError, match=r"Pipeline gives a model its input alone, .*Joining.forward .*; use --parallel"
    ):
        make(replace(E, parallel=Pipeline(), scaling=replace(E.scaling, workers=2)), here, "run")


def test_a_teacher_of_several_inputs_is_refused(run: Run, tmp_path: Path) -> None:
    export(run, tmp_path / "teacher.pt2")
    for teacher in (run.path, tmp_path / "teacher.pt2"):
        student = replace(E, model=Small(), task=Distillation(teacher=str(teacher)))
        with pytest.raises(UserError, match=r"was trained on several inputs.*; take a teacher of one input"):
            make(student, here, "run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"task": Classification()},
            r"missing 1 required positional argument: 'numbers'.*; write `def forward\(self, model, batch\): "
            r'return model\(batch.input, batch\["mask"\]\)` in the task',
        ),
        ({"data": config.replace(E.data, "wanted", "mask")}, r"and no 'sizes'.*; take one of these fields"),
    ],
)
def test_the_plan_says_what_a_forward_pass_lacks(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(replace(E, **change), here, "run")


def test_a_forward_pass_that_needs_labels_is_not_exported(run: Run, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Joining, "forward", lambda self, model, batch: model(batch.images, batch.labels))
    with pytest.raises(UserError, match=r"needs more than the data's fields: a batch of this data has .* no 'label'"):
        export(run, tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()
