"""What a sweep at a URL has on the driver's node for its trials on other nodes: the actor that they write to."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raytrain import errors
from raytrain.checkpoint.location import replace_file
from raytrain.checkpoint.storage import Storage
from raytrain.driver.ray_cluster import ask
from raytrain.files import known_json, write_atomically
from raytrain.sweep import record
from raytrain.sweep.at_url import HOLDER, files
from raytrain.sweep.on_nodes import got, push

_COLLECT_SECONDS = 60.0
"""How long a node may take to send what a process has left there."""
_NOTES_SECONDS = 1.0
"""How long the desk may take for its notes: it may be starting."""


class Desk:
    """The actor on the driver's node through which trials read and write the driver's mirror.

    Args:
        path: the mirror.
    """

    def __init__(self, path: str):
        self.path, self._said = Path(path), list[str]()

    def files(self, number: int) -> dict[str, bytes]:
        """Return the files of a trial, except for those of loggers."""
        run = record.folder(self.path, number)
        names = [name for name in files(run) if not name.startswith("logs/") or name.endswith(".log")]
        return {name: (run / name).read_bytes() for name in names}

    def take(self, number: int, holder: dict[str, str]) -> None:
        """Give a trial to a holder: only this one may change it from now on."""
        write_atomically(record.folder(self.path, number) / HOLDER, json.dumps(holder))

    def holds(self, number: int, holder: str) -> bool:
        """Return whether a holder has a trial."""
        return known_json(record.folder(self.path, number) / HOLDER).get("id") == holder

    def put(
        self, number: int, holder: str, new: list[tuple[str, int, bytes]], gone: list[str], found: dict[str, Any]
    ) -> bool:
        """Write what is new in files of a trial, then its record, unless that has ended.

        Args:
            new: names, the bytes before what is new, and that.
            gone: files that the trial has removed.

        Returns:
            Whether the trial is to stop.

        Raises:
            LookupError: another holder has it.
        """
        if not self.holds(number, holder):
            raise LookupError
        run = record.folder(self.path, number)
        for name in gone:
            (run / name).unlink(missing_ok=True)
        for name, start, content in new:
            if start:
                with open(run / name, "r+b") as file:
                    file.seek(start)
                    file.truncate()
                    file.write(content)
            else:
                replace_file(run / name, content)
        record.update(run, **found)
        return (run / "stop").exists()

    def leave(self, number: int, holder: str) -> None:
        """Let a trial go: all of it is written."""
        if self.holds(number, holder):
            (record.folder(self.path, number) / HOLDER).unlink()

    def say(self, line: str) -> None:
        """Keep a note for the user."""
        self._said.append(line)

    def said(self) -> list[str]:
        """Return all notes."""
        return self._said


def open_desk(path: Path) -> Any:
    """Start the desk of a sweep on this node, and return its handle."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    desk: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Desk)
    return desk.options(scheduling_strategy=here).remote(str(path.absolute()))


def collect(path: Path, url: str, number: int) -> None:
    """Take over what a killed process of a trial has left on its node: its logs, and what is not uploaded."""
    run = record.folder(path, number)
    holder = known_json(run / HOLDER)
    if not holder:
        return
    with contextlib.suppress(RayError, OSError):
        for node in ray.nodes():
            if node["Alive"] and node["NodeID"] == holder["node"]:
                for name, content in got(ask(node, _left, url, holder["folder"], number), _COLLECT_SECONDS).items():
                    replace_file(run / name, content)
    (run / HOLDER).unlink(missing_ok=True)


def said(desk: Any) -> list[str]:
    """Return the notes that a desk has kept; none while it does not answer."""
    with contextlib.suppress(RayError):
        return ray.get(desk.said.remote(), timeout=_NOTES_SECONDS)
    return []


def _left(url: str, folder: str, number: int) -> dict[str, bytes]:
    """Upload the checkpoints of a trial that has no process any more, and return its other files but for the record."""
    run = record.folder(Path(folder), number)
    if not (run / record.FILE).is_file():
        return {}
    with contextlib.suppress(OSError, errors.UserError):
        push(Storage(url).below(record.folder(Path(), number).as_posix()), run)
    return {name: (run / name).read_bytes() for name in files(run) if name != record.FILE}
