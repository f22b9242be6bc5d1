"""How a plain module is spread over the workers. The base class is a working no-op: one worker, nothing shared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from raytrain import errors

if TYPE_CHECKING:
    import torch
    from torch import nn


class Pass(Protocol):
    """A micro-batch, as the loader gives it."""

    @property
    def images(self) -> torch.Tensor:
        """float32 [k, channels, height, width]."""
        ...

    @property
    def last(self) -> bool:
        """Whether the step has no further one."""
        ...

    @property
    def blank(self) -> bool:
        """Whether it stands in for samples that are not there."""
        ...


Context = Callable[[], AbstractContextManager[Any]]
"""Makes the context for forward passes, such as that of mixed precision."""


@dataclass(frozen=True)
class Parallel:
    """The base of all parallel strategies."""

    sharded: ClassVar[bool] = False
    """Whether ranks hold parts of the model, so that a checkpoint needs all of them."""
    compiles: ClassVar[bool] = True
    """Whether torch.compile works with it."""

    @property
    def lockstep(self) -> bool:
        """Whether each pass of a step is a collective, so that all ranks must have equally many."""
        return False

    @property
    def scales(self) -> bool:
        """Whether fp16's gradient scaling works with it."""
        return True

    def backend(self, gpus: bool) -> str:
        """Return the backend of torch.distributed for workers with or without GPUs."""
        return "nccl" if gpus else "gloo"

    def replicas(self, workers: int) -> int:
        """How many copies of the model the workers make; each trains on its share of a batch."""
        return workers

    def replica(self, rank: int, world: int) -> tuple[int, bool]:
        """The number of the rank's copy of the model, and whether this rank's losses and sums count: those of one rank
        of each copy do."""
        return rank, True

    def on_device(self, state: int, workers: int) -> int:
        """Return what one device holds, at the least, of the bytes of a copy's weights, gradients and optimizer
        state."""
        return state

    def stream(self, rank: int, world: int) -> int:
        """Return the number of the rank's stream of random numbers; ranks that compute the same layers on the same
        samples share one."""
        return self.replica(rank, world)[0]

    def micro_batch(self, part: int, asked: int | None, workers: int) -> int:
        """Samples of a forward pass.

        Args:
            part: samples of one copy of the model in a step.
            asked: the experiment's `micro_batch_size`, which divides them.
        """
        return asked or part

    def check(self, module: nn.Module, workers: int, gpus_per_worker: float, micro_batches: int) -> str:
        """Checks, before anything starts, that the workers suffice and the model can be spread over them.

        Args:
            module: the model, perhaps on the meta device.
            micro_batches: of a step.

        Returns:
            How the model will be spread, for the plan.

        Raises:
            UserError: they do not.
        """
        return ""

    def wrap(self, module: nn.Module, devices: Sequence[torch.device], world: int) -> nn.Module:
        """Return the module that the loop trains.

        Args:
            module: the model, on the first device; it keeps the weights, of which a sharded strategy leaves it this
                rank's part.
            devices: those of this rank, at least one.
            world: the number of ranks.
        """
        return module

    def check_deterministic(self) -> None:
        """Checks that it can give the same bits on any number of workers, by `wrap_deterministic`.

        Raises:
            UserError: it cannot.
        """
        raise errors.not_deterministic(
            f"{type(self).__name__} adds gradients up in an order that depends on the number of workers",
            "parallel.strategy",
            "take --parallel.strategy ddp",
        )

    def wrap_deterministic(self, module: nn.Module, devices: Sequence[torch.device], world: int) -> nn.Module:
        """`wrap` for `deterministic`: gradients of each shard of a batch are kept apart, and added up in an order that
        does not depend on the workers."""
        raise NotImplementedError(f"{type(self).__name__} needs a wrap_deterministic(module, devices, world)")

    def own(self, wrapped: nn.Module, parameters: list[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
        """Those of the parameters of which this rank has the values, or a part of each."""
        return parameters

    def accumulate(
        self,
        wrapped: nn.Module,
        passes: Iterable[Any],
        loss: Callable[[nn.Module, Any], torch.Tensor],
        forward: Context,
        shape: tuple[int, int],
    ) -> None:
        """Forward and backward passes of a step.

        Args:
            passes: this rank's micro-batches.
            loss: what to go back from, for the model and a micro-batch.
            forward: the context for the model's passes, which `loss` has of its own.
            shape: (micro-batches of a full step, samples of each).
        """
        for one in passes:
            with nullcontext() if one.last else self.no_sync(wrapped):
                loss(wrapped, one).backward()

    def answers(
        self, wrapped: nn.Module, module: nn.Module, passes: Iterable[Any], forward: Context, shape: tuple[int, int]
    ) -> Iterator[tuple[Any, nn.Module]]:
        """Micro-batches for evaluation, each with a model for it; what ranks work on together may be blank."""
        for one in passes:
            yield one, module

    def shard(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        """The context for the passes of a shard: all of a rank's in a step, or a part of them under `deterministic`."""
        return nullcontext()

    def no_sync(self, wrapped: nn.Module) -> AbstractContextManager[Any]:
        """The context for micro-batches whose gradients are not exchanged yet."""
        return nullcontext()

    def sync_gradients(self, wrapped: nn.Module) -> None:
        """Exchanges gradients after a step's last backward pass, where that has not happened during it."""

    def total(self, wrapped: nn.Module, values: torch.Tensor) -> None:
        """Turns float64 [n] into the sums over all ranks. A collective."""
        import torch.distributed as dist

        dist.all_reduce(values)

    def gradient_scale(self, wrapped: nn.Module, world: int) -> float:
        """What the exchange divides summed gradients by; the loop multiplies the loss by it."""
        return 1.0

    def clip(self, wrapped: nn.Module, parameters: list[torch.nn.Parameter], most: float) -> torch.Tensor:
        """Scales the gradients down to a norm, and returns the norm that they had all together."""
        from torch import nn

        norm = nn.utils.clip_grad_norm_(parameters, most)
        return self.whole(norm)

    def sync_buffers(self, wrapped: nn.Module, module: nn.Module, world: int) -> None:
        """Gives all ranks rank 0's buffers (BatchNorm's statistics), for evaluation and checkpoints."""
        if world > 1:
            import torch.distributed as dist

            for buffer in module.buffers():
                dist.broadcast(buffer, src=0)

    def gather(
        self, wrapped: nn.Module, state: dict[str, Any], first: bool, copy: Callable[..., Any]
    ) -> dict[str, Any] | None:
        """A copy of state with all of its parts, on the first rank. A collective where the strategy is sharded.

        Args:
            state: a tree of the model's or the optimizer's tensors, by the names or numbers of parameters.
            first: whether this is the first rank.
            copy: (tree, what makes a tensor whole, whether the copy is wanted) -> the copy.
        """
        return copy(state, self.whole, first) if first or self.sharded else None

    def refresh(self, wrapped: nn.Module) -> None:
        """Called when weights have been changed in place, outside of an optimizer's step: drops copies of them."""

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the model or of the optimizer with all of its parts, as a checkpoint holds it. A collective
        where the strategy is sharded."""
        return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[union-attr]

    def part(self, tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        """The inverse of `whole`, for an optimizer's tensor that belongs to a parameter."""
        import torch

        if tensor.shape != parameter.shape:
            return tensor  # such as Adam's step
        if hasattr(parameter, "device_mesh"):
            from torch.distributed.tensor import DTensor, distribute_tensor

            assert isinstance(parameter, DTensor)
            return distribute_tensor(tensor.contiguous(), parameter.device_mesh, parameter.placements)
        # Fused optimizers take it for granted that both lie in memory in the same order.
        return torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
