"""Settings that make each pass a collective: all ranks have equally many passes, and blank ones count for nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.ranks import Ranks, losses, new_run, on_workers, train_rank
from torch import nn

from raytrain import CNN, DDP, SGD, Digits, Experiment, Run, order
from raytrain.data import Index
from raytrain.data.transforms import Normalise

BASE = Experiment(
    model=CNN(channels=(8, 16), batch_norm=True),
    data=Digits(),
    optimizer=SGD(lr=0.05, momentum=0.9),
    batch_size=64,
    micro_batch_size=16,
    epochs=2,
)
SHORT = {
    "two ranks, passes of 16 and 1, and of 16": (2, 64, 16, 97),
    "three ranks, of which one has the last sample": (3, 48, 8, 97),
    "three ranks with 3, 3 and 2 passes": (3, 48, 4, 74),
}
"""(ranks, batch, micro-batch, samples): cases whose last batch is short."""


def few(samples: int) -> dict[str, Index]:
    return {split: index.take(np.arange(samples)) for split, index in BASE.data.index().items()}


def sized(case: str, parallel: DDP) -> Experiment:
    world, batch, micro_batch, _ = SHORT[case]
    return on_workers(replace(BASE, batch_size=batch, micro_batch_size=micro_batch, parallel=parallel), world)


def plain(e: Experiment, index: Index) -> tuple[list[float], nn.Module]:
    """The same training in one process: a pass of all ranks is one forward pass, over the samples that they have."""
    images = torch.from_numpy(e.data.read(index, np.arange(len(index))))
    torch.manual_seed(order.key(e.seed, 0) >> 1)
    model = e.model.build(index.shape, len(index.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    normalise, found, world = Normalise(e.data.mean, e.data.std), [], e.scaling.ranks
    for step in range(e.epochs * -(-len(index) // e.batch_size)):
        epoch, k = divmod(step, -(-len(index) // e.batch_size))
        shards = [order.Shard(len(index), e.batch_size, rank, world) for rank in range(world)]
        slices = [np.arange(*shard.slice(k)) for shard in shards]
        total, size = 0.0, shards[0].size(k)
        for start in range(0, max(map(len, slices)), e.micro_batch):
            positions = np.concatenate([part[start : start + e.micro_batch] for part in slices])
            ids = order.samples(e.seed, epoch, len(index), positions)
            labels = torch.from_numpy(index.labels[ids])
            loss = nn.functional.cross_entropy(model(normalise(images[ids])), labels, reduction="sum") / size
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        found.append(total)
    return found, model


@pytest.mark.parametrize("case", SHORT)
def test_static_graph_ends_a_short_batch_with_all_ranks(ranks: Ranks, tmp_path: Path, case: str) -> None:
    world, _, _, samples = SHORT[case]
    found = []
    for graph in (True, False):
        e = sized(case, DDP(reduction="torch", static_graph=graph))
        # Each rank's own BatchNorm: rank 0's statistics count, of which none is of a blank pass.
        run = new_run(tmp_path / str(graph), e)
        assert ranks.run(world, train_rank, e, run, few(samples)) == ["completed"] * world
        found.append((losses(run), Run(run).model("last").state_dict()))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    for name, value in found[1][1].items():
        torch.testing.assert_close(found[0][1][name], value, rtol=1e-4, atol=1e-6)


class Kernels:
    """What torch's SyncBatchNorm calls on a GPU, in plain operators: https://github.com/pytorch/pytorch,
    aten/src/ATen/native/cuda/Normalization.cuh. Its collectives are torch's own."""

    @staticmethod
    def shaped(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return value.view(1, -1, *[1] * (like.dim() - 2))

    @staticmethod
    def over(like: torch.Tensor) -> list[int]:
        return [0, *range(2, like.dim())]

    @classmethod
    def batch_norm_stats(cls, images: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
        variance, mean = torch.var_mean(images.float(), cls.over(images), correction=0)
        return mean, torch.rsqrt(variance + eps)

    @staticmethod
    def batch_norm_gather_stats_with_counts(
        images: torch.Tensor,
        means: torch.Tensor,
        invstds: torch.Tensor,
        running_mean: torch.Tensor,
        running_var: torch.Tensor,
        momentum: float,
        eps: float,
        counts: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        share = (counts / counts.sum())[:, None]
        mean = (share * means).sum(0)
        variance = (share * (invstds**-2 - eps + (means - mean) ** 2)).sum(0)
        running_mean.lerp_(mean, momentum)
        running_var.lerp_(variance * counts.sum() / (counts.sum() - 1), momentum)
        return mean, torch.rsqrt(variance + eps)

    @classmethod
    def batch_norm_elemt(
        cls, images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, mean: Any, invstd: Any, eps: float
    ) -> torch.Tensor:
        mean, scale, bias = (cls.shaped(value, images) for value in (mean, invstd * weight, bias))
        return ((images - mean) * scale + bias).to(images.dtype)

    @classmethod
    def batch_norm_backward_reduce(
        cls, gradient: torch.Tensor, images: torch.Tensor, mean: Any, invstd: Any, *_: Any
    ) -> tuple[torch.Tensor, ...]:
        total = gradient.float().sum(cls.over(images))
        moment = (gradient * (images - cls.shaped(mean, images))).float().sum(cls.over(images))
        return total, moment, moment * invstd, total

    @classmethod
    def batch_norm_backward_elemt(
        cls,
        gradient: torch.Tensor,
        images: torch.Tensor,
        mean: Any,
        invstd: Any,
        weight: Any,
        total: Any,
        moment: Any,
        counts: torch.Tensor,
    ) -> torch.Tensor:
        size = counts.sum()
        mean, scale, total, moment = (
            cls.shaped(value, images) for value in (mean, invstd * weight, total / size, moment * invstd**2 / size)
        )
        return ((gradient - total - (images - mean) * moment) * scale).to(images.dtype)


def synchronised_rank(
    rank: int, world: int, e: Experiment, run: Path, indices: dict[str, Index]
) -> dict[str, torch.Tensor]:
    """`train_rank` with SyncBatchNorm's kernels on the CPU; returns the rank's own buffers."""
    found: dict[str, torch.Tensor] = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in vars(Kernels):
            if name.startswith("batch_norm"):
                patch.setattr(torch, name, getattr(Kernels, name))
        forward = nn.SyncBatchNorm.forward

        def accepted(self: nn.SyncBatchNorm, images: torch.Tensor) -> torch.Tensor:
            with pytest.MonkeyPatch.context() as inner:  # it names the kinds of devices that it accepts
                inner.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "cpu")
                return forward(self, images)

        patch.setattr(nn.SyncBatchNorm, "forward", accepted)
        original = nn.parallel.DistributedDataParallel.__init__

        def no_broadcast(self: Any, module: nn.Module, **options: Any) -> None:
            found.update((name, buffer) for name, buffer in module.named_buffers())
            original(self, module, **options, forward_sync_buffers=False)  # so that each rank keeps its own

        patch.setattr(nn.parallel.DistributedDataParallel, "__init__", no_broadcast)
        patch.setattr(nn.parallel.DistributedDataParallel, "_passing_sync_batchnorm_handle", lambda *_: None)
        assert train_rank(rank, world, e, run, indices) == "completed"
    return {name: buffer.clone() for name, buffer in found.items()}


@pytest.mark.parametrize("case", SHORT)
def test_sync_batchnorm_normalises_over_all_real_samples(ranks: Ranks, tmp_path: Path, case: str) -> None:
    world, _, _, samples = SHORT[case]
    e = sized(case, DDP(reduction="torch", sync_batchnorm=True))
    run, indices = new_run(tmp_path / "run", e), few(samples)
    buffers = ranks.run(world, synchronised_rank, e, run, indices)
    expected, model = plain(e, indices["train"])
    np.testing.assert_allclose(losses(run), expected, rtol=1e-5)
    weights = Run(run).model("last").state_dict()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)
    for found in buffers:
        for name, value in model.named_buffers():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


def test_sync_batchnorm_blank_passes_exchange_bf16(ranks: Ranks, tmp_path: Path) -> None:
    case = "three ranks, of which one has the last sample"
    world, _, _, samples = SHORT[case]
    e = replace(sized(case, DDP(reduction="torch", sync_batchnorm=True)), precision="bf16")
    run, indices = new_run(tmp_path / "run", e), few(samples)
    ranks.run(world, synchronised_rank, e, run, indices)
    np.testing.assert_allclose(losses(run), plain(e, indices["train"])[0], rtol=0.05)
