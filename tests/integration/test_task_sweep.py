"""Sweeps of what a task measures: a user's own metric, highest first, and an error, lowest first."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

import raytrain
from raytrain import ASHA, TPE, Grid, LogUniform, Run, Sweep
from raytrain.run.experiment_file import load

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.slow]

CODE = """
    from dataclasses import dataclass
    import numpy as np
    from raytrain import MLP, SGD, Classification, Digits, Experiment, Field, Index, Metric, Regression

    @dataclass(frozen=True)
    class MyF1(Metric):
        directions = {"my_f1": "max"}
        def sums(self, outputs, batch):
            n = outputs.shape[1]
            return {"pairs": (batch["target"] * n + outputs.argmax(1)).bincount(minlength=n * n).view(n, n)}
        def values(self, found):
            pairs = found["pairs"]
            return {"my_f1": float((2 * pairs.diagonal() / np.maximum(pairs.sum(0) + pairs.sum(1), 1)).mean())}

    @dataclass(frozen=True)
    class Ink(Digits):
        def index(self):
            fields = (Field("image", (1, 8, 8), kind="image"), Field("ink", (), "float32"))
            return {s: Index(rows=i.rows, split=s, fields=fields) for s, i in super().index().items()}
        def read(self, index, samples):
            images = super().read(index, samples)
            return {"image": images, "ink": (images / 255).mean((1, 2, 3)).astype(np.float32)}
"""
OWN = "experiment = Experiment(MLP(hidden=(16,)), Digits(), Classification(metrics=(MyF1(),)), SGD(lr=0.1), epochs=2)"
INK = "experiment = Experiment(Head(), Ink(), Regression(target='ink'), SGD(lr=0.01), epochs=2)"
HEAD = """
    from torch import nn
    from raytrain import Model

    @dataclass(frozen=True)
    class Head(Model):
        def build(self, sample, classes):
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 1))
"""


def swept(tmp_path: Path, text: str, axes: Any, **options: Any) -> Any:
    file = tmp_path / "exp.py"
    file.write_text(textwrap.dedent(text))
    value, _ = load(file)
    return raytrain.sweep(Sweep(value, axes, **options), out=str(tmp_path), name="sweep", quiet=True)


def values(found: Any, name: str) -> list[list[float]]:
    """The metric of each epoch of each trial."""
    trials = [found.path / "trials" / f"{trial['number']:04d}" for trial in found.trials]
    return [Run(path).metrics()[name].to_pylist() for path in trials]


def test_a_sweep_maximises_a_users_metric(tmp_path: Path) -> None:
    found = swept(tmp_path, CODE + f"\n    {OWN}\n", (Grid("optimizer.lr", (1e-6, 0.2, 1e-5)),), objective="val_my_f1")
    each = [max(of) for of in values(found, "val_my_f1")]
    assert [trial["objective"] for trial in found.trials] == [[value] for value in each]
    assert found.answer["best"] == 1 == each.index(max(each)) and found.best.experiment.task.monitor == "val_my_f1"


def test_asha_and_tpe_minimise_an_error(tmp_path: Path) -> None:
    axes = (LogUniform("optimizer.lr", 1e-6, 0.05),)
    text = CODE + HEAD + f"\n    {INK}\n"
    found = swept(tmp_path, text, axes, objective="val_mae", trials=6, search=TPE(startup=3), scheduler=ASHA())
    each = [min(of) for of in values(found, "val_mae")]
    assert found.answer["best"] == each.index(min(each)) and found.best.experiment.task.monitor == "val_mae"
    assert [trial["objective"] for trial in found.trials] == [[value] for value in each]
