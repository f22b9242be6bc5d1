"""Batches on their way to a GPU, in page-locked memory: a thread gathers and copies them while the model computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property
from typing import Any

import numpy as np
import torch

from raytrain.data.blocks import Arrays
from raytrain.data.prepare import Tensors
from raytrain.watchdog import WAITING, doing

_DEPTH = 2
"""Batches ahead, and buffers: one is filled while the GPU copies the other."""


class Pinned:
    """The buffers of a loader, which all passes use again, and the thread that fills them.

    A buffer is free again when the GPU has copied it. The thread waits for that, and training does not.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self._buffers: list[Tensors] = [{} for _ in range(_DEPTH)]
        self._copied: list[Any] = [None] * _DEPTH

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        # Threads begin on GPU 0, where CUDA would make a context of several hundred MB to wait in.
        return ThreadPoolExecutor(1, "pin", torch.cuda.set_device, (self.device,))

    def batches(
        self, source: Iterator[tuple[np.ndarray, Arrays]], copy: Callable[[Tensors], tuple[Tensors, Any]]
    ) -> Iterator[tuple[np.ndarray, Tensors]]:
        """Yield what `copy` makes of each batch of `source`, with its samples (int64 [k]).

        Args:
            source: read by the thread only; an error there is raised here.
            copy: begins to copy pinned tensors to the device; returns the copies, and an event after them.
        """
        filling: deque[tuple[int, Future[tuple[np.ndarray, Tensors] | None]]] = deque()
        number = 0
        try:
            while True:
                while len(filling) < _DEPTH:
                    slot = number % _DEPTH  # the batch that it had has been given to `copy`
                    filling.append((slot, self._thread.submit(self._fill, source, slot)))
                    number += 1
                doing.at(WAITING)
                slot, future = filling.popleft()
                if (found := future.result()) is None:
                    return
                ids, pinned = found
                copies, self._copied[slot] = copy(pinned)
                yield ids, copies
        finally:
            wait([future for _, future in filling if not future.cancel()])  # the next pass uses the reader

    def _fill(self, source: Iterator[tuple[np.ndarray, Arrays]], slot: int) -> tuple[np.ndarray, Tensors] | None:
        """Read the next batch into a buffer; return None if there is none."""
        following = next(source, None)
        if following is None:
            return None
        ids, arrays = following
        if self._copied[slot] is not None:
            self._copied[slot].synchronize()
        pinned = {}
        for name, array in arrays.items():
            given, buffer = torch.from_numpy(array), self._buffers[slot].get(name)
            if buffer is None or len(buffer) < len(given) or _kind(buffer) != _kind(given):
                buffer = self._buffers[slot][name] = torch.empty(given.shape, dtype=given.dtype).pin_memory()
            pinned[name] = buffer[: len(given)]
            pinned[name].copy_(given)
        return ids, pinned


def _kind(tensor: torch.Tensor) -> tuple[torch.dtype, torch.Size]:
    return tensor.dtype, tensor.shape[1:]
