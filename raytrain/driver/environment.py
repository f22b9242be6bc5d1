"""environment.json: the environment of a run."""

from __future__ import annotations

import dataclasses
import datetime
import json
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import torch

from raytrain.driver.plan import Plan
from raytrain.files import write_atomically
from raytrain.run.version import VERSION


def write_environment(path: Path, planned: Plan) -> None:
    """Write `environment.json`: when the run began, versions, what there was to train on, the data's fingerprint."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    values = {
        "began": datetime.datetime.now(datetime.UTC).isoformat(),
        "raytrain": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ray": metadata.version("ray"),
        "platform": platform.platform(),
        "git_commit": commit or None,
        "command": sys.argv,
        "resources": {
            "where": planned.resources.where,
            "by_node": [dataclasses.asdict(node) for node in planned.resources.by_node],
        },
        "data_fingerprint": {split: index.fingerprint() for split, index in planned.indices.items()},
    }
    write_atomically(path / "environment.json", json.dumps(values, indent=2) + "\n")
