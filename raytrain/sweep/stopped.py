"""What is left to do for trials that a scheduler has stopped, and whose processes were killed while they ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytrain.checkpoint import layout
from raytrain.files import write_atomically
from raytrain.run import experiment_file
from raytrain.sweep import record
from raytrain.training import summary

if TYPE_CHECKING:
    from raytrain.sweep.trials import Trials


def concluded(folder: Path, found: dict[str, Any]) -> bool:
    """Return whether a trial's process has written all that it writes, if a scheduler has stopped it.

    Args:
        found: the trial's record, which Tune's process writes before the trial's own has ended.
    """
    return found.get("status") != "stopped" or (folder / "summary.json").exists()


def conclude(trials: Trials, number: int) -> None:
    """Write the summary of a trial that was stopped, where its process did not: that of its last checkpoint."""
    folder = record.folder(trials.path, number)
    found = record.read(folder)
    if trials.away is not None or concluded(folder, found):
        return
    if (checkpoint := layout.newest(folder / "checkpoints")) is None:
        return
    e = experiment_file.load(folder / "experiment.json")[0]
    way = trials.planned.variants.get(record.reads(e))
    of_task = any(axis.path.partition(".")[0] == "task" for axis in trials.sweep.axes)
    floor = way.baseline.scores if way and not of_task else None
    device = "cuda" if found.get("planned", {}).get("scaling.gpus_per_worker") else "cpu"
    values = summary.of_checkpoint(layout.load_state(checkpoint), e, device, floor)
    write_atomically(folder / "summary.json", json.dumps(values, indent=2))
