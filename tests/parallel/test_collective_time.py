"""The time that a collective may take, in the default group and in those that strategies make."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from helpers.ranks import Ranks
from torch import nn

from raytrain import FSDP, Parallel, Pipeline, Scaling, TensorParallel
from raytrain.driver.ray_internals import ray_train
from raytrain.errors import UserError
from raytrain.parallel.meshes import mesh_of
from raytrain.parallel.strategy import RankContext

CPU = torch.device("cpu")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def waits_alone(rank: int, world: int) -> tuple[float, str]:
    """Rank 0 begins a collective of a group of two; the other one comes only after its time."""
    ranks = RankContext(rank, world, CPU, collective_seconds=1.0)
    mesh = mesh_of(ranks, (2, 2), ("replica", "shard"))
    dist.all_reduce(torch.ones(1), group=mesh.get_group("shard"))
    began, said = time.monotonic(), ""
    if rank == 0:
        try:
            dist.all_reduce(torch.ones(1), group=mesh.get_group("shard"))
        except RuntimeError as error:
            said = str(error)
    seconds = time.monotonic() - began
    dist.barrier()
    return seconds, said


def test_a_group_of_a_mesh_waits_no_longer_than_that(ranks: Ranks) -> None:
    (seconds, said), *_ = ranks.run(4, waits_alone)
    assert 0.9 < seconds < 20 and "Timed out waiting 1000ms for" in said


def limits(rank: int, world: int, value: Parallel) -> set[float]:
    """The limits, in seconds, of all groups that a strategy makes."""
    first = set(dist.distributed_c10d._world.pg_map)
    context = RankContext(rank, world, CPU, collective_seconds=77.0)
    value.setup(net, context, (2, 4))
    made = set(dist.distributed_c10d._world.pg_map) - first
    assert made, "the strategy has groups of its own"
    return {group._get_backend(CPU).options._timeout.total_seconds() for group in made}


@pytest.mark.parametrize("value", [FSDP(shard_over=2), TensorParallel(shards=2), Pipeline(stages=2)])
def test_groups_of_each_strategy_have_the_limit(ranks: Ranks, value: Parallel) -> None:
    assert ranks.run(4, limits, value) == [{77.0}] * 4


def test_ray_makes_the_default_group_with_the_limit() -> None:
    for seconds in (7.5, 1800.0):
        found = ray_train.torch_config("gloo", seconds)
        assert (found.backend, found.timeout_s) == ("gloo", seconds)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf")])
def test_a_limit_that_is_no_time_is_refused(wrong: float) -> None:
    with pytest.raises(UserError, match=r"collective_seconds = .*; give a value above 0"):
        Scaling(collective_seconds=wrong)
    assert Scaling().collective_seconds == 1800
