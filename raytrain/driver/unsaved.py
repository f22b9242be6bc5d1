"""What training changes in a model and no checkpoint has."""

from __future__ import annotations

import torch
from torch import nn


def buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of the buffers that are not in the model's state dict (`persistent=False`), by name."""
    saved = module.state_dict().keys()
    return {name: value.clone() for name, value in module.named_buffers() if name not in saved}


def notes(before: dict[str, torch.Tensor], module: nn.Module) -> list[str]:
    """Return a line for the plan if a step has changed one of them.

    Args:
        before: what `buffers` returned before the step.
    """
    now = dict(module.named_buffers())
    changed = [name for name, value in before.items() if name in now and not now[name].equal(value)]
    if not changed:
        return []
    what = f"training changes the buffer {changed[0]}, which checkpoints do not have (persistent=False)"
    return [f"{what}: a resumed run, and an evaluation, begin with that of a new model"]
