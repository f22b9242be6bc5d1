"""Sums over samples, micro-batches and ranks, and what is kept of each sample."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


@dataclass(frozen=True, eq=False)
class PerSample:
    """Values of some samples, which are kept apart instead of added up.

    Attributes:
        ids: int64 [n], the samples' numbers.
        values: [n, ...].
    """

    ids: np.ndarray
    values: torch.Tensor


class Sums:
    """Add up a task's tensors: integers as int64, which is exact, and floats as float64. Values of single samples
    (`PerSample`) are collected.

    Args:
        shards: the number of sums that are kept apart until the end, and then added in order. If each shard belongs
            to one rank, floats have the same bits on any number of ranks.
    """

    def __init__(self, shards: int = 1) -> None:
        self._shards = shards
        self._totals: dict[str, torch.Tensor] = {}
        self._samples: dict[str, list[PerSample]] = {}

    def add(self, sums: dict[str, Any], shard: int = 0) -> None:
        """Add one batch's tensors: any shapes, with the same names and shapes every time."""
        for name, value in sums.items():
            if isinstance(value, PerSample):
                wide = value.values.detach()
                wide = wide.float() if wide.dtype in (torch.float16, torch.bfloat16) else wide
                self._samples.setdefault(name, []).append(PerSample(value.ids, wide))
                continue
            wide = value.detach().to(torch.float64 if value.is_floating_point() else torch.int64)
            if name not in self._totals:
                self._totals[name] = wide.new_zeros((self._shards, *wide.shape))
            self._totals[name][shard] += wide

    def merge(self, other: Sums) -> None:
        """Add the sums and the values of single samples of another one, whose samples are others of the same task."""
        for name, totals in other._totals.items():
            self._totals[name] = self._totals[name] + totals if name in self._totals else totals.clone()
        for name, parts in other._samples.items():
            self._samples.setdefault(name, []).extend(parts)

    def reduce(self, device: torch.device) -> dict[str, np.ndarray]:
        """Return the totals over all ranks, and the values of all samples in the order of their numbers. A collective:
        every rank calls it, even without a batch."""
        totals, samples = self._totals, {name: _joined(parts) for name, parts in self._samples.items()}
        if dist.is_initialized() and dist.get_world_size() > 1:
            shapes = {name: (tuple(value.shape), value.dtype) for name, value in totals.items()}
            kept = {name: (tuple(values.shape), values.dtype) for name, (_, values) in samples.items()}
            known: list[tuple[dict, dict]] = [({}, {})] * dist.get_world_size()
            dist.all_gather_object(known, (shapes, kept))
            totals = {}
            for name, (shape, dtype) in sorted({k: v for one, _ in known for k, v in one.items()}.items()):
                mine = self._totals.get(name)
                totals[name] = torch.zeros(shape, dtype=dtype) if mine is None else mine
                totals[name] = totals[name].to(device).contiguous()
                dist.all_reduce(totals[name])
            for name in sorted({name for _, one in known for name in one}):
                described = [one.get(name) for _, one in known]
                samples[name] = _gathered(samples.get(name), described, device)
        added = {name: np.asarray(functools.reduce(np.add, value.cpu().numpy())) for name, value in totals.items()}
        return added | {name: _sorted(*found) for name, found in samples.items()}


def _joined(parts: list[PerSample]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int64 [n] and [n, ...] of several batches."""
    ids = np.concatenate([np.asarray(part.ids, np.int64) for part in parts])
    return torch.from_numpy(ids), torch.cat([part.values for part in parts])


def _gathered(
    mine: tuple[torch.Tensor, torch.Tensor] | None,
    described: list[tuple[tuple[int, ...], torch.dtype] | None],
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the numbers and values of all ranks' samples. A collective.

    Args:
        mine: this rank's; None for a rank without samples.
        described: each rank's shape and type of the values.
    """
    counts = [0 if one is None else one[0][0] for one in described]
    shape, dtype = next((one[0][1:], one[1]) for one in described if one is not None)
    found = []
    for own, rest, kind in ((mine and mine[0], (), torch.int64), (mine and mine[1], shape, dtype)):
        sent = torch.zeros((max(counts), *rest), dtype=kind, device=device)  # all ranks send equally much
        if own is not None:
            sent[: len(own)] = own
        parts = [torch.empty_like(sent) for _ in counts]
        dist.all_gather([_bytes(part) for part in parts], _bytes(sent))
        found.append(torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)]))
    return found[0], found[1]


def _bytes(values: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor as uint8, which every backend can send."""
    return values.view(-1).view(torch.uint8)


def _sorted(ids: torch.Tensor, values: torch.Tensor) -> np.ndarray:
    order = np.argsort(ids.cpu().numpy(), kind="stable")
    return values.cpu().numpy()[order]
