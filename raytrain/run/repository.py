"""The commit of the project that is trained, as git knows it."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from typing import NamedTuple

SENT = "RAYTRAIN_GIT"
"""The environment variable that gives a submitted job, whose copy of the project has no `.git`, the commit of the
project that was sent."""
_CHANGED = " with changes"
_SECONDS = 2.0
"""Seconds after which git, in a very large repository or on slow storage, is not waited for."""


class Commit(NamedTuple):
    """What git says of a folder.

    Attributes:
        name: the commit of the repository that holds it; None where there is no repository or no git, or git does not
            answer in time.
        changed: whether tracked files differ from it; None where that is not known.
    """

    name: str | None
    changed: bool | None


def here() -> Commit:
    """Return the commit of this process's folder, or of the project that it is a copy of."""
    sent = os.environ.get(SENT)
    if sent:
        return Commit(sent.removesuffix(_CHANGED), sent.endswith(_CHANGED))
    return commit_of(os.getcwd())


def to_send(folder: str) -> dict[str, str]:
    """Return the variable that tells a job the commit of the folder; none without a commit."""
    found = commit_of(folder)
    return {SENT: found.name + (_CHANGED if found.changed else "")} if found.name else {}


@cache  # the trials of a sweep ask hundreds of times
def commit_of(folder: str) -> Commit:
    """Return the commit of a folder."""
    name = _asked(folder, "rev-parse", "HEAD")
    changes = _asked(folder, "status", "--porcelain", "--untracked-files=no") if name else None
    return Commit(name or None, None if changes is None else bool(changes))


def _asked(folder: str, *words: str) -> str | None:
    """Return what git prints; None if it fails."""
    command = ["git", "--no-optional-locks", "-C", folder, *words]
    try:
        found = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=_SECONDS
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
