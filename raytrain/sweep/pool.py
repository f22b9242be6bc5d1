"""Checkpoints of a sweep's trials that any trial may go on from, after a pause or with the weights of a better one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from raytrain.checkpoint import layout
from raytrain.experiment import Experiment
from raytrain.files import write_atomically
from raytrain.run import experiment_file


def keep(run: Path, path: Path, pool: Path) -> None:
    """Keep a checkpoint, the best one, the first one's metrics and the run's experiment for any trial, even if this one
    removes its own."""
    partial = pool.with_name(f".{pool.name}.{os.getpid()}")  # a process of a killed command may do the same
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    state = layout.load_state(path)
    best = run / "checkpoints" / str(state["progress"]["best"].get("checkpoint"))
    for source in {path, best} if best.is_dir() else {path}:
        shutil.copytree(source, partial / source.name, copy_function=os.link)
    rows = (run / "metrics.jsonl").read_bytes()[: state["metrics_bytes"]]
    (partial / "metrics.jsonl").write_bytes(rows)
    shutil.copyfile(run / "experiment.json", partial / "experiment.json")
    try:
        partial.rename(pool)
    except OSError:  # another process was faster
        shutil.rmtree(partial, ignore_errors=True)


def adopt(run: Path, pool: Path | None, experiment: Experiment | None = None) -> None:
    """Replace a run's checkpoints and metrics by what `keep` kept of this trial or another.

    After a kill in between the run has no checkpoint, or an older one: its experiment trains up to here once more.

    Args:
        pool: None leaves the run without a checkpoint: its experiment trains up to here.
        experiment: replaces the run's own, if that changes.

    Raises:
        UserError: it does not verify.
    """
    sources = sorted(pool.glob("step_*")) if pool else []
    for source in sources:
        layout.verify(source)
    own = run / "checkpoints"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    write_atomically(run / "metrics.jsonl", (pool / "metrics.jsonl").read_bytes() if pool else b"")
    if experiment is not None:
        experiment_file.save(experiment, run / "experiment.json")
    for pointer in ("best.json", "last.json"):
        (run / pointer).unlink(missing_ok=True)
    if not sources:
        return
    state = layout.load_state(sources[-1])
    best = state["progress"]["best"]
    write_atomically(run / "best.json", json.dumps(best, indent=2))
    for source in sources:  # links, the newest last
        shutil.copytree(source, own / source.name, copy_function=os.link)
