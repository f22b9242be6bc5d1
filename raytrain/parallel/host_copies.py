"""Copies of a GPU's tensors in the host's memory, made while the GPU computes on. Not yet run on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


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

    def begin(self) -> None:
        """Begin a set of copies."""
        self._buffers = {buffer.data_ptr() for buffer in self.module.buffers()}

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the host."""
        if not on_gpu(tensor):
            return tensor.clone()
        if tensor.device != self.device:  # of a model that is spread over GPUs
            return tensor.cpu()
        side = self._side = self._side or torch.cuda.Stream(self.device)
        if tensor.data_ptr() in self._buffers:
            tensor = tensor.clone()
            tensor.record_stream(side)  # its memory is not reused before the copy is made
        side.wait_stream(torch.cuda.current_stream(self.device))
        found = torch.empty_like(tensor, device="cpu", pin_memory=True)
        with torch.cuda.stream(side):
            found.copy_(tensor, non_blocking=True)
        self._copied = side.record_event()
        return found

    def fence(self) -> None:
        """Let the GPU finish the copies before it goes on with what is launched from now on."""
        if self._copied is not None:
            torch.cuda.current_stream(self.device).wait_event(self._copied)

    def wait(self) -> None:
        """Wait until the copies have their values. May be called in any thread."""
        if self._copied is not None:
            self._copied.synchronize()


def on_gpu(tensor: torch.Tensor) -> bool:
    """Return whether a tensor lies on a GPU."""
    return tensor.device.type == "cuda"
