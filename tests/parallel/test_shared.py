"""Gradients added up in shared memory: the numbers of DistributedDataParallel and of one process, on any pattern."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.ranks import Ranks
from torch import nn

from raytrain import DDP, UserError
from raytrain.parallel import shared
from raytrain.parallel.strategy import RankContext

CPU = torch.device("cpu")


class Net(nn.Module):
    """Convolutions in channels_last, BatchNorm, float64, a frozen layer, and one that only some ranks use."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.norm = nn.BatchNorm2d(4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.head, self.extra, self.unused = nn.Linear(4, 2).double(), nn.Linear(4, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, extra: bool) -> torch.Tensor:
        x = self.frozen(self.norm(self.conv(x)).mean((2, 3)))
        return self.head(x.double()).float() + (self.extra(x) if extra else 0)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def images(step: int, rank: int) -> torch.Tensor:
    return torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(100 * step + rank))


def gradients(rank: int, world: int, steps: int, uses_extra: list[int]) -> list[list[np.ndarray | None]]:
    """The gradients of each step, and at last the buffers."""
    module = net()
    exchange = shared.replicate(module)
    assert exchange is not None
    found = []
    for step in range(steps):
        module.zero_grad()
        module(images(step, rank), rank in uses_extra).square().sum().backward()
        exchange.reduce()
        found.append([None if p.grad is None else p.grad.numpy().copy() for p in module.parameters()])
    return [*found, [buffer.numpy().copy() for buffer in module.buffers()]]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads change the last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("uses_extra", [[], [0, 1, 2, 3], [1], [0]])
def test_gradients_are_the_sums_over_the_ranks_in_their_order(ranks: Ranks, world: int, uses_extra: list[int]) -> None:
    found = ranks.run(world, gradients, 4, uses_extra)
    replicas = [net() for _ in range(world)]
    for step in range(4):
        parts = []
        for rank, replica in enumerate(replicas):
            replica.zero_grad()
            replica(images(step, rank), rank in uses_extra).square().sum().backward()
            parts.append([p.grad for p in replica.parameters()])
        for index, column in enumerate(zip(*parts, strict=True)):
            there = [gradient for gradient in column if gradient is not None]
            total: Any = sum(there[1:], there[0]) if there else None
            for rank in range(world):
                seen = found[rank][step][index]
                assert (seen is None) == (total is None)
                assert total is None or np.array_equal(seen, total.numpy())
    for rank in range(world):
        for seen, buffer in zip(found[rank][-1], replicas[0].buffers(), strict=True):
            assert np.array_equal(seen, buffer.numpy())


LENGTHS = (1, 5, 1024, 0, 2500)


def values(rank: int, length: int) -> torch.Tensor:
    """Of sizes so different that the order of their sum shows in its bits."""
    draw = torch.Generator().manual_seed(1000 * length + rank)
    return torch.randn(length, dtype=torch.float64, generator=draw) * 10.0 ** (6 * rank)


def totals(rank: int, world: int) -> list[np.ndarray]:
    """Sums of values, between those of gradients."""
    module = net()
    exchange = shared.replicate(module)
    assert exchange is not None
    found = []
    for step, length in enumerate(LENGTHS):
        mine = values(rank, length)
        exchange.all_reduce(mine)
        found.append(mine.numpy().copy())
        module.zero_grad()
        module(images(step, rank), True).square().sum().backward()
        exchange.reduce()
        grad = dict(module.named_parameters())["extra.weight"].grad
        assert grad is not None
        found.append(grad.numpy().copy())
    return found


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("world", [2, 3, 4])
def test_totals_are_the_sums_over_the_ranks_in_their_order(ranks: Ranks, world: int) -> None:
    found = ranks.run(world, totals)
    whole = ranks.run(world, gradients, len(LENGTHS), [0, 1, 2, 3])
    extra = [name for name, _ in net().named_parameters()].index("extra.weight")
    for step, length in enumerate(LENGTHS):
        total = sum((values(rank, length) for rank in range(1, world)), values(0, length))
        for rank in range(world):
            assert np.array_equal(found[rank][2 * step], total.numpy())
            assert np.array_equal(found[rank][2 * step + 1], whole[rank][step][extra])


def train(rank: int, world: int, reduction: str) -> list[np.ndarray]:
    module = net()
    module.unused.requires_grad_(False)  # DistributedDataParallel refuses parameters that nothing uses
    parallel = DDP(reduction=reduction)  # type: ignore[arg-type]
    strategy = parallel.setup(lambda: module, RankContext(rank, world, CPU), (1, 5))
    assert isinstance(strategy, shared.SharedMemory) == (reduction != "torch")
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(5):
        (strategy.model(images(step, rank), True).square().sum() * strategy.gradient_scale / 10).backward()
        strategy.reduce_gradients()
        optimizer.step()
        optimizer.zero_grad()
    strategy.broadcast_buffers()
    return [value.numpy() for value in module.state_dict().values()]


def test_two_ranks_get_the_bits_of_distributed_data_parallel(ranks: Ranks) -> None:
    ours, theirs = ranks.run(2, train, "shared"), ranks.run(2, train, "torch")
    for a, b in zip(ours[0] + ours[1], theirs[0] + theirs[1], strict=True):
        assert np.array_equal(a, b)


def refused(rank: int, world: int, what: str) -> tuple[bool, str]:
    """Whether memory was shared on a host where rank 1 lacks something, and what `shared` says then."""
    keep: Callable = getattr(os, what) if what != "machine" else shared.platform.machine

    def fails(*_: object) -> str:
        if what == "machine":
            return "aarch64"
        raise OSError("no such file")

    if rank == 1:
        setattr(*((shared.platform, "machine") if what == "machine" else (os, what)), fails)
    try:
        made = shared.replicate(net()) is not None
        with pytest.raises(UserError) as error:
            DDP(reduction="shared").setup(net, RankContext(rank, world, CPU), (1, 5))
        return made, str(error.value)
    finally:
        setattr(*((shared.platform, "machine") if what == "machine" else (os, what)), keep)


@pytest.mark.parametrize("what", ["open", "machine"])
def test_all_ranks_do_without_where_one_cannot(ranks: Ranks, what: str) -> None:
    for made, said in ranks.run(2, refused, what):
        assert not made and "in parallel.reduction; use --parallel.reduction auto" in said


def another_memory(rank: int, world: int) -> bool:
    """Rank 1 says the number of a file that is another one: as if its process lived in another container."""
    gather = dist.all_gather_object

    def lie(offers: list, offer: tuple) -> None:
        gather(offers, offer if rank == 0 else (*offer[:3], b"x" * 16, *offer[4:]))

    dist.all_gather_object = lie  # type: ignore[assignment]
    try:
        return shared.replicate(net()) is None
    finally:
        dist.all_gather_object = gather


def test_memory_that_belongs_to_someone_else_is_not_taken(ranks: Ranks) -> None:
    assert ranks.run(2, another_memory) == [True, True]


def left_alone(rank: int, world: int, folder: Path) -> str:
    """Rank 1 never comes, and says that it has another, dead process."""
    module = net()
    exchange = shared.replicate(module)
    assert exchange is not None
    if rank == 1:
        return ""
    exchange.pids[1] = 2**22 + 1  # above the largest process number
    module(images(0, rank), True).sum().backward()
    with pytest.raises(ConnectionError) as error:
        exchange.reduce()
    return str(error.value)


def test_a_dead_rank_is_noticed(ranks: Ranks, tmp_path: Path) -> None:
    assert "rank 1 (process 4194305) has died" in ranks.run(2, left_alone, tmp_path)[0]


def mapped(rank: int, world: int) -> tuple[int, list[str]]:
    """How many open files and names in shared memory a replica leaves."""
    before, there = len(os.listdir("/proc/self/fd")), {*os.listdir("/dev/shm")}
    exchange = shared.replicate(net())
    assert exchange is not None
    return len(os.listdir("/proc/self/fd")) - before, [*({*os.listdir("/dev/shm")} - there)]


def test_no_name_is_left_that_a_kill_could_leave_behind(ranks: Ranks) -> None:
    for files, names in ranks.run(2, mapped):
        assert files <= 2 and not names  # Python's mmap keeps a descriptor of its own for each mapping
