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
from helpers.strategies import BASE, BLOCKS

from raytrain import DDP, Experiment, Hook, ModelParallel, Parallel, Pipeline, TensorParallel
from raytrain.data import Index

STEP = 16
E = replace(BASE, batch_size=64, micro_batch_size=STEP, clip_norm=None)
SAMPLES = 3 * 64 + STEP + 1
"""Three full steps, and one in which rank 0 has a pass of nine samples and rank 1 one of eight."""
WAYS: dict[str, tuple[Parallel, int, bool]] = {
    "torch's DDP": (DDP(reduction="torch"), 1, False),
    "a static graph": (DDP(reduction="torch", static_graph=True), 1, False),
    "shared memory": (DDP(), 1, False),
    "fsdp": (BLOCKS, 1, False),
    "fsdp, clipped": (BLOCKS, 1, True),
    "pipeline": (Pipeline(), 1, False),
    "tensor": (TensorParallel(), 1, False),
    "model": (ModelParallel(), 1, False),
}


class Counting(Hook):
    """Keeps the number of collectives up to the end of each step."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def after_step(self, trainer: Any) -> Mapping[str, Any] | None:
        groups = dist.distributed_c10d._world.pg_map
        trainer.losses._every = 1_000  # losses are reduced by the clock: only at the end of an epoch here
        self.found.append(sum(group._get_sequence_number_for_group() for group in groups))
        return None


def counted_rank(rank: int, world: int, e: Experiment, run: Path, indices: dict[str, Index]) -> list[int]:
    hook = Counting()
    train_rank(rank, world, e, run, indices, hooks=[hook])
    return np.diff(hook.found).tolist()


@pytest.mark.parametrize("way", WAYS)
def test_ranks_take_part_in_the_same_collectives(ranks: Ranks, tmp_path: Path, way: str) -> None:
    parallel, _, clips = WAYS[way]
    indices = {split: index.take(np.arange(SAMPLES)) for split, index in BASE.data.index().items()}
    e = on_workers(replace(E, parallel=parallel, clip_norm=1.0 if clips else None), 2)
    print(way, ranks.run(2, counted_rank, e, new_run(tmp_path / "run", e), indices))
