"""summary.json: what came of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from raytrain.training import memory
from raytrain.training.progress import Progress

if TYPE_CHECKING:
    from raytrain.experiment import Experiment
    from raytrain.training.trainer import Trainer


def of(trainer: Trainer, status: str) -> dict[str, Any]:
    """Return the summary of a run. A collective.

    Args:
        status: `completed` or `interrupted`.
    """
    progress, device = trainer.progress, trainer.ranks.device
    peak = torch.tensor([float(memory.peak(device.type == "cuda"))], dtype=torch.float64, device=device)
    if trainer.ranks.world > 1:
        dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    early = status == "completed" and progress.step < trainer.timing.last
    ending = "out_of_time" if trainer.timing.out_of_time else "stopped_early"
    return {
        "status": status,
        **goal(trainer.experiment),
        **progress.summary(),
        **({ending: True} if early else {}),
        **({"stopped_because": trainer.timing.reason} if early and trainer.timing.reason else {}),
        "first_step_seconds": None if math.isnan(trainer.first_step_seconds) else trainer.first_step_seconds,
        "workers": trainer.ranks.world,
        "device": device.type,
        "precision": trainer.experiment.precision,
        "peak_memory_bytes": int(peak.item()),
        **({"baseline": trainer.baseline} if trainer.baseline else {}),
    }


def goal(e: Experiment) -> dict[str, Any]:
    """Return the metric that chooses the best checkpoint, whether its highest or its lowest value is the best, and the
    same of all metrics."""
    directions = dict(e.task.declared())
    return {"monitor": e.task.monitor, "direction": directions[e.task.monitor], "directions": directions}


def of_checkpoint(
    state: Mapping[str, Any], e: Experiment, device: str, baseline: Mapping[str, float] | None
) -> dict[str, Any]:
    """Return the summary of a run that was stopped, but whose processes were killed before they wrote it.

    Args:
        state: that of its last checkpoint.
        device: `cuda` or `cpu`.

    Raises:
        ValueError: the state has no progress.
    """
    return {
        "status": "interrupted",
        **goal(e),
        **Progress.from_state(state.get("progress")).summary(),
        "workers": state.get("workers"),
        "device": device,
        "precision": e.precision,
        **({"baseline": dict(baseline)} if baseline else {}),
    }
