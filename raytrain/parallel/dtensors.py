"""Strategies whose parameters are DTensors: FSDP2 and tensor parallel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard, _StridedShard

from raytrain.parallel.blocks import units
from raytrain.parallel.cut_layers import compute
from raytrain.parallel.cutting import shards, styles
from raytrain.parallel.fsdp import FSDP
from raytrain.parallel.materialise import Parts
from raytrain.parallel.meshes import mesh_of
from raytrain.parallel.strategy import RankContext, Strategy, broadcast

_DTYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


class Sharded(Strategy):
    """Parameters are DTensors."""

    sharded = True

    def unshard(self, tensor: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        if not isinstance(tensor, DTensor):
            return tensor
        if count := _blocks(tensor.placements[0]):
            part = tensor.to_local().unflatten(0, (count, -1))
            return DTensor.from_local(part, tensor.device_mesh, [Shard(1)], run_check=False).full_tensor().flatten(0, 1)
        return tensor.full_tensor()

    def shard(self, tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        """See the base class."""
        if not isinstance(parameter, DTensor) or tensor.shape != parameter.shape:
            return super().shard(tensor, parameter)
        mesh, placements = parameter.device_mesh, parameter.placements
        part = _part(tensor, mesh, placements)
        local = torch.empty_like(parameter.to_local(), dtype=tensor.dtype, requires_grad=False).copy_(part)
        return _dtensor(local, mesh, placements, parameter)


class FullySharded(Sharded):
    """FSDP2, which averages gradients over the ranks during the backward pass.

    Args:
        parts: the model, which is filled and sharded unit by unit.
        value: the settings.
    """

    lockstep = True  # each pass gathers the shards

    def __init__(self, parts: Parts, ranks: RankContext, value: FSDP):
        module = parts.module
        super().__init__(module, ranks)
        self.gradient_scale = float(ranks.world)
        size = value.shard_over or ranks.world
        if size == ranks.world:
            mesh = mesh_of(ranks, (size,))
        else:
            mesh = mesh_of(ranks, (ranks.world // size, size), ("replicate", "shard"))
        options: dict[str, Any] = {
            "mesh": mesh,
            "reshard_after_forward": value.reshard_after_forward,
            "mp_policy": MixedPrecisionPolicy(_DTYPES[value.param_dtype], _DTYPES[value.reduce_dtype]),
            "offload_policy": CPUOffloadPolicy() if value.cpu_offload else OffloadPolicy(),
        }
        _out_of_place(module)
        for unit, _ in units(module, value.block_parameters):
            # FSDP2 takes no other layout; images keep theirs.
            parts.fill(unit, ranks.device, layout=torch.contiguous_format)
            fully_shard(unit, **options)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Keep the gradients of a micro-batch whole until the last one's are reduced."""
        root = cast(FSDPModule, self.module)
        root.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            root.set_requires_gradient_sync(True)

    def weights_changed(self) -> None:
        """Reshard: a forward pass without a backward pass may leave gathered weights behind."""
        for part in self.module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()


class TensorSharded(Sharded):
    """Some layers are cut over the ranks that share a replica; all else is on every rank.

    Args:
        parts: the model, which is filled and sharded layer by layer.
        size: the ranks that share a replica.
        least: see `styles`.
    """

    def __init__(self, parts: Parts, ranks: RankContext, size: int, least: int):
        mesh = mesh_of(ranks, (ranks.world // size, size), ("replica", "shard"))
        every = Replicate()
        made: dict[str, ParallelStyle] = {
            "first": ColwiseParallel(),
            "second": RowwiseParallel(),
            "columns": ColwiseParallel(output_layouts=every),
            "rows": RowwiseParallel(input_layouts=every),
        }
        module, line = parts.module, mesh["shard"]
        _out_of_place(module)
        chosen = styles(module, size, least)
        how = shards(module, chosen)
        for name, style in chosen.items():
            layer = module.get_submodule(name)
            parts.fill(layer, ranks.device)
            if style in made:
                parallelize_module(module, line, {name: made[style]})
            else:
                for path, inner in layer.named_modules(prefix=name):
                    _cut(inner, path, how, line)
                compute(layer, style, line)
                if module._compiled_call_impl is not None:  # torch.compile does not see what these layers hold
                    layer.forward = torch.compiler.disable(layer.forward)
        parts.fill(module, ranks.device)
        super().__init__(module, ranks)
        self.mesh = mesh
        self.replica, number = divmod(ranks.rank, mesh.size(1))
        self.counts = number == 0  # all ranks of a replica have its outputs

    def reduce_gradients(self) -> None:
        """Sum over the replicas."""
        if self.mesh.size(0) > 1:
            for gradient in (tensor for part in _local(_gradients(self.module.parameters())) for tensor in part):
                dist.all_reduce(gradient, group=self.mesh.get_group("replica"))

    def broadcast_buffers(self) -> None:
        """Give all ranks rank 0's buffers, and shards of buffers those of the first replica."""
        peers = self.mesh.get_group("replica")
        for buffer in self.module.buffers():
            if isinstance(buffer, DTensor):
                dist.broadcast(buffer.to_local(), group=peers, group_src=0)
            else:
                broadcast(buffer)

    def clip(self, parameters: list[nn.Parameter], most: float) -> torch.Tensor:
        """As the base class. PyTorch's own function takes no mixture of sharded and plain tensors."""
        gradients = _gradients(parameters)
        norm = self.norm(gradients)
        factor = torch.clamp(most / (norm + 1e-6), max=1.0)
        for gradient in (tensor for part in _local(gradients) for tensor in part):
            gradient.mul_(factor)
        return norm

    def norm(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """As the base class."""
        shards, others = _local(tensors)
        square = nn.utils.get_total_norm(shards).square().to(self.ranks.device)
        dist.all_reduce(square, group=self.mesh.get_group("shard"))
        return torch.sqrt(square + nn.utils.get_total_norm(others).square())


def _out_of_place(module: nn.Module) -> None:
    """Let activations leave their input as it is: FSDP makes a view of a block's input, and DTensors one of a layer's
    output, which autograd does not let be changed."""
    for layer in module.modules():
        if getattr(layer, "inplace", False) is True:
            layer.inplace = False  # type: ignore[assignment]


def _cut(layer: nn.Module, path: str, how: dict[str, tuple[int, int]], mesh: DeviceMesh) -> None:
    """Keep of a layer's own tensors this rank's shards.

    Args:
        path: its name.
        how: see `cutting.shards`.
    """
    for held in cast(tuple[dict[str, Any], ...], (layer._parameters, layer._buffers)):
        for name, whole in held.items():
            if whole is None or (cut := how.get(f"{path}.{name}")) is None:
                continue
            dim, count = cut
            placement = _StridedShard(dim=dim, split_factor=count) if count > 1 else Shard(dim)
            part = _part(whole.detach(), mesh, (placement,))
            found = _dtensor(torch.empty_like(part).copy_(part), mesh, (placement,), whole)
            held[name] = nn.Parameter(found, whole.requires_grad) if isinstance(whole, nn.Parameter) else found


def _blocks(placement: Placement) -> int:
    """Return how many blocks of a dimension are cut each by itself; 0 where it is cut as one."""
    return getattr(placement, "split_factor", 0)


def _part(whole: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> torch.Tensor:
    """Return a view of this rank's shard, or a copy of a shard of several blocks."""
    if count := _blocks(placements[0]):
        return _part(whole.unflatten(0, (count, -1)), mesh, (Shard(1),)).flatten(0, 1)
    sizes, starts = compute_local_shape_and_global_offset(whole.shape, mesh, placements)
    return whole[tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))]


def _dtensor(
    part: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement], whole: torch.Tensor
) -> torch.Tensor:
    """Return a shard as a part of what is like `whole`."""
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def _gradients(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _local(tensors: Iterable[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return what this rank has of tensors: the shards of sharded ones, and those that are whole."""
    parts: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    for tensor in tensors:
        if isinstance(tensor, DTensor):
            (others if tensor.placements[0].is_replicate() else parts).append(tensor.to_local())
        else:
            others.append(tensor)
    return parts, others
