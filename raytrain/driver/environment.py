"""environment.json: the environment of a run."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from raytrain.driver import teacher_check
from raytrain.driver.plan import Plan
from raytrain.files import write_atomically
from raytrain.run.version import VERSION

_GIT_SECONDS = 2.0
"""Seconds after which git, in a very large repository or on slow storage, is not waited for."""


def write_environment(path: Path, planned: Plan) -> None:
    """Write `environment.json`: when the run began, versions, what there was to train on, the data's fingerprint."""
    commit, changed = _git(os.getcwd())
    values = {
        "began": datetime.datetime.now(datetime.UTC).isoformat(),
        "raytrain": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "ray": _ray(),
        "platform": platform.platform(),
        "git_commit": commit,
        "git_changed": changed,
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


@cache
def _git(folder: str) -> tuple[str | None, bool | None]:
    """Return the commit of the repository that holds a folder, and whether tracked files differ from it; None where
    there is no repository or no git, or git does not answer in time."""
    commit = _asked(folder, "rev-parse", "HEAD")
    changes = _asked(folder, "status", "--porcelain", "--untracked-files=no") if commit else None
    return commit or None, None if changes is None else bool(changes)


def _asked(folder: str, *words: str) -> str | None:
    """Return what git prints; None if it fails."""
    command = ["git", "--no-optional-locks", "-C", folder, *words]
    try:
        found = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=_GIT_SECONDS
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
