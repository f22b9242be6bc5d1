"""Each rank takes part in as many collectives as the others, in every step, and no more than a strategy needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from helpers.ranks import Ranks, new_run, on_workers, train_rank
from helpers.strategies import BASE, BLOCKS, VisionTransformer

from raytrain import CNN, DDP, Experiment, Hook, ModelParallel, Parallel, Pipeline, TensorParallel
from raytrain.data import Index

E = replace(BASE, batch_size=64, micro_batch_size=8, clip_norm=None)
SAMPLES = 3 * 64 + 17
"""Three full steps of four passes, and one in which rank 0 has nine samples in two passes and rank 1 eight in one."""
WAYS: dict[str, tuple[Parallel, float | None, int, int]] = {
    "torch's DDP": (DDP(reduction="torch"), None, 1, 1),
    "a static graph": (DDP(reduction="torch", static_graph=True), None, 4, 2),
    "shared memory": (DDP(), None, 0, 0),
    "fsdp": (BLOCKS, None, 27, 15),
    "fsdp, clipped": (BLOCKS, 1.0, 28, 16),
    "pipeline": (Pipeline(), None, 16, 16),
    "tensor": (TensorParallel(), None, 16, 6),
    "tensor, attention": (TensorParallel(), None, 80, 30),
    "tensor, convolutions": (TensorParallel(pair_parameters=0), None, 24, 9),
    "model parallel": (ModelParallel(), None, 1, 1),
}
"""(strategy, clip_norm, collectives of a full step, and of the short one): DDP has one for each step, a static graph
and the layers of a sharded model have some for each pass. Ranks that shard have equally many passes."""


MODELS = {"tensor, attention": VisionTransformer(), "tensor, convolutions": CNN(channels=(8, 16), batch_norm=True)}


class Counting(Hook):
    """Keeps the number of collectives up to the end of each step."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def after_step(self, trainer: Any) -> Mapping[str, Any] | None:
        groups: Any = dist.distributed_c10d._world.pg_map
        trainer.losses._every = 1_000  # losses are reduced by the clock: only at the end of an epoch here
        self.found.append(sum(group._get_sequence_number_for_group() for group in groups))
        return None


def counted_rank(rank: int, world: int, e: Experiment, run: Path, indices: dict[str, Index]) -> list[int]:
    hook = Counting()
    train_rank(rank, world, e, run, indices, hooks=[hook])
    return np.diff(hook.found).tolist()


@pytest.mark.parametrize("way", WAYS)
def test_ranks_take_part_in_the_same_collectives(ranks: Ranks, tmp_path: Path, way: str) -> None:
    parallel, clip_norm, full, short = WAYS[way]
    indices = {split: index.take(np.arange(SAMPLES)) for split, index in BASE.data.index().items()}
    e = on_workers(replace(E, parallel=parallel, clip_norm=clip_norm, model=MODELS.get(way, E.model)), 2)
    first, second = ranks.run(2, counted_rank, e, new_run(tmp_path / "run", e), indices)
    assert first == second
    assert first[4:] == [full, full, short], "in the second epoch: the first has some of the start"
