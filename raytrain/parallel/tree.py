"""Gradients whose bits do not depend on the number of workers: a batch is computed in four shards, whose gradients are
added up as (0 + 1) + (2 + 3).

Floating-point sums depend on their grouping. Here a rank sums its own shards, which are a whole branch of that tree,
and then all ranks sum those results, which are the rest of it. The sum of two values does not depend on their order. So
the ranks exchange one gradient each, as in DDP, and a single worker holds at most three in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from raytrain import order
from raytrain.data.loader import Pass
from raytrain.parallel.deterministic import fix_workspace
from raytrain.parallel.strategy import Autocast, Loss, RankContext, Strategy

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
        """Take the next gradients, whose tensors may be changed."""
        leaves = 1
        while self.branches and self.branches[-1][0] == leaves:
            leaf, leaves = _sum(self.branches.pop()[1], leaf), 2 * leaves
        self.branches.append((leaves, leaf))

    def take(self) -> Gradients:
        """Return the sum of all, after which the tree is empty."""
        while len(self.branches) > 1:
            _, right = self.branches.pop()
            leaves, left = self.branches.pop()
            self.branches.append((leaves, _sum(left, right)))
        return self.branches.pop()[1]


class Shards(Strategy):
    """A replica on every rank. On any number of ranks they compute the bits of four replicas.

    BatchNorm normalises by the samples of a shard. Every shard starts with the buffers that the step started with, and
    those that the batch's first shard leaves are kept, as DistributedDataParallel keeps rank 0's.

    Args:
        exchange: sums the parameters' gradients over the ranks in the order of a `Tree`, and gives all ranks rank 0's
            buffers. A collective.
    """

    slots = order.SHARDS

    def __init__(self, module: nn.Module, ranks: RankContext, exchange: Callable[[], None]):
        super().__init__(module, ranks)
        self.exchange, self.tree = exchange, Tree()
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.kept = list(module.buffers())
        self.before: list[torch.Tensor] = []
        self.after: list[torch.Tensor] = []

    def random_stream(self, shard: int) -> int:
        """Return the shard's own."""
        return shard

    def slot(self, shard: int) -> int:
        """Return the shard's own."""
        return shard

    def forward_backward(self, micro_batches: Iterable[Pass], loss: Loss, autocast: Autocast) -> None:
        """As the base class, and take the shard's gradients."""
        first = not self.tree.branches
        with torch.no_grad():
            if first:
                self.before = [buffer.clone() for buffer in self.kept]
            elif self.kept:
                _copy(self.kept, self.before)
        super().forward_backward(micro_batches, loss, autocast)
        if first:
            self.after = [buffer.clone() for buffer in self.kept]
        self.tree.put([parameter.grad for parameter in self.trained])
        for parameter in self.trained:
            parameter.grad = None

    @torch.no_grad()
    def reduce_gradients(self) -> None:
        """Give parameters the sum of all shards' gradients. A collective.

        A rank may have had no shard; a parameter that no shard has used has no gradient.
        """
        if self.tree.branches:
            for parameter, gradient in zip(self.trained, self.tree.take(), strict=True):
                parameter.grad = gradient
            if self.kept:
                _copy(self.kept, self.after)
        self.exchange()

    @contextlib.contextmanager
    def kernels(self) -> Iterator[None]:
        """Return the context in which PyTorch uses deterministic kernels. An operation without one raises a
        RuntimeError."""
        fix_workspace()  # without it PyTorch refuses cuBLAS
        memory: Any = torch.utils.deterministic
        cudnn: Any = torch.backends.cudnn
        before = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory, cudnn.benchmark
        torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms would import the compiler
        memory.fill_uninitialized_memory = cudnn.benchmark = False
        try:
            yield
        finally:
            torch.set_deterministic_debug_mode(before[0])
            memory.fill_uninitialized_memory, cudnn.benchmark = before[1:]


class Gathering:
    """The exchange over torch.distributed, for ranks without common memory: every rank gets all gradients and adds them
    up itself, since collectives that add have an order of their own."""

    def __init__(self, module: nn.Module):
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.buffers = list(module.buffers())

    @torch.no_grad()
    def reduce(self) -> None:
        """Turn every parameter's gradient into the sum over the ranks, and buffers into rank 0's. A collective."""
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
    """Give parameters the sum of all ranks' gradients, which stay as they are."""
    tree = Tree()
    for rank in ranks:
        # Gradients lie in memory as their parameters do: how a norm is added up depends on that.
        tree.put([None if g is None else torch.empty_like(p).copy_(g) for p, g in zip(parameters, rank, strict=True)])
    for parameter, gradient in zip(parameters, tree.take(), strict=True):
        parameter.grad = gradient


def _sum(left: Gradients, right: Gradients) -> Gradients:
    """Return the sum, in the tensors of `left` where there are any."""
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
