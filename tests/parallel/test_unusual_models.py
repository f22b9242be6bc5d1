"""Models that strategies must cut, shard or trace though they are not written for that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.ranks import Ranks, losses, new_run, on_workers, reference, train_rank
from helpers.strategies import BLOCKS, SHORT
from torch import nn
from torch.nn import functional as F
from torchvision import models

from raytrain import DDP, FSDP, Model, ModelParallel, Parallel, Pipeline, Run, TensorParallel, UserError
from raytrain.parallel.cutting import styles
from raytrain.parallel.pipeline_stages import cut


class Reading(nn.Module):
    """Reads parameters, a buffer and a constant by itself, its input twice, and an input that may be left out."""

    def __init__(self, classes: int):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.first, self.second, self.third = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, classes)
        self.noise: torch.Tensor
        self.register_buffer("noise", torch.rand(4, 64))
        self.fixed = torch.linspace(0.5, 1, 64)

    def forward(self, images: torch.Tensor, shift: torch.Tensor | None = None) -> torch.Tensor:
        given = images.flatten(1) * self.scale * self.fixed
        values = self.second(self.first(given).relu()).relu()
        if shift is None:
            values = values + images.flatten(1)
        values = F.dropout(self.third(values).relu() + self.noise[1], 0.0, self.training)
        return F.linear(self.norm(values), self.head.weight, self.head.bias)


class InPlace(nn.Module):
    """As torchvision's VGG: activations that change the output of the layer before them, and a counter."""

    def __init__(self, classes: int):
        super().__init__()
        widths = ((64, 64), (64, 48), (48, 32))
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.Linear(a, b), nn.ReLU(inplace=True), nn.Linear(b, b)) for a, b in widths),
            nn.Sequential(nn.ReLU(inplace=True), nn.Linear(32, 16)),
        )
        self.head = nn.Linear(16, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(images.flatten(1)))


class Counting(nn.Module):
    """Counts passes in a buffer of a module with layers, leaves layers out, and has a layer whose weight a hook makes,
    and views of a large buffer."""

    def __init__(self, classes: int):
        super().__init__()
        with pytest.warns(FutureWarning, match="deprecated"):
            self.first = nn.utils.weight_norm(nn.Linear(64, 64))
        self.second, self.unused, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, classes)
        self.noise: torch.Tensor
        self.register_buffer("passes", torch.tensor(0))
        self.register_buffer("noise", torch.rand(600, 600) * 0.1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.passes += 1
        values = self.first(images.flatten(1)).relu() + self.noise[0, :64]
        return self.head(self.second(values).relu())


KINDS = {kind.__name__: kind for kind in (Reading, InPlace, Counting)}


@dataclass(frozen=True)
class Unusual(Model):
    kind: str = "Reading"

    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return KINDS[self.kind](classes)


@pytest.mark.parametrize(
    ("kind", "parallel"),
    [
        ("Reading", Pipeline()),
        ("Reading", TensorParallel()),
        ("InPlace", Pipeline()),
        ("InPlace", TensorParallel()),
        ("InPlace", BLOCKS),
        ("Counting", TensorParallel()),
        ("Counting", ModelParallel(find_unused_parameters=True)),
    ],
    ids=str,
)
def test_unusual_models_train_as_in_one_process(ranks: Ranks, tmp_path: Path, kind: str, parallel: Parallel) -> None:
    e = on_workers(replace(SHORT, model=Unusual(kind), parallel=parallel, micro_batch_size=None, epochs=1), 2)
    expected, _ = reference(e, 12)
    assert set(ranks.run(2, train_rank, e, new_run(tmp_path / "run", e))) == {"completed"}
    np.testing.assert_allclose(losses(tmp_path / "run"), expected, rtol=1e-5)


@pytest.mark.parametrize("parallel", [DDP(reduction="torch"), ModelParallel()], ids=["ddp", "model_parallel"])
def test_a_layer_that_nothing_uses_is_named_in_the_first_step(ranks: Ranks, tmp_path: Path, parallel: Parallel) -> None:
    e = on_workers(replace(SHORT, model=Unusual("Counting"), parallel=parallel, epochs=1), 2)
    with pytest.raises(AssertionError, match=r"unused\.weight, unused\.bias.*in parallel\.find_unused_parameters"):
        ranks.run(2, train_rank, e, new_run(tmp_path / "run", e))
    assert Run(tmp_path / "run").metrics("step").num_rows == 0


def check(parallel: Parallel, module: nn.Module) -> str:
    return parallel.check(module, 2, 0, 4)


def test_pipeline_refuses_what_torch_fx_does_not_record() -> None:
    class Aside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            values = self.second(self.first(values))
            return values if self.training else values * 2

    class Pair(Aside):
        def forward(self, values: torch.Tensor) -> tuple[torch.Tensor, int]:  # type: ignore[override]
            return self.second(self.first(values)), 1

    class Two(Aside):
        def forward(self, values: torch.Tensor, others: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return self.second(self.first(values + others))

    counting = Counting(10)
    with pytest.raises(UserError, match="a module with layers changes its buffer passes"):
        check(Pipeline(), counting)
    assert counting.passes == 0 and not [name for name in vars(counting) if "constant" in name], (
        "a trace leaves nothing"
    )
    with pytest.raises(UserError, match="Aside takes other steps in training than in evaluation"):
        check(Pipeline(), Aside())
    with pytest.raises(UserError, match="Two has more inputs than one, which is all that a pipeline passes: others"):
        check(Pipeline(), Two())
    with pytest.raises(UserError, match="Pair returns a tuple, and a pipeline passes one tensor on"):
        check(Pipeline(), Pair())


@pytest.mark.parametrize("name", ["convnext_tiny", "swin_t", "vit"])
def test_stages_evaluate_and_train_as_torchvisions_model_does(name: str) -> None:
    build = {"vit": lambda: models.VisionTransformer(32, 8, 2, 2, 16, 32)}.get(name, getattr(models, name, None))
    assert build is not None
    module = build()
    parts, images = cut(module, 2), torch.randn(2, 3, 32, 32)
    for training in (False, True):
        module.train(training)
        torch.manual_seed(0)
        expected = module(images)
        torch.manual_seed(0)
        assert torch.equal(parts[1](parts[0](images)), expected)


def test_layers_with_hooks_are_whole_under_tensor_parallelism() -> None:
    module = Counting(10)
    assert styles(module, 2, 1).keys() == {"second", "unused", "head"}
    assert module.passes == 0, "the trace that finds pairs changes no buffer"


def test_fsdp_refuses_parameters_that_it_cannot_shard() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).double())
    with pytest.raises(UserError, match=r"one type together, and not 1\.weight \(float64\) and 0\.weight \(float32\)"):
        check(FSDP(), module)
    assert check(FSDP(block_parameters=1), module) == ""
    module[0].gain = nn.Parameter(torch.tensor(1.0))
    with pytest.raises(UserError, match=r"FSDP cannot shard 0\.gain, which has no dimension, .*the shape \(1,\)"):
        check(FSDP(block_parameters=1), module)
    assert FSDP().check(module, 1, 0, 1) == "", "one worker has whole parameters"
