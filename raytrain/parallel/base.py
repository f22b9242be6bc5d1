"""The choice of how a model is spread over the workers. The base class is a working no-op for one worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from raytrain import errors

if TYPE_CHECKING:
    from torch import nn

    from raytrain.parallel.strategy import RankContext, Shape, Strategy


@dataclass(frozen=True)
class Parallel:
    """The base of all parallel strategies. `setup` makes the runtime, a `Strategy`, on each rank. The other methods
    serve the plan and need no runtime."""

    sharded: ClassVar[bool] = False
    """Whether ranks hold parts of the model, so that no device needs room for the whole."""
    spreads: ClassVar[bool] = False
    """Whether `setup` leaves it to the trainer to load weights, part by part (`Strategy.load`), so that no device or
    process needs room for the whole model."""
    compiles: ClassVar[bool] = True
    """Whether torch.compile works with it."""
    recomputes: ClassVar[bool] = True
    """Whether activation checkpointing works with it."""
    takes_more: ClassVar[bool] = True
    """Whether a task may give the model more than the batch's input."""
    threads: ClassVar[int | None] = None
    """Threads of a worker where the experiment leaves them open; None shares the cores among the workers."""

    @property
    def scales(self) -> bool:
        """Whether fp16's gradient scaling works with it."""
        return True

    @property
    def short_passes(self) -> bool:
        """Whether BatchNorm sees the samples of a short batch alone."""
        return True

    def setup(self, build: Callable[[], nn.Module], ranks: RankContext, shape: Shape) -> Strategy:
        """Make the runtime of one rank. A collective.

        Args:
            build: returns the model with its initial weights, on the CPU; under `spreads` with those of the seed.
            shape: (micro-batches of a full step of one replica, samples of each).
        """
        from raytrain.parallel.strategy import Strategy  # torch: `--help` needs the fields only

        return Strategy(build().to(ranks.device), ranks)

    def prepare_process(self) -> None:
        """Called on each rank before its process uses a GPU."""

    def backend(self, gpus: bool) -> str:
        """Return the backend of torch.distributed for workers with or without GPUs."""
        return "nccl" if gpus else "gloo"

    def replicas(self, workers: int) -> int:
        """Return the number of replicas of the model that the workers hold; each trains on its share of a batch."""
        return workers

    def batch_shards(self, workers: int) -> int | None:
        """Return into how many shards a replica's share of each batch is cut, whatever the number of samples; None
        where it stays whole."""
        return None

    def part(self, batch_size: int, workers: int) -> int:
        """Return the samples of a batch that micro-batches divide: a replica's share."""
        return batch_size // self.replicas(workers)

    def micro_batch(self, part: int, asked: int | None, workers: int) -> int:
        """Return the samples of a forward pass.

        Args:
            part: see `part`.
            asked: the experiment's `micro_batch_size`, which divides it.
        """
        return asked or part

    def uncaptured(self, workers: int) -> str:
        """Return why the pass of a batch cannot be recorded as a CUDA graph; empty where it can."""
        return f"{type(self).__name__} exchanges tensors of {workers} workers during the pass" if workers > 1 else ""

    def gradient_copies(self, workers: int) -> int:
        """Return how many further copies of the gradients a rank holds."""
        return 0

    def share(self, module: nn.Module, workers: int) -> float:
        """Return the largest share of a replica's parameters that one device holds, once `check` has passed.

        Args:
            module: the model, perhaps on the meta device.
        """
        return 1.0

    def whole(self, module: nn.Module, micro_batches: int) -> tuple[int, str]:
        """Return the bytes that a device which holds a share of the parameters takes besides it for a while, and what
        they are.

        Args:
            module, micro_batches: see `check`.
        """
        return max(each.numel() * each.element_size() for each in module.parameters()), "the largest tensor"

    def check_settings(self, batch_size: int, workers: int, precision: str, compile: bool) -> None:
        """Check that the other settings of an experiment suit the strategy, when the experiment is made.

        Raises:
            UserError: one does not.
        """
        replicas = self.replicas(workers)
        if batch_size % replicas:
            raise errors.UserError(
                f"batch_size {batch_size} does not divide by "
                f"{'scaling.workers' if replicas == workers else 'copies of the model:'} {replicas}",
                "",
                f"use --batch_size {multiples(batch_size, replicas)}, or another number of workers",
            )

    def check(self, module: nn.Module, workers: int, gpus_per_worker: float, micro_batches: int) -> str:
        """Check, before anything starts, that the workers suffice and the model can be spread over them.

        Args:
            module: the model, perhaps on the meta device.
            micro_batches: of a step of one replica.

        Returns:
            How the model will be spread, for the plan.

        Raises:
            UserError: they do not suffice, or it cannot.
        """
        return ""


def multiples(size: int, divisor: int) -> str:
    """Return the multiples of `divisor` next to `size`, for an error."""
    low = size // divisor * divisor
    return f"{low} or {low + divisor}" if low else str(divisor)


def no_shared_memory() -> errors.UserError:
    """Return the error for workers that have no memory in common."""
    return errors.UserError(
        "the workers share no memory: they are not all on CPUs of one x86-64 Linux host",
        "in parallel.reduction",
        "use --parallel.reduction auto",
    )


def cutting():
    """Return the module that cuts, imported late: it needs torch, and `--help` the fields only."""
    from raytrain.parallel import cutting

    return cutting
