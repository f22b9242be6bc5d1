"""PyTorch's threads in a process that may be the user's own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def threads(count: int | None = None) -> Iterator[None]:
    """Let operations take so many threads, None for as many as before, and afterwards as many as before in any case."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(count or before)
        yield
    finally:
        torch.set_num_threads(before)
