"""Unsuccessful ends of commands, and the command that continues."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from raytrain import errors
from raytrain.checkpoint import location
from raytrain.run import copies


def advice(path: Path) -> str:
    """Return how a run goes on once the user's code is corrected.

    Args:
        path: its directory on this machine.
    """
    found = copies.read(path)
    file = found.experiment.origin if found and found.experiment else "FILE"
    return way_on(path, "--experiment", near(file))


def way_on(path: Path, *arguments: str) -> str:
    """Return how a run or a sweep goes on, for a message."""
    run = location.url_of(path) or near(str(path))
    return f"go on with {errors.command('resume', run, *arguments)}"


def near(file: str) -> str:
    """Return a path as it is from the working directory, where it is below that: a job's own path is of no use on the
    machine that sent the job."""
    with contextlib.suppress(OSError, ValueError):
        return str(Path(file).relative_to(Path.cwd()))
    return file


class Interrupted(Exception):
    """A run or a sweep was asked to stop and did, with a checkpoint if a step was done.

    Attributes:
        path: its directory.
        signal: the signal that asked, such as 2 for SIGINT.
    """

    def __init__(self, path: Path, signal_number: int):
        super().__init__(f"interrupted by signal {signal_number}; {way_on(path)}")
        self.path, self.signal = path, signal_number


class RunFailed(Exception):
    """A run started and failed.

    Attributes:
        run: its directory.
        rank: the rank whose error came first, or None where no rank could say.
        lost: whether no error of the training itself is known, only that workers were lost.
        edit: the user's file to correct, with the line where that is known; empty where none is known to be at fault.
        how: what to do, where to go on with the run would lead nowhere.
    """

    def __init__(self, message: str, run: Path, rank: int | None, lost: bool = False, edit: str = "", how: str = ""):
        super().__init__(message)
        self.run, self.rank, self.lost, self.edit, self.how = run, rank, lost, edit, how

    @property
    def retry(self) -> bool:
        """Whether the run may go on later, or on other machines, without a change of its values or code."""
        return self.lost or isinstance(self, ClusterLost)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.run, self.rank, self.lost, self.edit, self.how)


class HostLost(RunFailed):
    """A host with workers was lost."""


class ClusterLost(RunFailed):
    """The cluster's head, or this machine's node, was lost, so that nothing can be started there again."""


class NoRoom(RunFailed):
    """Workers found no room in time."""
