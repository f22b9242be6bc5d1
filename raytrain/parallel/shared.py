"""Gradients summed in memory that the ranks of one host share, without sockets and copies by other threads.

For a small model gloo's all-reduce of a 2.7 MB gradient takes longer than the backward pass. Here every rank writes its
gradients to shared memory, waits until all ranks have written, and sums all of them in the order of the ranks, so that
all ranks get the same bits. Before a rank writes the next gradients it waits until all ranks have read these. By then
they have read them, so the wait costs nothing; a second buffer would take more cache.
"""

from __future__ import annotations

import mmap
import os
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from raytrain.parallel.strategy import RankContext, Strategy
from raytrain.parallel.tree import add_up

_copy, _add = torch._foreach_copy_, torch._foreach_add_  # type: ignore[reportPrivateImportUsage]
_HEADER = 4096
_TOKEN, _WRITTEN, _READ = 0, 128, 256
"""Offsets in the header: of the rank's token, of the number of the last exchange that it has written, and of the last
that it has read from all ranks; each in its own cache lines."""
_SUMS = 1024
"""float64 values that `all_reduce` adds up at once, behind the header."""
_SPIN_SECONDS, _LOOK_SECONDS, _TIMEOUT_SECONDS = 0.002, 1.0, 1800.0


class SharedMemory(Strategy):
    """A replica on every rank of one host, whose gradients are summed in shared memory."""

    def __init__(self, module: nn.Module, ranks: RankContext, exchange: Exchange):
        super().__init__(module, ranks)
        self.exchange = exchange

    def reduce_gradients(self) -> None:
        """See `Exchange.reduce`."""
        self.exchange.reduce()

    def all_reduce(self, values: torch.Tensor) -> None:
        """Sum in shared memory too: gloo takes a millisecond or two from ranks that are busy."""
        self.exchange.all_reduce(values)


class Exchange:
    """The exchange of a module's gradients, after the backward pass, by memory that all ranks map.

    Buffers (BatchNorm's statistics) take rank 0's values at every step, as in DistributedDataParallel.

    Args:
        pairwise: whether ranks' gradients are added up as a `Tree` does, instead of in rank order.
    """

    def __init__(
        self, module: nn.Module, rank: int, pids: list[int], memories: list[mmap.mmap], pairwise: bool = False
    ):
        self.module, self.rank, self.pids, self.pairwise = module, rank, pids, pairwise
        self.trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.buffers_shared = list(module.buffers())
        self.counts = [memoryview(memory).cast("q") for memory in memories]
        count, start = len(self.trained), _HEADER + 8 * _SUMS
        self.sums = [torch.frombuffer(memory, dtype=torch.float64, count=_SUMS, offset=_HEADER) for memory in memories]
        """[rank][value]: where that rank writes what `all_reduce` adds up."""
        self.present = [memoryview(memory)[start : start + count] for memory in memories]
        views = [list(_views(memory, start + _aligned(count), module)) for memory in memories]
        self.gradients = [view[:count] for view in views]
        """[rank][parameter]: where that rank writes."""
        self.sent = views[0][count:]
        """[buffer]: where rank 0 writes."""
        self.step = 0

    @torch.no_grad()
    def reduce(self) -> None:
        """Turn every parameter's gradient into the sum over the ranks. A collective.

        A parameter that has no gradient on any rank stays without one.

        Raises:
            ConnectionError: a rank has died.
            RuntimeError: one has not come for half an hour.
        """
        present, gradients = self.present, self.gradients
        self._wait(_READ)
        self.step += 1
        own = bytes(parameter.grad is not None for parameter in self.trained)
        present[self.rank][:] = own
        having = [index for index, there in enumerate(own) if there]
        if having:
            _copy([gradients[self.rank][i] for i in having], [self._gradient(i) for i in having])
        if self.rank == 0 and self.buffers_shared:
            _copy(self.sent, self.buffers_shared)
        self.counts[self.rank][_WRITTEN // 8] = self.step
        self._wait(_WRITTEN)
        if self.pairwise:
            add_up(self.trained, [_there(*rank) for rank in zip(gradients, present, strict=True)])
        elif all(other == own for other in present):
            self._add(having, range(len(gradients)))
        else:  # as in a model that leaves layers out at random
            for index, parameter in enumerate(self.trained):
                ranks = [rank for rank in range(len(gradients)) if present[rank][index]]
                if ranks:
                    parameter.grad = torch.zeros_like(parameter)
                    self._add([index], ranks, zeroed=True)
        if self.rank != 0 and self.buffers_shared:
            _copy(self.buffers_shared, self.sent)
        self.counts[self.rank][_READ // 8] = self.step

    def all_reduce(self, values: torch.Tensor) -> None:
        """Turn float64 [n] into the sums over the ranks, in their order. A collective.

        Raises:
            ConnectionError: a rank has died.
            RuntimeError: one has not come for half an hour.
        """
        for part in values.split(_SUMS):
            self._wait(_READ)
            self.step += 1
            self.sums[self.rank][: len(part)].copy_(part)
            self.counts[self.rank][_WRITTEN // 8] = self.step
            self._wait(_WRITTEN)
            part.copy_(self.sums[0][: len(part)])
            for other in self.sums[1:]:
                part.add_(other[: len(part)])
            self.counts[self.rank][_READ // 8] = self.step

    def _add(self, having: list[int], ranks: Iterable[int], zeroed: bool = False) -> None:
        """Turn some parameters' gradients into the sums of what some ranks have written, in the order of the ranks.

        Args:
            having: the parameters' numbers.
            zeroed: whether the gradients are zeros; else they are this rank's own.
        """
        if not having:
            return
        gradients, totals = self.gradients, [self._gradient(i) for i in having]
        rest = list(ranks)
        if not zeroed and len(gradients) == 2:  # the sum of two does not depend on their order
            rest = [1 - self.rank]
        elif not zeroed:
            first = rest.pop(0)
            if self.rank != first:
                _copy(totals, [gradients[first][i] for i in having])
        for rank in rest:
            _add(totals, [gradients[rank][i] for i in having])

    def _gradient(self, index: int) -> torch.Tensor:
        gradient = self.trained[index].grad
        assert gradient is not None
        return gradient

    def _wait(self, count: int) -> None:
        """Wait until all ranks have written for this exchange, or read it."""
        place = count // 8
        started = looked = time.monotonic()
        for rank, counts in enumerate(self.counts):
            while counts[place] < self.step:
                now = time.monotonic()
                if now - started < _SPIN_SECONDS:
                    os.sched_yield()
                    continue
                time.sleep(0.0001 if now - started < 0.1 else 0.001)  # leave the core to ranks that compute
                if now - looked > _LOOK_SECONDS:
                    looked = now
                    if not os.path.exists(f"/proc/{self.pids[rank]}"):
                        raise ConnectionError(f"rank {rank} (process {self.pids[rank]}) has died")
                    if now - started > _TIMEOUT_SECONDS:
                        raise RuntimeError(f"rank {rank} has not joined exchange {self.step} for 30 minutes")


def replicate(module: nn.Module, pairwise: bool = False) -> Exchange | None:
    """Wrap `module`, which must be the same on all ranks. A collective.

    Args:
        pairwise: as in `Exchange`.

    Returns:
        The exchange, or None on all ranks unless all are processes of one Linux host that see each other. Also None on
        processors other than x86-64: only there do writes become visible in the order in which they are made.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    able = sys.platform == "linux" and platform.machine() == "x86_64"
    size, token = _size(module), os.urandom(16)
    # An unnamed file: the system frees it with the last process that maps it.
    descriptor = os.memfd_create("raytrain-gradients") if able else -1
    try:
        if able:
            os.ftruncate(descriptor, size)
            with mmap.mmap(descriptor, size) as own:
                own[_TOKEN : _TOKEN + 16] = token
        offers: list[Any] = [None] * world
        dist.all_gather_object(offers, (able, os.getpid(), descriptor, token, size))
        memories = [_open(*offer[1:]) for offer in offers] if all(offer[0] for offer in offers) else [None]
        success = torch.tensor(float(all(memory is not None for memory in memories)))
        dist.all_reduce(success, op=dist.ReduceOp.MIN)
    finally:
        if able:
            os.close(descriptor)
    if not success.item():
        return None
    pids = [offer[1] for offer in offers]
    return Exchange(module, rank, pids, [memory for memory in memories if memory], pairwise)


def _there(gradients: list[torch.Tensor], present: memoryview) -> list[torch.Tensor | None]:
    return [gradient if there else None for gradient, there in zip(gradients, present, strict=True)]


def _open(pid: int, descriptor: int, token: bytes, size: int) -> mmap.mmap | None:
    """Map another rank's memory; None if the pid is another process on this host, or no process."""
    try:
        opened = os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = mmap.mmap(opened, size)
        finally:
            os.close(opened)
    except (OSError, ValueError):
        return None
    return memory if memory[_TOKEN : _TOKEN + 16] == token else None


def _aligned(size: int) -> int:
    return -(-size // 64) * 64


def _bytes(tensor: torch.Tensor) -> int:
    return _aligned(tensor.numel() * tensor.element_size())


def _shared(module: nn.Module) -> list[torch.Tensor]:
    """Return what has a place in shared memory: gradients, and buffers."""
    return [*(parameter for parameter in module.parameters() if parameter.requires_grad), *module.buffers()]


def _size(module: nn.Module) -> int:
    tensors = _shared(module)
    return _HEADER + 8 * _SUMS + _aligned(len(tensors)) + sum(map(_bytes, tensors))


def _views(memory: mmap.mmap, offset: int, module: nn.Module) -> Iterator[torch.Tensor]:
    """Tensors of the same shapes, types and strides in shared memory, one after the other."""
    for tensor in _shared(module):
        flat = (
            torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset)
            if tensor.numel()
            else torch.empty(0, dtype=tensor.dtype)
        )
        dense = tensor.is_contiguous() or tensor.is_contiguous(memory_format=torch.channels_last)
        yield flat.as_strided(tensor.size(), tensor.stride()) if dense else flat.view(tensor.size())
        offset += _bytes(tensor)
