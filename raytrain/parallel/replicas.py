"""The runtime of DataParallel: copies of a module on several GPUs of one process, each computed by a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn


class Replicas(nn.DataParallel):
    """torch.nn.DataParallel whose threads compute in the autocast dtype of the thread that calls them.

    torch's threads take over whether autocast is enabled, but not its dtype, which is thread-local: bf16 would become
    float16, the default, without a scaled loss.
    """

    def parallel_apply(self, replicas: Sequence[nn.Module], inputs: Sequence[Any], kwargs: Any) -> list[Any]:
        """Return each replica's output for its inputs."""
        kind = self.src_device_obj.type
        autocast = partial(
            torch.autocast,
            kind,
            dtype=torch.get_autocast_dtype(kind),
            enabled=torch.is_autocast_enabled(kind),
            cache_enabled=torch.is_autocast_cache_enabled(),
        )
        return super().parallel_apply([_within(autocast, replica) for replica in replicas], inputs, kwargs)


def _within(context: Callable[[], torch.autocast], replica: nn.Module) -> Any:
    """Return the replica as a function that enters a context in the thread that calls it."""

    def compute(*args: Any, **kwargs: Any) -> Any:
        with context():
            return replica(*args, **kwargs)

    return compute
