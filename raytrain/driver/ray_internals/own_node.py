"""The local Ray node of a command: it has fewer processes, and can be ended at once."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raytrain.driver.ray_internals.versions import known, nothing, private

START_SECONDS = 120
"""How long a node may take to start."""


@contextlib.contextmanager
def small_node() -> Iterator[None]:
    """Make `ray.init` start a node without the processes that serve only Ray's own tools."""
    names = ("start_api_server", "start_monitor", "start_log_monitor")
    module = private("ray._private.node", "Node")
    node = None if module is None else module.Node
    before = {name: getattr(node, name) for name in names} if all(hasattr(node, name) for name in names) else {}
    for name in before:
        setattr(node, name, nothing)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(node, name, method)


@contextlib.contextmanager
def own_signals() -> Iterator[None]:
    """Keep `ray.init` from handling SIGTERM: its handler would leave an incomplete start."""
    utils = private("ray._private.utils", "set_sigterm_handler")
    if utils is None:
        yield
        return
    taken, utils.set_sigterm_handler = utils.set_sigterm_handler, nothing
    try:
        yield
    finally:
        utils.set_sigterm_handler = taken


@contextlib.contextmanager
def own_group() -> Iterator[None]:
    """Let `ray.init` start the node in a process group of its own: `timeout` sends SIGTERM to the whole group of the
    command, and a node that ends takes the workers with it before they have written a checkpoint. The node ends with
    the command all the same, as the kernel tells it."""
    services = private("ray._private.services", "ConsolePopen")
    if services is None:
        yield
        return
    taken = services.ConsolePopen
    services.ConsolePopen = functools.partial(taken, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = taken


@contextlib.contextmanager
def patient_start() -> Iterator[None]:
    """Let `ray.init` wait `START_SECONDS` for the node that it has started, if that lives. Ray's own limit is 30 s,
    which a busy machine exceeds.

    Raises:
        ConnectionError: the node has ended.
    """
    services = private("ray._private.services", "get_node")
    if services is None:
        yield
        return
    ask, until = services.get_node, time.monotonic() + START_SECONDS

    def asking(*arguments: Any) -> Any:
        while True:
            try:
                return ask(*arguments)
            except RuntimeError:  # it is not there yet
                if time.monotonic() > until:
                    raise
            if not _has_raylet():
                raise ConnectionError("Ray's node ended while it started")
            time.sleep(0.1)

    services.get_node = asking
    try:
        yield
    finally:
        services.get_node = ask


def _has_raylet() -> bool:
    """Return whether a node lives among the descendants of this process; True where that cannot be known."""
    if not os.path.exists("/proc/self/stat"):
        return True
    for pid in _descendants([os.getpid()]):
        with contextlib.suppress(OSError):
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
            if name.endswith("(raylet") and rest.split()[0] != "Z":
                return True
    return False


def abandon_node() -> None:
    """Kill the processes of the local node, if one of them has died or the node must end at once: `ray.shutdown` would
    wait for the dead process, and end this process.

    The raylet's children, workers and agents, would otherwise end only after half a minute.
    """
    with contextlib.suppress(AttributeError, KeyError):
        node: Any = sys.modules["ray._private.worker"].global_worker.node
        own = [started.process.pid for each in node.all_processes.values() for started in each]
        children = _descendants(own)
        node.kill_all_processes(check_alive=False, allow_graceful=False)
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _ABANDONED.append(True)


def _descendants(pids: list[int]) -> list[int]:
    """Return the processes that descend from some, by /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = list(pids)
    for pid in found:  # the list grows in the loop
        found += [child for child, parent in parents.items() if parent == pid]
    return found[len(pids) :]


def abandoned() -> bool:
    """Return whether `abandon_node` has ended the local node."""
    return bool(_ABANDONED)


_ABANDONED: list[bool] = []


def session_logs() -> Path | None:
    """Return the folder of the local node's logs, if there is a local node."""
    with contextlib.suppress(AttributeError, KeyError):
        return Path(sys.modules["ray._private.worker"].global_worker.node.get_logs_dir_path())
    return None


def connect_only_by_init() -> None:
    """Keep Ray from connecting by itself where it is imported already: the variable comes too late for it."""
    hook = sys.modules.get("ray._private.auto_init_hook")
    if hook is not None and known():
        vars(hook)["enable_auto_connect"] = False


def read_variables_again() -> None:
    """Let a Ray that is imported already, as by an experiment file, read its variables again, as Ray itself does where
    it finds a token."""
    raylet = sys.modules.get("ray._raylet")
    if raylet is not None and known():
        raylet.Config.initialize("")


def without_messages() -> None:
    """Keep Ray from printing messages on dead workers in this process: the command itself reports them in one line."""
    worker = private("ray._private.worker", "print_to_stdstream")
    if worker is not None:
        worker.print_to_stdstream = nothing
