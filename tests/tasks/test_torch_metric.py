"""TorchMetric: values of torchmetrics over uneven batches, names, directions, JSON, mistakes, and a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from helpers.commands import fails
from helpers.ranks import new_run, train_rank
from torch import nn
from torchmetrics import classification, regression

from raytrain import (
    CNN,
    MLP,
    Batch,
    Classification,
    Digits,
    Experiment,
    MultiLabel,
    Regression,
    Run,
    Supervised,
    TorchMetric,
    UserError,
)
from raytrain import config as config_module
from raytrain.driver.baseline import baseline
from raytrain.run import experiment_file
from raytrain.tasks.metrics import Sums

CODE = """
import torchmetrics
from raytrain import MLP, Classification, Digits, Experiment, TorchMetric
kappa = TorchMetric(torchmetrics.classification.MulticlassCohenKappa, column="kappa")
experiment = Experiment(MLP(hidden=(8,)), Digits(), task=Classification(metrics=(kappa,), monitor="val_kappa"))
"""


def measured(task: Supervised, whole: Batch) -> dict[str, float]:
    """Return the results of batches of 100 that come in another order than their numbers."""
    sums = Sums()
    for start in (200, 0, 100):
        part = slice(start, start + 100)
        arrays = {name: array[part] for name, array in whole.arrays.items()}
        sums.add(task.sums(nn.Identity(), Batch(arrays, whole.ids[part])))
    return task.results(sums.reduce(torch.device("cpu")))


def labelled() -> tuple[torch.Tensor, torch.Tensor, Batch]:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(250, 5, generator=generator), torch.randint(0, 5, (250,), generator=generator)
    return logits, labels, Batch({"image": logits, "label": labels}, np.arange(250))


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (classification.MulticlassCohenKappa, {}),
        (classification.MulticlassMatthewsCorrCoef, {}),
        (classification.MulticlassAUROC, {"average": "weighted"}),
        (classification.MulticlassHingeLoss, {"squared": True}),
    ],
)
def test_values_are_torchmetrics_over_all_samples(kind: type, arguments: dict) -> None:
    logits, labels, whole = labelled()
    (name,) = TorchMetric(kind, **arguments).declared()
    expected = kind(num_classes=5, **arguments)(logits, labels).item()
    task = Classification(metrics=(TorchMetric(kind, **arguments),))
    assert measured(task, whole)[name] == pytest.approx(expected, abs=1e-6)
    assert task.declared()[f"val_{name}"] == ("min" if kind is classification.MulticlassHingeLoss else "max")


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (classification.MultilabelAUROC, {"average": "weighted"}),
        (classification.MultilabelAveragePrecision, {}),
        (classification.MultilabelMatthewsCorrCoef, {}),
        (torchmetrics.AUROC, {"task": "multilabel"}),
    ],
)
def test_several_labels_have_metrics_of_torchmetrics_too(kind: type, arguments: dict) -> None:
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(250, 4, generator=generator), torch.randint(0, 2, (250, 4), generator=generator)
    task = MultiLabel(metrics=(metric := TorchMetric(kind, **arguments, direction="max"),))
    (name,) = metric.declared()
    found = measured(task, Batch({"x": logits, "y": labels.to(torch.uint8)}, np.arange(250)))
    assert found[name] == pytest.approx(kind(num_labels=4, **arguments)(logits, labels).item(), abs=1e-6)


def test_a_regression_has_metrics_of_torchmetrics_too() -> None:
    generator = torch.Generator().manual_seed(0)
    values, wanted = torch.randn(300, 3, generator=generator), torch.randn(300, 3, generator=generator)
    task = Regression(target="y", metrics=(TorchMetric(regression.LogCoshError, num_outputs=3),))
    with pytest.raises(UserError, match="LogCoshError does not compute one number"):
        measured(task, Batch({"x": values, "y": wanted}, np.arange(300)))
    task = Regression(target="y", metrics=(TorchMetric(regression.CosineSimilarity, reduction="mean"),))
    expected = regression.CosineSimilarity(reduction="mean")(values, wanted).item()
    found = measured(task, Batch({"x": values, "y": wanted}, np.arange(300)))
    assert found["cosine_similarity"] == pytest.approx(expected, abs=1e-6)


def test_a_saved_experiment_has_the_same_metric() -> None:
    metric = TorchMetric(classification.MulticlassFBetaScore, beta=0.5, column="f_half")
    value = Experiment(CNN(), Digits(), task=Classification(metrics=(metric,), monitor="val_f_half"))
    values = json.loads(json.dumps(config_module.to_dict(value)))
    (saved,) = values["task"]["metrics"]
    assert saved["class"] == "raytrain:TorchMetric(torchmetrics.classification:MulticlassFBetaScore)"
    assert saved["beta"] == 0.5 and config_module.from_dict(Experiment, values, "a test") == value
    other = config_module.replace(value, "task.metrics.0.beta", 2.0)
    assert other.task.metrics == (TorchMetric(classification.MulticlassFBetaScore, beta=2.0, column="f_half"),)


def test_direction_is_declared_and_never_guessed() -> None:
    with pytest.raises(UserError, match=r"F1Score does not declare whether a higher value is better.*direction="):
        TorchMetric(torchmetrics.F1Score, task="multiclass")
    found = TorchMetric(torchmetrics.F1Score, task="multiclass", average="macro", direction="max")
    logits, labels, whole = labelled()
    expected = classification.MulticlassF1Score(num_classes=5)(logits, labels).item()
    assert measured(Classification(metrics=(found,)), whole)["f1_score"] == pytest.approx(expected, abs=1e-6)
    with pytest.raises(UserError, match=r"TorchMetric takes a class derived from torchmetrics\.Metric"):
        TorchMetric(nn.Linear)


@pytest.mark.parametrize("metric", [classification.MulticlassFBetaScore, classification.MulticlassFBetaScore(2.0, 10)])
def test_a_plain_metric_of_torchmetrics_is_to_be_wrapped(metric: Any) -> None:
    with pytest.raises(UserError, match=r"wrong type.*write `from raytrain import TorchMetric` and ") as raised:
        Classification(metrics=(metric,))
    wanted = "metrics=(TorchMetric(torchmetrics.classification.MulticlassFBetaScore, beta=...),)"
    assert str(raised.value).endswith(wanted)


def test_a_run_monitors_it_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "exp.py").write_text(CODE)
    e = replace(experiment_file.load(tmp_path / "exp.py")[0], epochs=2)
    run = Run(new_run(tmp_path / "run", e))
    train_rank(0, 1, e, run.path)
    train_rank(0, 1, replace(run.experiment, epochs=3), run.path)
    best = max(run.metrics()["val_kappa"].to_pylist())
    assert run.metrics().num_rows == 3 and run.summary["val_kappa"] == best > 0
    said = fails(capsys, "train", tmp_path / "exp.py", "--out", tmp_path, "--task.monitor", "val_kapa")
    assert "did you mean val_kappa?" in said


def test_the_plan_scores_a_constant_answer() -> None:
    found = (classification.MulticlassCohenKappa, classification.MulticlassMatthewsCorrCoef)
    metrics = tuple(TorchMetric(one, column=f"c{number}") for number, one in enumerate(found))
    value = Experiment(MLP(hidden=(8,)), Digits(), task=Classification(metrics=metrics))
    scores = baseline(value, Digits().index()).scores
    assert scores["val_c0"] == 0 and scores["val_c1"] == 0 and 0 < scores["val_accuracy"] < 0.2
