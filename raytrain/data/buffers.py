"""Memory of batches that is used again and again, so that the system need not fill new memory with zeros."""

from __future__ import annotations

import mmap
import weakref

import numpy as np

from raytrain.data.blocks import Arrays
from raytrain.data.source import Field

_ALIGNED = 64
"""Bytes at whose multiples arrays begin."""


class Memory:
    """Memory that is used again once nobody refers to the arrays made of it, or to what was made of these without a
    copy, such as a tensor.

    Attributes:
        free: memory that waits for its next use.
    """

    def __init__(self) -> None:
        self.free = list[mmap.mmap]()

    def drop(self) -> None:
        """Return memory to the system, that in use too as soon as nobody refers to it."""
        self.free = []  # not emptied: what is in use comes back to the list that it is from

    def take(self, size: int) -> np.ndarray:
        """Return bytes, uint8 [at least `size`], with any values."""
        memory = self.free.pop() if self.free else None
        if memory is None or len(memory) < size:
            memory = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        lease = np.frombuffer(memory, np.uint8)  # what is made of it refers to it as its base
        weakref.finalize(lease, self.free.append, memory).atexit = False
        return lease


class Buffers(Memory):
    """Memory for the named arrays of batches."""

    def __init__(self, fields: tuple[Field, ...]):
        super().__init__()
        self.fields = fields

    def arrays(self, count: int) -> Arrays:
        """Return arrays for some samples, [count, ...] by the fields' names, with any values."""
        starts, size = [], 0
        for field in self.fields:
            starts.append(size)
            size += -(-field.bytes * count // _ALIGNED) * _ALIGNED
        lease = self.take(size)
        return {
            field.name: lease[start : start + field.bytes * count].view(field.dtype).reshape(count, *field.shape)
            for field, start in zip(self.fields, starts, strict=True)
        }
