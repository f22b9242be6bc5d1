"""A CUDA graph: its capture, what a capture that fails leaves behind, and its replay."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from raytrain import errors


class Graph(Protocol):
    """What records work on a device and does it again: `CUDAGraph`, or a test's."""

    def capture(self, work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        """Record the work without doing it. Return its tensors, which each replay writes anew."""
        ...

    def replay(self) -> None:
        """Do the work."""
        ...


@contextlib.contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Return the context in which a GPU does this thread's work on a stream of its own, where graphs are captured too:
    what autograd has kept of earlier passes refers to it. A capture on another stream would end with the first such
    reference, since no graph may hold work of CUDA's default stream."""
    if device.type != "cuda":
        yield
        return
    before, own = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    own.wait_stream(before)
    with torch.cuda.stream(own):
        yield
    before.wait_stream(own)


class CUDAGraph:
    """A torch.cuda.CUDAGraph.

    Args:
        pool: memory that it shares with other graphs, `torch.cuda.graph_pool_handle()`. A replay overwrites what others
            have computed, but for tensors that were there when it was captured. A step replays a pass, and the update
            that was captured with the gradients of that pass; nothing that a graph has written is read in a later step.
    """

    def __init__(self, pool: Any):
        self.graph, self.pool = torch.cuda.CUDAGraph(), pool

    def capture(self, work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        """Record the work. Other threads, such as a checkpoint's, may use the GPU meanwhile.

        Raises:
            Exception: the work's own error, in place of that of the end of a capture that has failed.
        """
        stream, failed = torch.cuda.current_stream(), list[Exception]()
        own = None if stream == torch.cuda.default_stream() else stream  # CUDA captures nothing on the default one
        try:
            with torch.cuda.graph(self.graph, pool=self.pool, stream=own, capture_error_mode="thread_local"):
                try:
                    return work()
                except Exception as error:
                    failed.append(error)
                    raise
        except Exception as error:
            failed.append(error)
            self._forget()
        finally:
            torch.cuda.set_stream(stream)  # old versions of PyTorch leave the capture's own one
        try:
            raise failed[0]  # not while the other is handled: each would hold the other, and the work's tensors
        finally:
            failed.clear()

    def _forget(self) -> None:
        """Forget a capture that has failed. In PyTorch 2.11 the allocator and the generator of random numbers still
        take it to be under way: the one would return no memory, and the other raise an error for each number."""
        self.graph.reset()
        with contextlib.suppress(RuntimeError):  # later versions have ended it
            device = torch.cuda.current_device()
            torch._C._cuda_endAllocateToPool(device, self.pool)
            torch._C._cuda_releasePool(device, self.pool)
            with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):  # it ends the generator's
                torch.zeros((), device="cuda")

    def replay(self) -> None:
        """Launch the graph on the current stream."""
        self.graph.replay()


def said(error: Exception) -> str:
    """Return what an error says, in one line."""
    return errors.one_line(str(error) or type(error).__name__, 200)


def taken(device: torch.device) -> int:
    """Return the bytes of a GPU that work has taken for a while and given back."""
    if device.type != "cuda":
        return 0
    return torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)


def reserve(size: int, device: torch.device) -> None:
    """Let PyTorch take memory, and keep it for what comes next.

    Raises:
        OutOfMemoryError: there is none.
    """
    torch.empty(size, dtype=torch.uint8, device=device)
