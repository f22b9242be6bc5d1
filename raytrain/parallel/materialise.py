"""A model that gets its memory part by part, so that no process holds the whole of it.

Rank 0 builds the model as any process does, so that the initial values are the same bits, but its large tensors lie in
files that the system may write out of memory. The other ranks build it with large tensors on the meta device. A
strategy then fills one part after the other with rank 0's values, and keeps of it what is this rank's.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from raytrain.parallel.strategy import RankContext

_LARGE = 1 << 18
"""Bytes of the smallest tensor that is worth a file."""
_AFTERWARDS: dict[Any, Callable[[torch.Tensor], object]] = {
    torch.empty: lambda tensor: None,
    torch.zeros: lambda tensor: tensor.zero_(),
    torch.ones: lambda tensor: tensor.fill_(1),
    torch.rand: lambda tensor: tensor.uniform_(),
    torch.randn: lambda tensor: tensor.normal_(),
}
"""Functions that make tensors, and what they do after allocating one: it draws the same random numbers."""


def in_file(shape: Sequence[int], dtype: torch.dtype, folder: Path | None) -> torch.Tensor:
    """Return an uninitialised tensor on the CPU, with its memory in a file without a name: the system can write it to
    the disk and take the memory for other things.

    Args:
        folder: on the disk that has room for it. Small tensors, and those that the disk refuses, lie in memory; so do
            all tensors for None.
    """
    size = math.prod(shape) * dtype.itemsize
    if folder is not None and size >= _LARGE and hasattr(os, "posix_fallocate"):
        with contextlib.suppress(OSError, RuntimeError):  # no room, or a disk without shared mappings
            descriptor, name = tempfile.mkstemp(prefix=".tensor-", dir=folder)
            try:
                os.posix_fallocate(descriptor, 0, size)  # a write without room behind it would end the process
                return torch.from_file(name, shared=True, size=math.prod(shape), dtype=dtype).view(tuple(shape))
            finally:
                os.close(descriptor)
                os.unlink(name)
    return torch.empty(tuple(shape), dtype=dtype)


@torch.no_grad()
def lay_out(module: nn.Module, layout: torch.memory_format, folder: Path | None) -> None:
    """Bring weights of images into a layout, as `module.to(memory_format=layout)` does.

    Args:
        folder: see `in_file`.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dim() != 4 or layout != torch.channels_last:
            continue
        if tensor.is_meta:
            tensor.data = torch.empty_like(tensor, memory_format=layout)
        else:
            samples, channels, height, width = tensor.shape
            found = in_file((samples, height, width, channels), tensor.dtype, folder).permute(0, 3, 1, 2)
            tensor.data = found.copy_(tensor)


class Parts:
    """The model on one rank, before it has memory.

    Args:
        build: returns the model with its initial weights, on the CPU.

    Attributes:
        module: the model. `fill` changes its tensors in place: each stays the same object.
    """

    def __init__(self, build: Callable[[], nn.Module], ranks: RankContext):
        self.ranks = ranks
        self.module = _built(build, ranks)
        self._pending = {id(tensor) for tensor in (*self.module.parameters(), *self.module.buffers())}

    @torch.no_grad()
    def fill(
        self,
        part: nn.Module,
        device: torch.device,
        keep: bool = True,
        layout: torch.memory_format = torch.preserve_format,
    ) -> None:
        """Give parameters and buffers that have not been filled yet memory, with rank 0's values. A collective.

        Args:
            part: the module or one in it.
            keep: whether this rank wants them; otherwise they become zeros that take no memory.
            layout: their layout in memory.
        """
        for layer in part.modules():
            for tensor in (*layer._parameters.values(), *layer._buffers.values()):
                if tensor is None or id(tensor) not in self._pending:
                    continue
                self._pending.remove(id(tensor))
                value = torch.empty_like(tensor, device=device, memory_format=layout, requires_grad=False)
                if self.ranks.rank == 0:
                    value.copy_(tensor)
                if self.ranks.world > 1 and value.numel():
                    dist.broadcast(value.new_empty(0, dtype=torch.uint8).set_(value.untyped_storage()), src=0)
                _become(tensor, value if keep else value.new_zeros(()).expand(value.shape))


class _Large(TorchFunctionMode):
    """The context in which new large tensors of the CPU take no memory.

    Args:
        make: returns a tensor of a shape and dtype in their place.
    """

    def __init__(self, make: Callable[[torch.Size, torch.dtype], torch.Tensor]):
        self.make = make

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        plain = kwargs.keys() <= {"dtype", "device", "requires_grad", "size"}
        if func not in _AFTERWARDS or not plain or str(kwargs.get("device") or "cpu") != "cpu":
            return func(*args, **kwargs)
        shape = func(*args, **(kwargs | {"device": "meta"}))
        if shape.numel() * shape.itemsize < _LARGE or torch.get_default_device().type != "cpu":
            return func(*args, **kwargs)
        found = self.make(shape.shape, shape.dtype)
        _AFTERWARDS[func](found)
        return found.requires_grad_(shape.requires_grad)


def _built(build: Callable[[], nn.Module], ranks: RankContext) -> nn.Module:
    """Return the model, on ranks other than 0 with large tensors on the meta device, if its code allows that."""
    if ranks.rank:
        with (
            contextlib.suppress(Exception),
            _Large(lambda shape, dtype: torch.empty(shape, dtype=dtype, device="meta")),
        ):
            module = build()
            if not any(_is_meta(value) for layer in module.modules() for value in vars(layer).values()):
                return module
    with _Large(lambda shape, dtype: in_file(shape, dtype, ranks.folder)):
        return build()


def _is_meta(value: Any) -> bool:
    """Return whether a module's attribute, which is neither parameter nor buffer, is a tensor without values."""
    return isinstance(value, torch.Tensor) and value.is_meta


def _become(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Give a parameter or a buffer another memory; the object, and its attributes, stay."""
    if not tensor.is_meta:
        tensor.data = value
        return
    new = nn.Parameter(value, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value
    vars(new).update(vars(tensor))
    torch.utils.swap_tensors(tensor, new)
