"""Models with unusual tensors: buffers of any type, buffers that their code replaces, and complex parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.ranks import Ranks, losses, new_run, on_workers, train_rank
from torch import nn

from raytrain import (
    DDP,
    SGD,
    Adam,
    Checkpoint,
    Deterministic,
    Digits,
    Experiment,
    Index,
    Model,
    Optimizer,
    Parallel,
    Run,
    TorchOptimizer,
)

DTYPES = ("bool", "int16", "uint8", "int64", "float16", "bfloat16", "float64", "complex64")


class Masked(nn.Module):
    """Buffers of all types, and one that each forward pass replaces."""

    def __init__(self, pixels: int, classes: int, dtypes: tuple[str, ...]):
        super().__init__()
        self.first, self.head = nn.Linear(pixels, 16), nn.Linear(16, classes)
        for name in dtypes:
            self.register_buffer(f"of_{name}", torch.ones(2, dtype=getattr(torch, name)))
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = self.first(images.flatten(1))
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * found.detach().mean(0)
        return self.head((found - self.mean).relu())


@dataclass(frozen=True)
class MaskedModel(Model):
    dtypes: tuple[str, ...] = DTYPES

    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return Masked(64, classes, self.dtypes)


E = Experiment(
    MaskedModel(), Digits(), optimizer=SGD(lr=0.05, momentum=0.9), batch_size=256, epochs=2, checkpoint=Checkpoint()
)


def train(ranks: Ranks, e: Experiment, run: Path, world: int) -> np.ndarray:
    if not run.exists():
        new_run(run, e)
    assert set(ranks.run(world, train_rank, on_workers(e, world), run)) == {"completed"}
    return losses(run)


@pytest.mark.parametrize(
    ("parallel", "world"), [(DDP(), 1), (DDP(), 2), (Deterministic(), 2)], ids=["one", "two", "deterministic"]
)
def test_buffers_of_any_type_are_exchanged_averaged_and_kept(
    ranks: Ranks, tmp_path: Path, parallel: Parallel, world: int
) -> None:
    e = replace(E, parallel=parallel, swa_start_epoch=1)
    train(ranks, e, tmp_path / "run", world)
    found = Run(tmp_path / "run").model("last").state_dict()
    for name in DTYPES:
        torch.testing.assert_close(found[f"of_{name}"], torch.ones(2, dtype=getattr(torch, name)))


def test_a_replaced_buffer_gives_the_same_bits_on_any_number_of_workers(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(E, parallel=Deterministic())
    one, two = (train(ranks, e, tmp_path / f"{world}", world) for world in (1, 2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("reduction", ["shared", "torch"])
def test_checkpoints_and_validations_do_not_change_a_replaced_buffer(
    ranks: Ranks, tmp_path: Path, reduction: str
) -> None:
    model = MaskedModel(("bool",))  # gloo has no int16, which DistributedDataParallel would send
    e = replace(E, model=model, parallel=DDP(reduction=reduction))  # type: ignore[arg-type]
    plain = train(ranks, e, tmp_path / "plain", 2)
    watched = replace(e, validate_every_steps=2, checkpoint=Checkpoint(every_steps=1))
    np.testing.assert_array_equal(train(ranks, watched, tmp_path / "watched", 2), plain)


def test_a_replaced_buffer_is_averaged(ranks: Ranks, tmp_path: Path) -> None:
    e = replace(E, checkpoint=Checkpoint(keep=99))
    train(ranks, e, tmp_path / "plain", 1)
    means = []
    for step in (6, 12):
        (tmp_path / "plain" / "last.json").write_text(f'{{"checkpoint": "step_{step:08d}"}}')
        means.append(Run(tmp_path / "plain").model("last").state_dict()["mean"])
    train(ranks, replace(e, swa_start_epoch=1), tmp_path / "averaged", 1)
    found = Run(tmp_path / "averaged").model("last").state_dict()["mean"]
    torch.testing.assert_close(found, (means[0] + means[1]) / 2)


@lru_cache
def window(count: int) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, count)[:, None]


class Caching(nn.Module):
    """Keeps a tensor for each size of a batch, and counts passes in a buffer."""

    def __init__(self, pixels: int, classes: int):
        super().__init__()
        self.first, self.head = nn.Linear(pixels, 16), nn.Linear(16, classes)
        self.register_buffer("passes", torch.tensor(0))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.passes = self.passes + 1
        return self.head((self.first(images.flatten(1)) * window(len(images))).relu())


@dataclass(frozen=True)
class CachingModel(Model):
    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return Caching(64, classes)


@pytest.mark.parametrize("world", [1, 2])
def test_what_a_model_keeps_of_a_validation_serves_training(ranks: Ranks, tmp_path: Path, world: int) -> None:
    indices: dict[str, Index] = {split: index.take(np.arange(138)) for split, index in E.data.index().items()}
    indices["val"] = indices["val"].take(np.arange(10))  # as many as the last batch of an epoch
    e = replace(E, model=CachingModel(), batch_size=64, validate_every_steps=1, parallel=DDP(reduction="torch"))
    e, run = on_workers(e, world), new_run(tmp_path / "run", e)
    assert set(ranks.run(world, train_rank, e, run, indices)) == {"completed"}


class Spectral(nn.Module):
    """Complex weights, as Fourier neural operators have them."""

    def __init__(self, classes: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 5, dtype=torch.complex64))
        self.head = nn.Linear(64, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(torch.fft.irfft2(torch.fft.rfft2(images) * self.weight).flatten(1))


@dataclass(frozen=True)
class SpectralModel(Model):
    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return Spectral(classes)


@pytest.mark.parametrize(
    "optimizer",
    [SGD(lr=0.05, momentum=0.9), Adam(lr=1e-3), TorchOptimizer(torch.optim.RMSprop, lr=1e-3)],
    ids=["sgd", "adam", "rmsprop"],
)
def test_complex_parameters_are_trained_and_resumed(ranks: Ranks, tmp_path: Path, optimizer: Optimizer) -> None:
    e = replace(E, model=SpectralModel(), optimizer=optimizer, ema_decay=0.9, clip_norm=1.0)
    whole = train(ranks, replace(e, epochs=3), tmp_path / "whole", 2)
    train(ranks, e, tmp_path / "cut", 2)
    np.testing.assert_array_equal(train(ranks, replace(e, epochs=3), tmp_path / "cut", 2), whole)
    assert Run(tmp_path / "cut").model("last").state_dict()["weight"].is_complex()


class Polar(nn.Module):
    """Makes complex numbers of two real ones, for which torch has no bfloat16."""

    def __init__(self, pixels: int, classes: int):
        super().__init__()
        self.first, self.head = nn.Linear(pixels, 32), nn.Linear(16, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        real, imaginary = self.first(images.flatten(1)).chunk(2, 1)
        return self.head(torch.complex(real, imaginary).abs())


@dataclass(frozen=True)
class PolarModel(Model):
    def build(self, sample: tuple[int, ...], classes: int) -> nn.Module:
        return Polar(64, classes)


def test_auto_precision_leaves_out_what_the_model_cannot_compute_in(ranks: Ranks, tmp_path: Path) -> None:
    train(ranks, replace(E, model=PolarModel(), precision="auto"), tmp_path / "run", 1)
    summary = Run(tmp_path / "run").summary
    assert summary["precision_milliseconds"]["bf16"] is None and summary["precision"] in ("fp32", "fp16")
