"""Batches that a graph gathers, crops, flips, erases, mixes and normalises, on a CPU: they have the bits of plain ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.graphs import Capture, Replayed
from helpers.ranks import Ranks, losses, new_run, on_workers, train_rank
from helpers.strategies import BASE
from test_graph import alike, notes, trained
from test_graph_update import Launches, Silent

from raytrain import (
    DDP,
    MLP,
    Augment,
    Classification,
    Digits,
    Experiment,
    HorizontalFlip,
    Hook,
    Progressive,
    Run,
    Weighted,
)
from raytrain.data import loader
from raytrain.training.trainer import Trainer

E = replace(
    BASE,
    model=MLP(hidden=(16,)),
    data=Digits(augment=Augment(crop="random", padding=2, flip=0.5)),
    micro_batch_size=None,
    hooks=(),
    epochs=2,
    graph="on",
)
PLAINLY = 3
"""Steps before a capture."""


@pytest.fixture(autouse=True)
def few_steps_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies the rows of few steps at a time, so that a graph sees several tables."""
    monkeypatch.setattr(loader, "_STEPS", 5)


class Count(Hook):
    """Counts the batches that are prepared by the graph, and those that are not."""

    def start(self, trainer: Trainer) -> None:
        self.captured = self.plain = 0
        prepare = trainer.loaders["train"].prepare
        for name in ("augmented", "evaluated"):
            setattr(prepare, name, self.counted(getattr(prepare, name)))

    def counted(self, call: Any) -> Any:
        def counting(*arguments: Any, **more: Any) -> Any:
            self.plain += 1
            return call(*arguments, **more)

        return counting


def on(augment: Augment) -> Experiment:
    return replace(E, data=Digits(augment=augment))


@pytest.mark.parametrize(
    "e",
    [
        replace(E, memory_format="contiguous", precision="bf16"),
        on(Augment()),
        on(Augment(crop="random_resized", scale=(0.3, 1.0), flip=0.5)),
        on(Augment(flip=0.3, erase=0.5)),
        on(Augment(crop="random", padding=1, mixup=0.4, cutmix=1.0)),
        on(Augment(cutmix=0.5)),
        replace(E, sampler=Weighted(classes=tuple(map(float, range(1, 11)))), precision="fp16"),
    ],
    ids=["crop and flip", "nothing", "resized", "erased", "mixed", "cut", "weighted"],
)
def test_captured_preparations_have_the_bits_of_plain_ones(tmp_path: Path, e: Experiment) -> None:
    hook, count = Capture(), Count()
    captured, plain = trained(tmp_path / "captured", e, hook, count), trained(tmp_path / "plain", replace(e, graph="off"))
    alike_without_norms(captured, plain)
    (found,) = hook.steps.known.values()
    steps, full = len(losses(plain.path)), 2 * (1437 // 64)
    assert found.replays == full - PLAINLY and not notes(captured)
    assert count.plain == PLAINLY + 2 + steps - full, "before the capture, compared, and short last batches"


def alike_without_norms(one: Run, other: Run) -> None:
    np.testing.assert_array_equal(losses(one.path), losses(other.path))
    weights = other.model("last").state_dict()
    for name, weight in one.model("last").state_dict().items():
        assert torch.equal(weight, weights[name]), name
