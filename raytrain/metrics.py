"""Exact sums over samples, micro-batches and ranks."""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist


class Sums:
    """Adds up a task's tensors: integers as int64, which is exact, and floats as float64."""

    def __init__(self) -> None:
        self._totals: dict[str, torch.Tensor] = {}

    def add(self, sums: dict[str, torch.Tensor]) -> None:
        """Adds one batch's tensors (any shapes, the same names and shapes every time)."""
        for name, value in sums.items():
            wide = value.detach().to(torch.float64 if value.is_floating_point() else torch.int64)
            self._totals[name] = self._totals[name] + wide if name in self._totals else wide

    def reduce(self, device: torch.device) -> dict[str, np.ndarray]:
        """The totals over all ranks. A collective: every rank calls it, also one that had no batch."""
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
        return {name: value.cpu().numpy() for name, value in totals.items()}
