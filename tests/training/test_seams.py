"""Each seam is one file of a user: model, source, task with a target of its own, metric, strategy, hook and logger."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from raytrain import order
from raytrain.run.experiment_file import load

FILES = {
    "scale.py": """
        import torch
        from torch import nn
        from raytrain import Model

        class OneWeight(nn.Module):
            def __init__(self, start):
                super().__init__()
                self.weight = nn.Parameter(torch.tensor(start))

            def forward(self, distance):
                return self.weight * distance

        @dataclass(frozen=True)
        class Scale(Model):
            start: float = 0.0

            def build(self, sample, classes):
                return OneWeight(self.start)
    """,
    "road.py": """
        import numpy as np
        from raytrain import Data, Field, Index

        @dataclass(frozen=True)
        class Road(Data):
            slope: float = 2.0

            def index(self):
                fields = (Field("distance", (), "float32"), Field("height", (), "float32"))
                splits = {"train": np.arange(40), "val": np.arange(40, 50)}
                return {name: Index(rows=rows, split=name, fields=fields) for name, rows in splits.items()}

            def read(self, index, samples):
                distance = (index.rows[samples] / 10).astype("float32")
                return {"distance": distance, "height": np.float32(self.slope) * distance}
    """,
    "height.py": """
        from raytrain import Task

        @dataclass(frozen=True)
        class Height(Task):
            def loss(self, model, batch):
                return (model(batch["distance"]) - batch["height"]).square().sum(), len(batch)
    """,
    "offset.py": """
        import torch
        from height import Height

        @dataclass(frozen=True)
        class Offset(Height):
            directions = {"offset": "min"}
            monitor: str = "val_offset"

            def sums(self, model, batch):
                off = (model(batch["distance"]) - batch["height"]).abs()
                return super().sums(model, batch) | {"off": off.sum()}

            def results(self, sums):
                return super().results(sums) | {"offset": float(sums["off"] / sums["count"])}
    """,
    "halved.py": """
        from raytrain import Parallel
        from raytrain.parallel.strategy import Strategy

        class HalvedGradients(Strategy):
            def reduce_gradients(self):
                for parameter in self.module.parameters():
                    parameter.grad /= 2

        @dataclass(frozen=True)
        class Halved(Parallel):
            def setup(self, build, ranks, shape):
                return HalvedGradients(build().to(ranks.device), ranks)
    """,
    "weight.py": """
        from raytrain import Hook

        @dataclass(frozen=True)
        class Weight(Hook):
            def after_step(self, trainer):
                return {"weight": trainer.strategy.module.weight.detach().clone()}
    """,
    "journal.py": """
        import json
        from raytrain import Logger

        @dataclass(frozen=True)
        class Journal(Logger):
            file: str = "journal.txt"

            def log(self, rows):
                with open(self.file, "a") as file:
                    file.writelines(f"{row['kind']} {row['step']}\\n" for row in rows)
    """,
    "exp.py": """
        from raytrain import SGD, Constant, Experiment
        from scale import Scale
        from road import Road
        from offset import Offset
        from halved import Halved
        from weight import Weight
        from journal import Journal

        experiment = Experiment(
            model=Scale(), data=Road(), task=Offset(), optimizer=SGD(lr=0.6), schedule=Constant(), parallel=Halved(),
            hooks=(Weight(),), loggers=(Journal(),), batch_size=16, epochs=2,
        )
    """,
}


def expected(seed: int, lr: float = 0.6, slope: float = 2.0) -> tuple[list[float], list[float], list[float]]:
    """The same training by NumPy: each step's loss and weight, and the offset after each epoch."""
    weight, losses, weights, offsets = 0.0, [], [], []
    for epoch in range(2):
        for first in range(0, 40, 16):
            distance = order.samples(seed, epoch, 40, np.arange(first, min(first + 16, 40))) / 10
            difference = (weight - slope) * distance
            losses.append(float(np.mean(difference**2)))
            weight -= lr * float(np.mean(2 * difference * distance)) / 2  # which the strategy halves
            weights.append(weight)
        offsets.append(float(np.mean(abs(weight - slope) * np.arange(40, 50) / 10)))
    return losses, weights, offsets


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, after a training there."""
    folder = tmp_path_factory.mktemp("user")
    for name, text in FILES.items():
        lines = "\n".join(line[8:] for line in text.splitlines())
        (folder / name).write_text(f"from dataclasses import dataclass\n{lines}\n")
    command = [sys.executable, "-m", "raytrain.cli", "train", "exp.py", "--scaling.workers", "0", "--name", "run"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "val_offset" in done.stdout
    return folder


def rows(folder: Path, kind: str) -> list[dict]:
    found = [json.loads(line) for line in (folder / "runs/run/metrics.jsonl").read_text().splitlines()]
    return [row for row in found if row["kind"] == kind]


def test_user_parts_train_as_a_plain_loop(folder: Path) -> None:
    losses, _, _ = expected(seed=load(folder / "runs/run/experiment.json")[0].seed)
    assert len(losses) == 6
    np.testing.assert_allclose([row["loss"] for row in rows(folder, "step")], losses, rtol=1e-4)


def test_a_metric_chooses_the_best_checkpoint(folder: Path) -> None:
    _, _, offsets = expected(seed=load(folder / "runs/run/experiment.json")[0].seed)
    np.testing.assert_allclose([row["val_offset"] for row in rows(folder, "epoch")], offsets, rtol=1e-4)
    best = json.loads((folder / "runs/run/best.json").read_text())
    assert best["checkpoint"] == "step_00000003" and np.argmin(offsets) == 0, "the steps are too large to get better"


def test_a_hook_adds_a_column(folder: Path) -> None:
    _, weights, _ = expected(seed=load(folder / "runs/run/experiment.json")[0].seed)
    np.testing.assert_allclose([row["weight"] for row in rows(folder, "step")], weights, rtol=1e-4)


def test_a_logger_gets_every_row_once(folder: Path) -> None:
    lines = (folder / "journal.txt").read_text().splitlines()
    assert [line for line in lines if line.startswith("step")] == [f"step {step}" for step in range(1, 7)]
    assert [line for line in lines if line.startswith("epoch")] == ["epoch 3", "epoch 6"]


def test_the_run_keeps_every_file_and_works_without_the_users(folder: Path) -> None:
    away = folder.with_name("away")
    folder.rename(away)
    try:
        value, _ = load(away / "runs/run/experiment.json")
    finally:
        away.rename(folder)
    assert [type(part).__name__ for part in (value.model, value.data, value.task, value.parallel)] == [
        "Scale", "Road", "Offset", "Halved"
    ]  # fmt: skip
    assert [type(part).__name__ for part in (*value.hooks, *value.loggers)] == ["Weight", "Journal"]
