"""Gradients whose bits do not depend on the number of workers: a batch is computed in four shards, whose gradients are
added up as (0 + 1) + (2 + 3).

Floating-point sums depend on how they are grouped. Here a rank adds up the shards that it has, which are a whole branch
of that tree, and then all ranks add up those sums, which are the rest of it. The sum of two does not depend on their
order. So one gradient a rank is exchanged, as ever, and on one worker no more than three are in memory at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

_copy, _add = torch._foreach_copy_, torch._foreach_add_  # type: ignore[reportPrivateImportUsage]

Gradients = Sequence[torch.Tensor | None]
"""One for each trained parameter; None where a shard has not used it."""


class Tree:
    """The sum of gradients that come one after the other, in the order of a binary tree. Those of a short last batch,
    which fills fewer shards, are its first leaves."""

    def __init__(self) -> None:
        self.branches: list[tuple[int, Gradients]] = []
        """(leaves, sum) of what has been added up so far; each has fewer leaves than the one before it."""

    def put(self, leaf: Gradients) -> None:
        """Takes the next gradients, whose tensors may be changed."""
        leaves = 1
        while self.branches and self.branches[-1][0] == leaves:
            leaf, leaves = _sum(self.branches.pop()[1], leaf), 2 * leaves
        self.branches.append((leaves, leaf))

    def take(self) -> Gradients:
        """The sum of all, after which the tree is empty."""
        while len(self.branches) > 1:
            _, right = self.branches.pop()
            leaves, left = self.branches.pop()
            self.branches.append((leaves, _sum(left, right)))
        return self.branches.pop()[1]


class TreeReplica(nn.Module):
    """A module whose gradients, once `reduce` is called after the last shard, are the sums over all ranks' shards.

    It computes on any number of workers what four replicas would. BatchNorm normalises by the samples of a shard; every
    shard begins with the buffers that the step began with, and those that the batch's first shard leaves stay, as rank
    0's do in DistributedDataParallel.

    Args:
        exchange: adds the parameters' gradients up over the ranks, as a `Tree` does it, and gives all ranks rank 0's
            buffers. A collective.
    """

    def __init__(self, module: nn.Module, exchange: Callable[[], None] = lambda: None):
        super().__init__()
        self.module, self.exchange, self.tree = module, exchange, Tree()
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.kept = list(module.buffers())
        self.before: list[torch.Tensor] = []
        self.after: list[torch.Tensor] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own."""
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def shard(self) -> Iterator[None]:
        """The context for the passes of the next shard."""
        first = not self.tree.branches
        with torch.no_grad():
            if first:
                self.before = [buffer.clone() for buffer in self.kept]
            elif self.kept:
                _copy(self.kept, self.before)
        yield
        if first:
            self.after = [buffer.clone() for buffer in self.kept]
        self.tree.put([parameter.grad for parameter in self.trained])
        for parameter in self.trained:
            parameter.grad = None

    @torch.no_grad()
    def reduce(self) -> None:
        """Turns every parameter's gradient into the sum over all shards. A collective. A rank may have had no shard; a
        parameter that no shard has used has no gradient."""
        if self.tree.branches:
            for parameter, gradient in zip(self.trained, self.tree.take(), strict=True):
                parameter.grad = gradient
            if self.kept:
                _copy(self.kept, self.after)
        self.exchange()


class Gathering:
    """The exchange over torch.distributed, for ranks without common memory: every rank gets all gradients and adds them
    up itself, since collectives that add have an order of their own."""

    def __init__(self, module: nn.Module):
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.buffers = list(module.buffers())

    @torch.no_grad()
    def reduce(self) -> None:
        """Turns every parameter's gradient into the sum over the ranks, and buffers into rank 0's. A collective."""
        count = len(self.trained)
        present = torch.tensor([parameter.grad is not None for parameter in self.trained])
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.trained]
        ranks = _gather([*own, *self.buffers, present.to(self.trained[0].device)])
        add_up(
            self.trained,
            [
                [gradient if there else None for gradient, there in zip(found[:count], found[-1].tolist(), strict=True)]
                for found in ranks
            ],
        )
        if self.buffers:
            _copy(self.buffers, ranks[0][count:-1])


def add_up(parameters: Sequence[nn.Parameter], ranks: Sequence[Gradients]) -> None:
    """Gives parameters the sum of all ranks' gradients, which stay as they are."""
    tree = Tree()
    for rank in ranks:
        # Gradients lie in memory as their parameters do: how a norm is added up depends on that.
        tree.put([None if g is None else torch.empty_like(p).copy_(g) for p, g in zip(parameters, rank, strict=True)])
    for parameter, gradient in zip(parameters, tree.take(), strict=True):
        parameter.grad = gradient


def _sum(left: Gradients, right: Gradients) -> Gradients:
    """The sum, in the tensors of `left` where there are any."""
    both = [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]
    if both:
        _add([a for a, _ in both], [b for _, b in both])
    return [b if a is None else a for a, b in zip(left, right, strict=True)]


def _gather(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Every rank's tensors, of the same shapes, in the order of the ranks. A collective for each of their types."""
    world = dist.get_world_size()
    found = [list(tensors) for _ in range(world)]
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        chosen = [i for i, tensor in enumerate(tensors) if tensor.dtype == dtype]
        flat = torch.cat([tensors[i].reshape(-1) for i in chosen])
        flats = [torch.empty_like(flat) for _ in range(world)]
        dist.all_gather([each.view(torch.uint8) for each in flats], flat.view(torch.uint8))  # no backend has all types
        for rank, all_ in zip(found, flats, strict=True):
            for i, piece in zip(chosen, all_.split([tensors[i].numel() for i in chosen]), strict=True):
                rank[i] = piece.view(tensors[i].shape)
    return found
