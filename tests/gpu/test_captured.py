"""On a GPU: a run of CUDA graphs has the losses of one without, and takes no more memory from epoch to epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.cut_runs import BASE as DROPOUT
from helpers.on_gpu import notes, trained
from helpers.ranks import losses
from helpers.strategies import BASE
from torch import nn

from raytrain import MLP, SGD, AdamW, Augment, Balanced, Digits, Experiment, Hook, Model
from raytrain.training.graph import CapturedStep
from raytrain.training.trainer import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
E = replace(BASE, micro_batch_size=None, graph="on")


@dataclass(frozen=True)
class Watch(Hook):
    """Keeps the trainer, calls a function in each step before the update, and reads how much memory PyTorch holds."""

    call: Callable[[Any], None] = lambda trainer: None
    trainers: list[Trainer] = field(default_factory=list)
    held: list[int] = field(default_factory=list)

    def start(self, trainer: Trainer) -> None:
        self.trainers.append(trainer)

    def after_backward(self, trainer: Any) -> None:
        self.call(trainer)

    def after_epoch(self, trainer: Any, row: Any) -> None:
        self.held.append(torch.cuda.memory_reserved())

    @property
    def steps(self) -> Any:
        """The captured step."""
        return getattr(self.trainers[0].forward_backward, "__self__", None)


def spoil(trainer: Any) -> None:
    """Make the gradients of some steps infinite."""
    if trainer.progress.step in (1, 7, 10, 11):
        trainer.parameters[0].grad.fill_(float("inf"))


def on(**augment: Any) -> Experiment:
    return replace(E, data=Digits(augment=Augment(**augment)))


@pytest.mark.parametrize(
    ("e", "call"),
    [
        (E, None),
        (replace(E, precision="bf16"), None),
        (replace(E, precision="fp16"), None),
        (replace(E, precision="fp16", optimizer=AdamW(lr=0.01), clip_norm=None), spoil),
        (replace(E, optimizer=AdamW(lr=0.01), on_nonfinite="skip", ema_decay=0.9), spoil),
        (replace(E, optimizer=SGD(lr=0.05, momentum=0.9, weight_decay=0.01, layer_decay=0.7)), None),
        (replace(DROPOUT, micro_batch_size=None, graph="on"), None),
        (replace(E, model=MLP(hidden=(32,)), freeze=("*.0.*",), clip_norm=None, memory_format="contiguous"), None),
        (on(), None),
        (on(crop="random_resized", scale=(0.3, 1.0), flip=0.5), None),
        (on(flip=0.3, erase=0.5), None),
        (on(crop="random", padding=1, mixup=0.4, cutmix=1.0), None),
        (replace(E, sampler=Balanced()), None),
    ],
    ids=[
        *("crop and flip", "bf16", "fp16", "fp16, adam, skipped", "skip and ema", "groups", "dropout", "frozen"),
        *("nothing", "resized", "erased", "mixed", "weighted"),
    ],
)
def test_a_run_of_graphs_has_the_losses_of_one_without(tmp_path: Path, e: Experiment, call: Any) -> None:
    watch, plain = (Watch(call) if call else Watch() for _ in range(2))
    graphs = trained(tmp_path / "graphs", e, watch)
    without = trained(tmp_path / "without", replace(e, graph="off"), plain)
    assert not notes(graphs)
    (found,) = watch.steps.known.values()
    assert found.replays > 30 and found.update is not None and found.update.replays > 20
    assert watch.steps.loader.records, "the graph prepares the batches"
    np.testing.assert_allclose(losses(graphs.path), losses(without.path), rtol=2e-2 if e.precision != "fp32" else 2e-3)
    skipped = [
        [row["step"] for row in run.metrics("step").to_pylist() if row.get("skipped")] for run in (graphs, without)
    ]
    assert skipped[0] == skipped[1] and (len(skipped[0]) >= 4) == (call is not None)


@pytest.mark.parametrize("graph", ["on", "off"])
def test_memory_does_not_grow_from_epoch_to_epoch(tmp_path: Path, graph: Any) -> None:
    watch = Watch()
    trained(tmp_path / "run", replace(E, graph=graph, epochs=40), watch)
    assert len(watch.held) == 40 and len(set(watch.held[2:])) == 1, watch.held


def test_a_compiled_model_is_captured(tmp_path: Path) -> None:
    watch, plain = Watch(), Watch()
    graphs = trained(tmp_path / "graphs", replace(E, compile=True), watch)
    without = trained(tmp_path / "without", replace(E, graph="off"), plain)
    assert not notes(graphs) and isinstance(watch.steps, CapturedStep)
    np.testing.assert_allclose(losses(graphs.path), losses(without.path), rtol=2e-3)


@dataclass(frozen=True)
class Waits(Model):
    """A model that reads a number from the GPU."""

    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, classes))

            def forward(self, images: torch.Tensor) -> torch.Tensor:
                return self.head(images) * (1.0 if images.mean().item() < 1e9 else 0.0)

        return Net()


def test_a_model_that_reads_numbers_is_not_captured_and_trains_on(tmp_path: Path) -> None:
    e = Experiment(Waits(), Digits(), optimizer=SGD(lr=0.05), epochs=2)
    runs = [trained(tmp_path / graph, replace(e, graph=graph)) for graph in ("on", "off")]  # type: ignore[arg-type]
    np.testing.assert_allclose(*(losses(run.path) for run in runs), rtol=1e-3, err_msg="also dropout's numbers")
    assert "the pass is not captured as a CUDA graph: " in (said := notes(runs[0]))
    assert "capturing" in said, "the reason is that of the work, not that of the end of the capture"
