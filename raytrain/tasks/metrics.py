"""Sums over samples, micro-batches and ranks."""

from __future__ import annotations

import functools

import numpy as np
import torch
import torch.distributed as dist


class Sums:
    """Add up a task's tensors: integers as int64, which is exact, and floats as float64.

    Args:
        shards: the number of sums that are kept apart until the end, and then added in order. If each shard belongs
            to one rank, floats have the same bits on any number of ranks.
    """

    def __init__(self, shards: int = 1) -> None:
        self._shards = shards
        self._totals: dict[str, torch.Tensor] = {}

    def add(self, sums: dict[str, torch.Tensor], shard: int = 0) -> None:
        """Add one batch's tensors: any shapes, with the same names and shapes every time."""
        for name, value in sums.items():
            wide = value.detach().to(torch.float64 if value.is_floating_point() else torch.int64)
            if name not in self._totals:
                self._totals[name] = wide.new_zeros((self._shards, *wide.shape))
            self._totals[name][shard] += wide

    def reduce(self, device: torch.device) -> dict[str, np.ndarray]:
        """Return the totals over all ranks. A collective: every rank calls it, even without a batch."""
        totals = self._totals
        if dist.is_initialized() and dist.get_world_size() > 1:
            shapes = {name: (tuple(value.shape), value.dtype) for name, value in totals.items()}
            known: list[dict] = [{}] * dist.get_world_size()
            dist.all_gather_object(known, shapes)
            totals = {}
            for name, (shape, dtype) in sorted({k: v for one in known for k, v in one.items()}.items()):
                mine = self._totals.get(name)
                totals[name] = torch.zeros(shape, dtype=dtype) if mine is None else mine
                totals[name] = totals[name].to(device).contiguous()
                dist.all_reduce(totals[name])
        return {name: np.asarray(functools.reduce(np.add, value.cpu().numpy())) for name, value in totals.items()}
