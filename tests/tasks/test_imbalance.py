"""What class weights are for: rare classes of digits, found by a user's own macro-F1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from helpers.ranks import new_run, train_rank

from raytrain import F1, MLP, SGD, Batch, Classification, Digits, Experiment, Index, Metric, Run
from raytrain.tasks.losses import classes, pixels


@dataclass(frozen=True)
class Rare(Digits):
    """Digits of which the classes from 5 on have one training sample for 50 of the others."""

    def index(self) -> dict[str, Index]:
        found = super().index()
        labels = found["train"].labels
        kept = [np.flatnonzero(labels == digit)[: None if digit < 5 else 3] for digit in range(10)]
        return found | {"train": found["train"].take(np.sort(np.concatenate(kept)))}


@dataclass(frozen=True)
class MyF1(Metric):
    directions: ClassVar[Mapping[str, Any]] = {"my_f1": "max"}

    def sums(self, outputs: torch.Tensor, batch: Batch) -> dict[str, torch.Tensor]:
        n = outputs.shape[1]
        return {"pairs": (batch["target"] * n + outputs.argmax(1)).bincount(minlength=n * n).view(n, n)}

    def values(self, found: Mapping[str, np.ndarray]) -> dict[str, float]:
        pairs = found["pairs"]
        return {"my_f1": float((2 * pairs.diagonal() / np.maximum(pairs.sum(0) + pairs.sum(1), 1)).mean())}


@pytest.mark.parametrize("seed", [0, 1])
def test_class_weights_raise_the_macro_f1_of_rare_classes(tmp_path: Path, seed: int) -> None:
    torch.set_num_threads(1)
    counts = np.bincount(Rare().index()["train"].labels)
    assert counts.max() / counts.min() == pytest.approx(49, abs=1)
    found = {}
    for name, weights in (("plain", ()), ("weighted", (0.1,) * 5 + (5.0,) * 5)):
        task = Classification(class_weights=weights, metrics=(MyF1(), F1()), monitor="val_my_f1")
        e = Experiment(MLP(hidden=(32,)), Rare(), task, SGD(lr=0.05, momentum=0.9), batch_size=64, epochs=8, seed=seed)
        run = new_run(tmp_path / name, e)
        assert train_rank(0, 1, e, run) == "completed"
        rows, summary = Run(run).metrics().to_pylist(), Run(run).summary
        found[name] = summary["val_my_f1"]
        assert found[name] == max(row["val_my_f1"] for row in rows) == pytest.approx(summary["val_macro_f1"])
        assert summary["monitor"] == "val_my_f1"
    assert found["weighted"] >= found["plain"] + 0.05, found


def test_patience_follows_a_users_metric(tmp_path: Path) -> None:
    task = Classification(metrics=(MyF1(),), monitor="val_my_f1")
    e = Experiment(MLP(hidden=(4,)), Digits(), task, SGD(lr=1e-9), batch_size=512, epochs=9, patience=2)
    run = new_run(tmp_path / "run", e)
    train_rank(0, 1, e, run)
    assert Run(run).summary["epochs"] == 3 and Run(run).summary["stopped_early"]


def test_weights_suit_models_in_double_precision() -> None:
    logits, labels = torch.randn(4, 3, 2, 2, dtype=torch.float64), torch.randint(3, (4, 2, 2))
    weights = torch.tensor([0.1, 1, 2], dtype=torch.float64)
    each = torch.nn.functional.cross_entropy(logits, labels, weights, reduction="none")
    found = pixels(logits, labels, (0.1, 1.0, 2.0))
    torch.testing.assert_close(found, each.flatten(1).mean(1), rtol=1e-12, atol=0)
    found = classes(logits[..., 0, 0], labels[..., 0, 0], (0.1, 1.0, 2.0), 0.0, 0.0)
    torch.testing.assert_close(found, each[..., 0, 0].sum(), rtol=1e-12, atol=0)
