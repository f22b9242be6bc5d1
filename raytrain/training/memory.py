"""The memory of a process and of its GPUs: its peak, a cap, and whether an error means that it is exhausted."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

_SHORTAGE = (
    *("out of memory", "not allocate memory", "n't allocate memory", "not enough memory", "bad_alloc", "alloc_failed"),
    *("failed to map segment", "start new thread", "could not create a primitive", "could not create a memory"),
)
"""Parts of the out-of-memory messages of PyTorch, oneDNN, CUDA's libraries and the system."""


_CONTEXT_BYTES = 512 << 20
"""What a process's CUDA context takes of its GPU: 300 to 500 MiB, with the kernels of PyTorch and its libraries."""


def lacks(error: BaseException) -> bool:
    """Return whether an error means that memory is exhausted."""
    text = str(error).lower()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(mark in text for mark in _SHORTAGE)


def peak(gpu: bool) -> int:
    """Bytes: the present GPU's peak, or the process's on a CPU."""
    if gpu:
        return torch.cuda.max_memory_allocated()
    with contextlib.suppress(OSError, IndexError):  # not rusage's: that counts what ran in the process before, too
        return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def reset_peak(gpu: bool) -> None:
    """Reset `peak` to the current use."""
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    with contextlib.suppress(OSError):  # proc_pid_clear_refs(5); without it the peak is that of all so far
        Path("/proc/self/clear_refs").write_text("5")


class Pages(NamedTuple):
    """Bytes that a process has mapped, those of them in memory, and of these those that it may share."""

    mapped: int
    resident: int
    shared: int


def pages() -> Pages:
    """Return the pages of this process."""
    page = os.sysconf("SC_PAGE_SIZE")
    return Pages(*(int(count) * page for count in Path("/proc/self/statm").read_text().split()[:3]))


def available() -> float:
    """Return the bytes that the system could give to processes now; infinity where it does not say."""
    try:
        return int(Path("/proc/meminfo").read_text().partition("MemAvailable:")[2].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return math.inf


def cap(room: int) -> None:
    """Let this process map so many bytes beyond what it has."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = pages().mapped + max(0, room)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard < 0 else min(limit, hard), hard))


@contextlib.contextmanager
def capped(room: int | None) -> Iterator[None]:
    """`cap` for a while; None leaves the process alone."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    if room is not None:
        cap(room)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def gpu_room(total: int, share: float) -> int:
    """Return the bytes that PyTorch's allocator may take of a GPU on which this process has a share: the share without
    the process's CUDA context, which the allocator does not count, so that processes that share a GPU fill it and no
    more.

    Args:
        total: bytes of the GPU.
        share: of 1 or more, the process is alone on the GPU, and the driver itself refuses what does not fit.
    """
    return total if share >= 1 else max(0, int(total * share) - _CONTEXT_BYTES)


def cap_gpus(share: float, memory: int | None = None) -> None:
    """Let PyTorch take a share of each GPU, and no more than so many bytes of it."""
    for device in range(torch.cuda.device_count()):
        total = torch.cuda.get_device_properties(device).total_memory
        room = gpu_room(total, share)
        torch.cuda.set_per_process_memory_fraction((room if memory is None else min(room, memory)) / total, device)


def give_back() -> None:
    """Return what is free to the device and to the system: workers on CPUs keep freed memory."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
