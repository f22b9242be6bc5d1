"""Copies of a GPU's tensors in the host's memory, made while the GPU computes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

_SMALL = 1 << 16
"""Bytes of a tensor that is copied together with others, which the GPU puts side by side first: to begin a copy takes
the host longer than the copy takes. 389 of the 481 tensors of a ResNet-50 with momentum are as small."""


class HostCopies:
    """Copies tensors to the host: those of a GPU into pinned memory, by a stream of its own, for which nobody waits.

    A copy has its values after `wait`. The tensors must not change before: `fence` lets the GPU, and not this thread,
    wait for that.

    Args:
        module: its buffers are copied on the GPU first, since the next forward pass changes them.
    """

    def __init__(self, module: nn.Module, device: torch.device):
        self.module, self.device = module, device
        self._side: torch.cuda.Stream | None = None
        self._copied: Any = None

    def begin(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Begin to copy tensors; return the copies. What lies elsewhere, on the host or on other GPUs over which the
        model is spread, is copied at once."""
        mine = [on_gpu(tensor) and tensor.device == self.device for tensor in tensors]
        begun = iter(self._begin([tensor for tensor, its in zip(tensors, mine, strict=True) if its]))
        return [next(begun) if its else tensor.to("cpu", copy=True) for tensor, its in zip(tensors, mine, strict=True)]

    def _begin(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Begin to copy tensors of the GPU, all after the same moment of its work."""
        if not tensors:
            return []
        buffers = {buffer.data_ptr() for buffer in self.module.buffers()}
        found, pairs, made = list(tensors), [], []
        for numbers, small in _kinds(tensors):
            sizes = [tensors[number].numel() for number in numbers]
            # One block for all, since to find a block takes as long as to begin a copy. PyTorch keeps the blocks of a
            # checkpoint that is written for the next one.
            block = torch.empty(sum(sizes), dtype=tensors[numbers[0]].dtype, pin_memory=True)
            for number, part in zip(numbers, block.split(sizes), strict=True):
                found[number] = _like(part, tensors[number])
            if small:
                made.append(torch.cat([_flat(tensors[number]) for number in numbers[:small]]))
                pairs.append((block[: len(made[-1])], made[-1]))
            for number in numbers[small:]:
                if (source := tensors[number]).data_ptr() in buffers:
                    made.append(source := source.clone())
                pairs.append((found[number], source))
        side = self._side or torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for room, source in pairs:
                room.copy_(source, non_blocking=True)
        for source in made:
            source.record_stream(side)  # its memory is not reused before the copy is made
        self._side, self._copied = side, side.record_event()
        return found

    def fence(self) -> None:
        """Let the GPU finish the copies before it goes on with what is launched from now on."""
        if self._copied is not None:
            torch.cuda.current_stream(self.device).wait_event(self._copied)

    def wait(self) -> None:
        """Wait until the copies have their values. May be called in any thread: a new one begins on GPU 0, where CUDA
        would make a context to wait in."""
        if self._copied is not None:
            with torch.cuda.device(self.device):
                self._copied.synchronize()


def on_gpu(tensor: torch.Tensor) -> bool:
    """Return whether a tensor lies on a GPU."""
    return tensor.device.type == "cuda"


def _kinds(tensors: list[torch.Tensor]) -> list[tuple[list[int], int]]:
    """Return the numbers of the tensors of each dtype, small ones first, and how many are small."""
    kinds: dict[torch.dtype, tuple[list[int], list[int]]] = {}
    for number, tensor in enumerate(tensors):
        kinds.setdefault(tensor.dtype, ([], []))[tensor.nbytes > _SMALL].append(number)
    return [(small + large, len(small)) for small, large in kinds.values()]


def _like(flat: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return memory in the shape of a tensor, and in its order where it is dense: other copies take longer."""
    if tensor.is_contiguous():
        return flat.view(tensor.shape)
    return flat.as_strided(tensor.shape, torch.empty_like(tensor, device="meta").stride(), flat.storage_offset())


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's values in the order in which `_like` has them."""
    if not tensor.is_contiguous() and tensor.stride() != torch.empty_like(tensor, device="meta").stride():
        tensor = torch.empty_like(tensor).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))
