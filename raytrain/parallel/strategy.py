"""The runtime of a parallel strategy on one rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from raytrain.data.loader import Pass
from raytrain.parallel.host_copies import HostCopies
from raytrain.parallel.materialise import in_file

_copy = torch._foreach_copy_  # type: ignore[reportPrivateImportUsage]


@dataclass(frozen=True)
class RankContext:
    """One rank of a run.

    Attributes:
        rank: its number, from 0.
        world: the number of ranks.
        device: the device of its batches, and of its model or the first part of it.
        more: further GPUs of the rank, over which a strategy may spread the model.
        folder: where rank 0 may put large tensors that are to take no memory; None for memory.
        collective_seconds: how long a collective may take in the process groups that a strategy makes; None leaves
            PyTorch's own limit.
    """

    rank: int
    world: int
    device: torch.device
    more: tuple[torch.device, ...] = ()
    folder: Path | None = None
    collective_seconds: float | None = None

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """All devices of the rank."""
        return self.device, *self.more

    @classmethod
    def alone(cls, gpus: float | None, rank: int = 0, world: int = 1) -> RankContext:
        """Return the context of a rank without Ray Train, whose GPUs are the first `gpus` that its process sees."""
        if not gpus:
            return cls(rank, world, torch.device("cpu"))
        first, *more = (torch.device("cuda", number) for number in range(max(1, int(gpus))))
        return cls(rank, world, first, tuple(more))


@contextmanager
def _timed_kernels() -> Iterator[None]:
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


Loss = Callable[[nn.Module, Pass], torch.Tensor]
"""(model, micro-batch) -> the scalar to call backward() on."""
Autocast = Callable[[], AbstractContextManager[Any]]
"""Makes the context for forward passes in the run's precision."""
Shape = tuple[int, int]
"""(micro-batches of a full step of one replica, samples of each)."""


class Strategy:
    """One rank's module, devices and process groups. This base class has the whole model on one device and exchanges
    nothing: a single worker.

    Args:
        module: the model with its initial weights.
        ranks: this rank.

    Attributes:
        module: the model; its state dict has the model's own names.
        model: the callable that a task gets.
        copies: makes the copies of `gather`.
        buffers: keeps the module's buffers the same tensors.
        replica: the number of this rank's replica of the model, from 0; a replica trains on its share of each batch.
        counts: whether this rank's losses and sums count; of a replica with several ranks, those of one do.
        lockstep: whether each pass of a step is a collective, so that all ranks must have equally many.
        sharded: whether ranks hold parts of the model, so that a checkpoint needs all of them.
        gradient_scale: the factor by which `reduce_gradients` divides the sums over ranks; losses are multiplied by it.
        rounding: how far gradients may be rounded when ranks exchange them, as a share of their size.
        slots: into how many sums, added up in their order, a step's losses and an evaluation's sums are kept apart.
    """

    counts: bool = True
    lockstep: bool = False
    sharded: bool = False
    gradient_scale: float = 1.0
    rounding: float = 0.0
    slots: int = 1

    def __init__(self, module: nn.Module, ranks: RankContext):
        self.module, self.ranks = module, ranks
        self.copies, self.buffers = HostCopies(module, ranks.device), Buffers(module)
        self.model: nn.Module = module
        self.replica = ranks.rank

    # A training step

    def random_stream(self, shard: int) -> int:
        """Return the number of the stream of random numbers for a shard's passes; ranks that compute the same layers on
        the same samples share one."""
        return self.replica

    def slot(self, shard: int) -> int:
        """Return the slot of a shard's losses and sums."""
        return 0

    def forward_backward(self, micro_batches: Iterable[Pass], loss: Loss, autocast: Autocast) -> None:
        """Compute the gradients of one shard of a batch.

        Args:
            micro_batches: at least one.
            autocast: for strategies that call the model themselves; `loss` enters it by itself.
        """
        for micro_batch in micro_batches:
            with nullcontext() if micro_batch.last else self.no_sync():
                loss(self.model, micro_batch).backward()
            self.buffers.settle()

    def no_sync(self) -> AbstractContextManager[Any]:
        """Return the context for micro-batches whose gradients are not exchanged yet."""
        return nullcontext()

    def reduce_gradients(self) -> None:
        """Sum gradients over the ranks, unless the backward pass has done so. A collective."""

    def recorded(
        self, backward: Callable[[], None], parameters: list[nn.Parameter]
    ) -> tuple[list[torch.Tensor | None], list[torch.Tensor]]:
        """Compute gradients of `module`, and not of `model`, while a CUDA graph records it. Exchange nothing.

        Returns:
            The gradients of the parameters, and what `replayed` exchanges of them.
        """
        backward()
        return [parameter.grad for parameter in parameters], []

    def replayed(self, replay: Callable[[], None], exchanged: list[torch.Tensor]) -> None:
        """Do again what `recorded` has computed, and then what the ranks do besides: the gradients become those of
        `forward_backward` with one micro-batch. A collective.

        Args:
            exchanged: what `recorded` returned.
        """
        replay()

    def clip(self, parameters: list[nn.Parameter], most: float) -> torch.Tensor:
        """Scale this rank's gradients so that their norm over all ranks is at most `most`; return the norm before, a
        scalar. A collective."""
        return self.unshard(nn.utils.clip_grad_norm_(parameters, most))

    def norm(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """Return the norm over all ranks, a scalar, of tensors that are sharded as this rank's parameters are, such as
        its weights or gradients. A collective where `sharded`."""
        return self.unshard(nn.utils.get_total_norm(tensors))

    def all_reduce(self, values: torch.Tensor) -> None:
        """Sum float64 [n] over the ranks, in place. A collective."""
        if self.ranks.world > 1:
            dist.all_reduce(values)

    def weights_changed(self) -> None:
        """Drop copies of weights that were changed in place, outside of an optimizer's step."""

    def kernels(self) -> AbstractContextManager[Any]:
        """Return the context for training, which chooses PyTorch's kernels. On a GPU cuDNN times its algorithms once
        for each shape: all batches but short last ones have the same."""
        return _timed_kernels() if self.ranks.device.type == "cuda" else nullcontext()

    # Evaluation

    def answers(self, micro_batches: Iterable[Pass], autocast: Autocast) -> Iterator[tuple[Pass, nn.Module]]:
        """Yield micro-batches for evaluation, each with the model to call for it. Where `lockstep`, they may be
        blank."""
        for micro_batch in micro_batches:
            yield micro_batch, self.module

    def broadcast_buffers(self) -> None:
        """Give all ranks rank 0's buffers (BatchNorm's statistics). A collective."""
        if self.ranks.world > 1:
            for buffer in self.module.buffers():
                broadcast(buffer)

    # State

    def owns(self, tensor: torch.Tensor) -> bool:
        """Return whether this rank has the values of a parameter or a buffer, or a part of them."""
        return True

    @torch.no_grad()
    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take this rank's parts of a state dict of whole tensors, and read no others.

        Raises:
            RuntimeError: names or shapes are not the module's.
        """
        own = self.module.state_dict(keep_vars=True)
        if wrong := own.keys() ^ weights.keys():
            raise RuntimeError(f"the weights do not fit: {', '.join(sorted(wrong)[:4])}")
        for name, tensor in own.items():
            if not isinstance(tensor, torch.Tensor) or not self.owns(tensor):
                continue
            if weights[name].shape != tensor.shape:
                raise RuntimeError(f"the weights do not fit: {name} is {tuple(tensor.shape)}")
            local(tensor).copy_(local(self.shard(weights[name], tensor)))

    def unshard(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the whole of a model's or an optimizer's tensor, as a checkpoint holds it. A collective for a part of
        one."""
        return tensor

    def shard(self, tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        """Return a copy of this rank's part of a whole tensor that belongs to a parameter: the inverse of `unshard`.

        Args:
            tensor: perhaps a file's, of which only that part is read.
        """
        if tensor.shape != parameter.shape:
            return tensor.clone()  # such as Adam's step
        # Fused optimizers expect both to lie in memory in the same order.
        return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)

    def gather(self, state: Any) -> Any:
        """Copy a tree of tensors, by the names or numbers of parameters, to the host of rank 0, with the parts of all
        ranks; return None on other ranks. A collective where `sharded`. What is copied from a GPU has its values after
        `copies.wait`, and must not be changed before `copies.fence`."""
        first = self.ranks.rank == 0
        if self.sharded or self.ranks.folder is not None:
            return snapshot(state, self.unshard, first, self.ranks.folder) if first or self.sharded else None
        if not first:
            return None
        tensors: list[torch.Tensor] = []
        mapped(state, lambda tensor: tensors.append(tensor.detach()))
        copies = iter(self.copies.begin(tensors))
        return mapped(state, lambda _: next(copies))


class Buffers:
    """A module's buffers, which stay the same tensors though its code puts others in their places, as
    `self.mean = 0.9 * self.mean + 0.1 * mean` does: what exchanges, averages or restores buffers holds the tensors."""

    def __init__(self, module: nn.Module):
        held = [
            (layer._buffers, name, buffer)
            for layer in module.modules()
            for name, buffer in layer._buffers.items()
            if buffer is not None
        ]
        times = Counter(id(buffer) for _, _, buffer in held)
        self._places = [place for place in held if times[id(place[2])] == 1]  # a tied one may go its own way
        self._floats: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
        for buffer in {id(buffer): local(buffer) for _, _, buffer in held if buffer.is_floating_point()}.values():
            self._floats.setdefault((buffer.dtype, buffer.device), []).append(buffer)

    @torch.no_grad()
    def settle(self) -> None:
        """Bring values that lie in other tensors back, unless these are of another kind."""
        for places, name, buffer in self._places:
            now = places.get(name)
            if now is None or now is buffer or now.shape != buffer.shape:
                continue
            if (now.dtype, now.device) == (buffer.dtype, buffer.device):
                places[name] = buffer.copy_(now)

    @contextmanager
    def finite(self, on: bool) -> Iterator[None]:
        """Return the context of a pass after which BatchNorm's statistics, and other buffers, have their old values in
        place of those that are not finite: they would stay so, though the step is left out. Needs no host.

        Args:
            on: whether to; else the context does nothing.
        """
        groups = [*self._floats.values()] if on else []
        with torch.no_grad():
            before = [_flat(group) for group in groups]
        yield
        with torch.no_grad():
            for group, old in zip(groups, before, strict=True):
                found = (now := _flat(group)).where(now.isfinite(), old).split([one.numel() for one in group])
                _copy(group, [part.view(one.shape) for part, one in zip(found, group, strict=True)])


def _flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return all values in one tensor [n], a copy."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def snapshot(
    state: Any,
    unshard: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    keep: bool = True,
    folder: Path | None = None,
) -> Any:
    """Copy a tree of tensors and plain values to the host, so that training can go on changing them.

    Args:
        unshard: makes a whole tensor of a rank's part.
        keep: whether this rank wants the copy, or only takes part in `unshard`.
        folder: see `in_file`.
    """

    def copy(part: torch.Tensor) -> torch.Tensor | None:
        tensor = unshard(part.detach())
        if not keep:
            return None
        if folder is not None:
            return in_file(tensor.shape, tensor.dtype, folder).copy_(tensor)
        return tensor.clone() if tensor.device.type == "cpu" else tensor.cpu()

    return mapped(state, copy)


def mapped(state: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return a tree with each tensor changed, in a fixed order."""
    if isinstance(state, torch.Tensor):
        return change(state)
    if isinstance(state, Mapping):
        return {name: mapped(value, change) for name, value in state.items()}
    return type(state)(mapped(value, change) for value in state) if isinstance(state, (list, tuple)) else state


def broadcast(tensor: torch.Tensor, group: Any = None) -> None:
    """Give all ranks of a group the first one's values of a tensor, in place, and as bytes: no backend has all types. A
    collective."""
    sent = tensor.detach().contiguous()
    dist.broadcast(sent.view(-1).view(torch.uint8), group=group, group_src=0)
    if sent.data_ptr() != tensor.data_ptr():  # torch refuses a copy to itself in channels_last with one channel
        tensor.detach().copy_(sent)


@torch.no_grad()
def broadcast_weights(module: nn.Module) -> None:
    """Give all ranks rank 0's parameters and buffers, as DistributedDataParallel does: a model may draw its weights
    from other generators than torch's, which differ from rank to rank. A collective."""
    for tensor in (*module.parameters(), *module.buffers()):
        broadcast(tensor)


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a tensor that is sharded."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[operator]
