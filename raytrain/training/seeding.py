"""The seeds of torch's generators."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from raytrain import order


def seed(parts: Sequence[int], gpus: Sequence[torch.device]) -> None:
    """Seed torch's generators on the CPU and on a rank's GPUs by a hash of integers."""
    found = order.key(*parts) >> 1
    torch.default_generator.manual_seed(found)  # torch.manual_seed also visits all other backends, at every step
    if gpus:
        torch.cuda.init()
    for number, device in enumerate(gpus):
        # Each GPU draws its own numbers: replicas or layers on two GPUs must not drop the same units.
        generator = torch.cuda.default_generators[device.index]  # torch.cuda.manual_seed switches the device for this
        generator.manual_seed(order.key(found, number) >> 1 if number else found)
