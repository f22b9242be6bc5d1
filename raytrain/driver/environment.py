"""environment.json: the environment of a run."""

from __future__ import annotations

import dataclasses
import datetime
import json
import platform
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from raytrain.driver import teacher_check
from raytrain.driver.plan import Plan
from raytrain.files import write_atomically
from raytrain.run import repository
from raytrain.run.version import VERSION


def write_environment(path: Path, planned: Plan) -> None:
    """Write `environment.json`: when the run began, versions, what there was to train on, the data's fingerprint."""
    commit = repository.here()
    values = {
        "began": datetime.datetime.now(datetime.UTC).isoformat(),
        "raytrain": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ray": _ray(),
        "platform": platform.platform(),
        "git_commit": commit.name,
        "git_changed": commit.changed,
        "command": sys.argv,
        "resources": {
            "where": planned.resources.where,
            "by_node": [dataclasses.asdict(node) for node in planned.resources.by_node],
        },
        "samples": {split: len(index) for split, index in planned.indices.items()},
        "data_fingerprint": {split: index.fingerprint() for split, index in planned.indices.items()},
        **teacher_check.noted(planned.experiment.task),
    }
    write_atomically(path / "environment.json", json.dumps(values, indent=2) + "\n")


@cache  # the trials of a sweep ask hundreds of times
def _ray() -> str:
    return metadata.version("ray")
