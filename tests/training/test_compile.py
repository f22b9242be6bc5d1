"""torch.compile: each shape of a batch has a graph of its own, whatever came before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.ranks import losses, new_run, train_rank
from torch import fx, nn

from raytrain import CNN, SGD, Digits, Experiment

BASE = Experiment(
    model=CNN(channels=(4, 8)),
    data=Digits(),
    optimizer=SGD(lr=0.05, momentum=0.9),
    batch_size=64,
    epochs=3,
    compile=True,
)


class Graphs:
    """A backend of torch.compile that computes as plain PyTorch does, and notes which graph is called with what."""

    def __init__(self) -> None:
        self.made: list[bool] = []
        """Whether each graph takes inputs of any shape."""
        self.calls: list[tuple[int, int]] = []
        """(graph, samples) of each call."""

    def __call__(self, graph: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        number = len(self.made)
        shapes = [one.shape for one in examples if isinstance(one, torch.Tensor)]
        self.made.append(any(isinstance(size, torch.SymInt) for shape in shapes for size in shape))

        def call(*values: Any) -> Any:
            images = next(value for value in values if isinstance(value, torch.Tensor) and value.shape[1:] == (1, 8, 8))
            self.calls.append((number, len(images)))
            return graph.forward(*values)

        return call


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    found, original = Graphs(), nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: original(self, backend=found, **options))
    return found


def test_a_short_batch_leaves_full_batches_their_static_graph(tmp_path: Path, graphs: Graphs) -> None:
    indices = {split: index.take(np.arange(200)) for split, index in BASE.data.index().items()}  # 200 = 3 * 64 + 8
    train_rank(0, 1, BASE, new_run(tmp_path / "compiled", BASE), indices)
    assert graphs.made and not any(graphs.made), "no graph is for any shape"
    for size in (64, 8):
        served = [graph for graph, samples in graphs.calls if samples == size]
        assert len(set(served)) == 2, "one for training and one for validation"
        assert all(other == size for graph, other in graphs.calls if graph in served)
    e = replace(BASE, compile=False)
    train_rank(0, 1, e, new_run(tmp_path / "plain", e), indices)
    np.testing.assert_allclose(losses(tmp_path / "compiled"), losses(tmp_path / "plain"), rtol=1e-5)


def test_runs_of_one_process_do_not_use_up_each_other_s_graphs(tmp_path: Path, graphs: Graphs) -> None:
    indices = {split: index.take(np.arange(136)) for split, index in BASE.data.index().items()}
    for number in range(4):  # as a sweep's trials in one process, with 4 shapes each: torch keeps 8 graphs of a module
        e = replace(BASE, model=CNN(channels=(4, 8 + number)), epochs=1)
        train_rank(0, 1, e, new_run(tmp_path / str(number), e), indices)
        made = len(graphs.made)
        assert made == 4 * (number + 1)
