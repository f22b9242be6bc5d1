"""Runs in the tests' own process on a GPU, whose commands take half a minute to start."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import torch

from helpers.ranks import new_run
from raytrain import Experiment, Hook, Run
from raytrain.data.checks import checked_read
from raytrain.data.reader import Resident
from raytrain.parallel.strategy import RankContext
from raytrain.training.trainer import Trainer

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for `deterministic`; cuBLAS reads it once
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


def trained(run: Path, e: Experiment, *hooks: Hook, device: torch.device = GPU) -> Run:
    """Train in a new run, or go on with one that is there."""
    if not run.is_dir():
        (new_run(run, e) / "logs").mkdir()
    indices = e.data.index()
    splits = ("train", "val")
    readers = {name: Resident(checked_read(e.data, indices[name], np.arange(len(indices[name])))) for name in splits}
    Trainer(e, run, indices, readers, None, RankContext(0, 1, device), time.time(), hooks=hooks).fit()
    return Run(run)


def notes(run: Run) -> str:
    file = run.path / "logs" / "notes.log"
    return file.read_text() if file.is_file() else ""
