"""The JSON state of a trainer's checkpoint, and restoring a trainer from the newest checkpoint of its run."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from raytrain.checkpoint import checkpoints, layout, retention
from raytrain.checkpoint.rows import check_rows
from raytrain.run.metrics_log import MetricsLog
from raytrain.run.run import no_way_back
from raytrain.run.writer import CheckpointWriter
from raytrain.training.progress import Progress

if TYPE_CHECKING:
    from raytrain.training.trainer import Trainer


@dataclass
class Saved:
    """What the trainer takes from a checkpoint later on.

    Attributes:
        name: the checkpoint's.
        optimizer: the optimizer's state.
        unit: see `LossLog`.
        metrics_bytes: the size of metrics.jsonl at that checkpoint.
    """

    name: str
    optimizer: dict[str, Any]
    unit: float | None
    metrics_bytes: int


def state_of(trainer: Trainer, hooks: list[dict[str, Any]], log: MetricsLog) -> dict[str, Any]:
    """Return the JSON part of a checkpoint: progress, and what identifies the run's data and metrics.

    Args:
        hooks: the hooks' state dicts, which all ranks collect together.
        log: the open metrics log.
    """
    index = trainer.indices["train"]
    return {
        "progress": dict(vars(trainer.progress)),
        "metrics_bytes": log.size,
        "metrics_sha256": log.sha256,
        "sample": trainer.sample,
        "input_dtype": index.input.seen_as,
        "input_kind": index.input.kind,
        "stored": index.input.shape,
        "classes": trainer.classes,
        "workers": trainer.ranks.world,
        "unit": trainer.losses.unit,
        "hooks": hooks,
    }


def restore(trainer: Trainer) -> Saved | None:
    """Take weights, precision and progress from the newest checkpoint that verifies and can be read. Nothing of the run
    is changed. A collective.

    Returns:
        None where there is no checkpoint.
    """
    ranks, folder, storage = trainer.ranks, trainer.run.checkpoints, trainer.storage
    first = ranks.rank == 0
    # A checkpoint has the whole state: where the model is spread, a rank reads its parts alone, from mapped files.
    parallel = trainer.experiment.parallel
    device = None if parallel.spreads else torch.device("cpu") if parallel.sharded else ranks.device
    found = newest(trainer, device) if first else None
    if found and storage:  # other ranks read it from storage, and it may be in this rank's mirror alone
        storage.push_checkpoint(trainer.run.path, found.path.name, storage.names("checkpoints"))
    chosen: list[Path | None] = [found.path if found else None]
    if ranks.world > 1:
        dist.broadcast_object_list(chosen)
    path = chosen[0]
    if path is None:
        return None
    if storage and not first:
        path = storage.fetch(path.name, folder)
    _, model, tensors, state = found or checkpoints.load(path, device)
    averages = trainer.averages
    trainer.weights = averages.load(model, tensors[averages.name]) if averages else model
    trainer.precision.load_state_dict(tensors["precision"])
    trainer.progress = Progress.from_state(state["progress"])
    trainer.hooks.load_state_dict(state.get("hooks", []))
    return Saved(path.name, tensors["optimizer"], state["unit"], state["metrics_bytes"])


def open_logs(trainer: Trainer, saved: Saved | None) -> None:
    """On rank 0, cut the run back to the checkpoint that training resumes from, and open its logs."""
    if trainer.ranks.rank:
        return
    path, progress, settings = trainer.run.path, trainer.progress, trainer.experiment.checkpoint
    retention.drop_after(trainer.run.checkpoints, progress.step if saved else -1)
    trainer.log = MetricsLog(path / "metrics.jsonl", saved.metrics_bytes if saved else 0)
    trainer.writer = CheckpointWriter(path, trainer.log, settings, trainer.steps_per_epoch, trainer.storage)
    if trainer.experiment.on_nonfinite == "error":
        named = trainer.strategy.module.named_parameters()
        trainer.writer.finite = [name for name, parameter in named if parameter.requires_grad]
    trainer.writer.resume(saved.name if saved else None, progress.step, progress.best)


def newest(trainer: Trainer, device: torch.device | None) -> checkpoints.Loaded | None:
    """Return the newest checkpoint that is one of the run and has the metrics before it; None for a run without any.

    Args:
        device: see `checkpoints.load`.

    Raises:
        UserError: there are checkpoints, and none of them will do: to begin anew would remove them.
    """
    run, storage = trainer.run, trainer.storage
    for found in (
        checkpoints.loadable_at(storage, run.path, device) if storage else checkpoints.loadable(run.checkpoints, device)
    ):
        with contextlib.suppress(KeyError, ValueError, TypeError):
            averages = [trainer.averages.name] if trainer.averages else []
            state, tensors = found.state, {"optimizer", "precision", *averages}
            step = Progress.from_state(state["progress"]).step
            figures = state["metrics_bytes"] >= 0 and (state["unit"] is None or math.isfinite(state["unit"]))
            fits = trainer.hooks.fit(state.get("hooks", []))
            if figures and fits and tensors <= found.optimizer.keys() and layout.name_of(step) == found.path.name:
                check_rows(run.path / "metrics.jsonl", state)
                return found
    if names := list(storage.committed()) if storage else layout.committed(run.checkpoints):
        where = storage.url if storage else run.path
        raise no_way_back(where, f"{names[-1]} cannot be read or lacks its metrics")
    return None
