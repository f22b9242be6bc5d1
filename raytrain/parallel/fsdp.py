"""Fully sharded data parallel: every worker holds a part of each weight, gradient and optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from raytrain import errors
from raytrain.config import above, at_least, check
from raytrain.parallel.base import Parallel

if TYPE_CHECKING:
    import torch
    from torch import nn

    from raytrain.parallel.strategy import RankContext, Shape, Strategy


@dataclass(frozen=True)
class FSDP(Parallel):
    """PyTorch's FSDP2 (torch.distributed.fsdp.fully_shard): the weights of a block are gathered when its turn comes and
    dropped after it."""

    shard_over: int | None = None
    """Workers that share one set of weights; the sets are replicas of each other (HSDP). None is all workers."""
    block_parameters: int = 100_000
    """A block, another entry of a Sequential or ModuleList, or another child of the model with at least as many
    parameters is gathered by itself; the rest of the model together."""
    reshard_after_forward: bool = True
    """Drop gathered weights after the forward pass and gather them again for the backward pass: less memory, slower."""
    param_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """What gathered weights and activations are kept in (FSDP2's mixed precision policy); shards stay float32."""
    reduce_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """What gradients are reduced in."""
    cpu_offload: bool = False
    """Keep shards and optimizer state in the host's memory; GPUs only."""

    sharded: ClassVar[bool] = True
    """A rank has a part of each parameter."""
    spreads: ClassVar[bool] = True
    """Blocks are filled and sharded one after the other."""

    def __post_init__(self) -> None:
        check(self, shard_over=at_least(1), block_parameters=above(0))

    @property
    def scales(self) -> bool:
        """PyTorch's gradient scaler copies the scale to the host without waiting for it: gradients there would be
        divided by anything."""
        return not self.cpu_offload

    def backend(self, gpus: bool) -> str:
        """Gradients that are offloaded are clipped, and weights gathered for checkpoints, on the host."""
        return "cpu:gloo,cuda:nccl" if gpus and self.cpu_offload else super().backend(gpus)

    def share(self, module: nn.Module, workers: int) -> float:
        """Return the shard of a worker, or nothing where it is offloaded."""
        return 0.0 if self.cpu_offload else 1 / (self.shard_over or workers)

    def whole(self, module: nn.Module, micro_batches: int) -> tuple[int, str]:
        """Return the gathered weights and the gradients of the largest block; of several micro-batches the gradients of
        all blocks are kept whole until they are reduced."""
        held = [weights for _, weights in _runtime().units(module, self.block_parameters)]
        if micro_batches > 1:
            gradients = _bytes(tensor for tensor in module.parameters() if tensor.requires_grad)
            return max(map(_bytes, held)) + gradients, "the largest block and all gradients"
        both = (_bytes([*one, *(tensor for tensor in one if tensor.requires_grad)]) for one in held)
        return max(both), "the largest block with its gradients"

    def check(self, module: nn.Module, workers: int, gpus_per_worker: float, micro_batches: int) -> str:
        """Workers must fall into whole sets."""
        if self.shard_over and workers % self.shard_over:
            raise errors.UserError(
                f"{workers} workers cannot be divided into sets of {self.shard_over}",
                "in parallel.shard_over",
                f"give a number that divides {workers}",
            )
        if self.cpu_offload and not gpus_per_worker:
            raise errors.UserError(
                "there is nothing to offload from on CPUs", "in parallel.cpu_offload", "leave it out"
            )
        if workers > 1:
            self._check_tensors(module)
        return f"in sets of {self.shard_over} workers" if self.shard_over else ""

    def _check_tensors(self, module: nn.Module) -> None:
        """Check that FSDP2 can shard each parameter, and that those which are gathered together have one type."""
        names = {id(tensor): name for name, tensor in module.named_parameters()}
        seen: set[int] = set()
        for unit, _ in _runtime().units(module, self.block_parameters):
            own = [tensor for tensor in unit.parameters() if id(tensor) not in seen]
            seen.update(map(id, own))
            for tensor in own:
                if not tensor.dim():
                    raise _misfit(
                        f"FSDP cannot shard {names[id(tensor)]}, which has no dimension", "give it the shape (1,)"
                    )
            types = {tensor.dtype: names[id(tensor)] for tensor in reversed(own) if tensor.requires_grad}
            if len(types) > 1:
                found = " and ".join(f"{name} ({str(one).removeprefix('torch.')})" for one, name in types.items())
                what = f"FSDP gathers parameters of one type together, and not {found}"
                raise _misfit(what, "give them one type, or a --parallel.block_parameters that puts them apart")

    def setup(self, build: Callable[[], nn.Module], ranks: RankContext, shape: Shape) -> Strategy:
        """As the base class, with the model sharded in place."""
        runtime = _runtime()
        parts = runtime.Parts(build, ranks)
        if ranks.world > 1:
            return runtime.FullySharded(parts, ranks, self)
        parts.fill(parts.module, ranks.device)
        return runtime.Strategy(parts.module, ranks)


def _misfit(what: str, how: str) -> errors.UserError:
    return errors.UserError(what, "in parallel.strategy", f"{how}, or use --parallel.strategy ddp")


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _runtime():
    """Return the module of the runtime, imported late: it needs torch, and `--help` the fields only."""
    from raytrain.parallel import dtensors

    return dtensors
