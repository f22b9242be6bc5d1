"""Tensor parallel: the linear layers of one model over several workers, by columns and by rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from raytrain import errors
from raytrain.config import at_least, check
from raytrain.parallel.base import Parallel

if TYPE_CHECKING:
    import torch
    from torch import nn

_ELEMENTWISE = ("ReLU", "ReLU6", "LeakyReLU", "GELU", "SiLU", "Hardswish", "Tanh", "Sigmoid", "ELU", "Identity")
"""Layers of torch.nn that do not care which columns of their input they see."""


@dataclass(frozen=True)
class TensorParallel(Parallel):
    """Linear layers over the workers as DTensors (torch.distributed.tensor.parallel): of two that follow each other
    the first by columns and the second by rows, which exchange one sum (Shoeybi et al., 2019). All else is on every
    worker. With more workers than shards there are several such copies, whose gradients are added up."""

    shards: int | None = None
    """Workers that share one copy of the model; None is all workers."""

    sharded: ClassVar[bool] = True
    """A rank has a part of each linear layer."""

    def __post_init__(self) -> None:
        check(self, shards=at_least(2))

    @property
    def scales(self) -> bool:
        """PyTorch's gradient scaler takes no mixture of sharded and plain tensors."""
        return False

    def replicas(self, workers: int) -> int:
        """Copies of the model."""
        return max(1, workers // self._size(workers))

    def replica(self, rank: int, world: int) -> tuple[int, bool]:
        """Ranks that follow each other share a copy; all of them know its answers, and the first one's count."""
        size = self._size(world)
        return rank // size, rank % size == 0

    def on_device(self, state: int, workers: int) -> int:
        """Return an even part of the copy, as if all of it were sharded."""
        return state // self._size(workers)

    def check(self, module: nn.Module, workers: int, gpus_per_worker: float, micro_batches: int) -> str:
        """Workers make whole copies, and some linear layer can be sharded."""
        size = self._size(workers)
        if workers < 2 or workers % size:
            raise errors.strategy_misfit(
                f"{workers} worker{'s do' if workers > 1 else ' does'} not share copies of a model by {max(2, size)}",
                "parallel.shards",
                f"take a multiple of {max(2, size)} for --scaling.workers, or --parallel.strategy ddp",
            )
        how = {"first": "columns", "second": "rows"}
        return ", ".join(f"{name} by {how.get(style, style)}" for name, style in styles(module, size).items())

    def wrap(self, module: nn.Module, devices: Sequence[torch.device], world: int) -> nn.Module:
        """Shards `module` in place."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            ParallelStyle,
            RowwiseParallel,
            parallelize_module,
        )
        from torch.distributed.tensor.placement_types import Replicate

        size = self._size(world)
        mesh = init_device_mesh(devices[0].type, (world // size, size), mesh_dim_names=("replica", "shard"))
        every = Replicate()
        made: dict[str, ParallelStyle] = {
            "first": ColwiseParallel(),
            "second": RowwiseParallel(),
            "columns": ColwiseParallel(output_layouts=every),
            "rows": RowwiseParallel(input_layouts=every),
        }
        module._mesh = mesh  # type: ignore[assignment]
        return parallelize_module(
            module, mesh["shard"], {name: made[style] for name, style in styles(module, size).items()}
        )

    def sync_gradients(self, wrapped: nn.Module) -> None:
        """Adds up over the copies."""
        import torch.distributed as dist

        mesh = cast(Any, wrapped)._mesh
        if mesh.size(0) > 1:
            for gradient in (tensor for part in _gradients(wrapped.parameters()) for tensor in part):
                dist.all_reduce(gradient, group=mesh.get_group("replica"))

    def clip(self, wrapped: nn.Module, parameters: list[nn.Parameter], most: float) -> torch.Tensor:
        """By the norm over all shards. PyTorch's own function takes no mixture of sharded and plain tensors."""
        import torch
        import torch.distributed as dist
        from torch import nn

        shards, others = _gradients(parameters)
        square = nn.utils.get_total_norm(shards).square().to(parameters[0].device)
        dist.all_reduce(square, group=cast(Any, wrapped)._mesh.get_group("shard"))
        norm = torch.sqrt(square + nn.utils.get_total_norm(others).square())
        factor = torch.clamp(most / (norm + 1e-6), max=1.0)
        for gradient in (*shards, *others):
            gradient.mul_(factor)
        return norm

    def _size(self, workers: int) -> int:
        return self.shards or workers


def styles(module: nn.Module, size: int) -> dict[str, str]:
    """How each linear layer is cut, by its name: first and second of a pair, or rows or columns of one by itself.

    Raises:
        UserError: none can be.
    """
    from torch import nn

    linear = {name: layer for name, layer in module.named_modules() if type(layer) is nn.Linear}
    chosen: dict[str, str] = {}
    for path, parent in module.named_modules():
        first: str | None = None
        for name, layer in parent.named_children() if isinstance(parent, nn.Sequential) else ():
            full = f"{path}.{name}" if path else name
            if full in linear:
                if first and linear[first].out_features % size == 0:
                    chosen |= {first: "first", full: "second"}
                    first = None
                else:
                    first = full
            elif type(layer).__name__ not in _ELEMENTWISE and getattr(layer, "p", 1.0) != 0.0:  # a Dropout of nothing
                first = None
    for name, layer in linear.items():
        if name not in chosen and layer.in_features % size == 0:
            chosen[name] = "rows"
        elif name not in chosen and layer.out_features % size == 0:
            chosen[name] = "columns"
    if not chosen:
        known = ", ".join(f"{name} ({one.in_features} to {one.out_features})" for name, one in linear.items())
        raise errors.strategy_misfit(
            f"no linear layer of {type(module).__name__} can be cut into {size}: " + (known or "it has none"),
            "parallel.shards",
            "take another number of shards, or --parallel.strategy fsdp",
        )
    return chosen


def _gradients(parameters: Iterable[nn.Parameter]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """This rank's tensors of the gradients: of parameters of which it has a part, and of those that all ranks have."""
    parts: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    for gradient in (parameter.grad for parameter in parameters):
        if hasattr(gradient, "to_local"):
            sharded = cast(Any, gradient)
            (parts if sharded.placements[0].is_shard() else others).append(sharded.to_local())
        elif gradient is not None:
            others.append(gradient)
    return parts, others
