"""The Ray session of a command: a running cluster, or a local cluster on this machine; its resources, messages and
logs."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shutil
import socket
import sys
import threading
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from raytrain import errors
from raytrain.driver import limits, logs, resources
from raytrain.driver.credentials import private_folder, token
from raytrain.driver.interrupts import end_with, ends_at_once, waiting
from raytrain.driver.network import answers
from raytrain.driver.ray_internals import cluster_state, own_node
from raytrain.driver.resources import Resources
from raytrain.driver.session_folder import SessionFolder, remove_dead

_READABLE = ("raylet.*", "gcs_server.*", "worker-*")
"""Ray's logs that show why a run failed: those of the node and the head, and the output of workers before their own
logs begin."""
_LOG_BYTES, _LOGS_BYTES, _LOG_FILES = 1 << 20, 16 << 20, 20
"""The bytes kept of a log and of all logs, and the number of logs of a kind: the newest."""


class Session(contextlib.AbstractContextManager["Session"]):
    """The Ray cluster of a run: a running cluster, or a local cluster on this machine."""

    def __init__(self, address: str | None, verbose: bool):
        ray = sys.modules.get("ray")
        self.address = address or os.environ.get("RAY_ADDRESS")
        self.verbose = verbose
        self.found = ray is not None and ray.is_initialized()
        self.own = not self.found and not self.address
        # Ray Train's imports take as long as Ray does; ray.init itself must stay in the main thread.
        self._imports = threading.Thread(target=_quieten, args=(verbose,), daemon=True, name="imports")
        self.places: list[tuple[str, int]] = []
        self._parent = Path()
        self._folders: list[SessionFolder] = []
        if self.own:
            limits.check()
            self._parent = private_folder()
        if not self.found:
            _settle()
        if self.address and not self.found:
            self._connect()

    @property
    def _cluster(self):
        """The functions that need Ray, imported late: Ray reads `_settle`'s and the token's variables then."""
        from raytrain.driver import ray_cluster

        return ray_cluster

    def __exit__(self, *_: object) -> None:
        self.stop()

    def resources(self) -> Resources:
        """Return the resources of the cluster, or those that it may grow to; for a local cluster, those of this
        machine."""
        if self.own:
            return resources.local_resources()
        return self._cluster.resources()

    def start(self, seen: Path | None = None) -> None:
        """Start the local cluster, if the run uses one.

        Args:
            seen: a file in the directory of a run or a sweep, which every node of a cluster must see.

        Raises:
            UserError: one of them does not, or Ray has no place for its files.
        """
        if self.own:
            cluster = self._cluster  # Ray, before its other modules in the thread
            self._imports.start()
            limits.give_token()
            folders = self._make_folders()
            small = (
                contextlib.nullcontext() if self.verbose else own_node.small_node()
            )  # which shows no worker's output
            with small, own_node.own_signals(), own_node.own_group(), own_node.patient_start():
                cluster.start_here(folders, self.verbose)
            self._protect_token()
            for folder in self._folders:  # beside the start: spilled objects may be many gigabytes
                threading.Thread(target=remove_dead, args=(folder.path.parent,), daemon=True, name="dead").start()
        else:
            if seen is not None:
                self._cluster.check_shared(seen)  # before the imports, beside which it takes 2 s longer
            if not self.found:
                self._imports.start()
        if not self.found:
            self._imports.join()
            if not self.verbose:
                own_node.without_messages()

    def stop(self) -> None:
        """End what `start` started and remove its files, or end the connection."""
        ray = sys.modules.get("ray")
        try:
            if not self.found and ray is not None:
                if self.own and (ends_at_once() or (self.places and not self.answers())):
                    own_node.abandon_node()
                elif not ends_at_once():
                    with waiting():
                        ray.shutdown()
        finally:
            for folder in self._folders:
                folder.remove()

    def answers(self) -> bool:
        """Return whether the cluster's head and this machine's node still answer."""
        if not self.places:
            self.places = self._cluster.places()
        return all(answers(*place) for place in self.places)

    def let_nodes_tell(self) -> None:
        """Run a no-op task per node to refresh the head's resource view: after a failed reservation on a returning
        node, the head counts it as taken until the node reports again (Ray 2.60)."""
        self._cluster.let_nodes_tell()

    def keep_logs(self, folder: Path, failed: bool) -> None:
        """Tidy the logs of a run or a sweep: remove empty ones, and cut long ones to their beginning and end.

        Args:
            folder: where the logs are.
            failed: whether to keep also what Ray's processes said, of a cluster of our own.
        """
        ray = sys.modules.get("ray")
        with contextlib.suppress(OSError):
            of_ranks = [*folder.glob("rank_*.log")]
            for file in (*folder.glob("place_*.json"), *of_ranks):
                if file.suffix == ".json" or not file.stat().st_size:
                    file.unlink()
                else:
                    logs.shorten(file, logs.rank_limit(len(of_ranks)))
            for nothing in folder.glob("train-*"):  # made by Ray Train, which keeps nothing in it
                shutil.rmtree(nothing)
            running = self.own and ray is not None and ray.is_initialized()
            session = own_node.session_logs() if failed and running else None
            if session is not None:
                _copy_logs(session, folder / "ray")

    def _make_folders(self) -> dict[str, Any]:
        """Create the folders of the session, and return them as arguments of `ray.init`.

        Raises:
            UserError: one cannot be made.
        """
        # Ray spills into its session, unless this variable names another place: there it would leave objects behind.
        spilled = os.environ.get("RAY_object_spilling_directory")
        wanted = {"_temp_dir": self._parent} | ({"object_spilling_directory": Path(spilled)} if spilled else {})
        made: dict[str, Any] = {}
        for argument, parent in wanted.items():
            try:
                self._folders.append(SessionFolder(parent.absolute()))
            except OSError as error:
                what = f"Ray's files cannot be written: {error.strerror}"
                raise errors.UserError(what, str(parent), "name a folder that can be written in RAY_TMPDIR") from None
            made[argument] = str(self._folders[-1].path)
        return made

    def _connect(self) -> None:
        secret, where = token()
        if secret:
            os.environ.setdefault("RAY_AUTH_MODE", "token")  # which Ray reads when it is imported
            own_node.read_variables_again()
        found = _knock(str(self.address))
        if found:
            try:
                if secret and _is_open(found):
                    raise errors.token_not_asked(str(self.address), where)
                there = cluster_state.ask_version(found, secret)
            except PermissionError:
                refused = errors.token_refused if secret else errors.token_missing
                raise refused(str(self.address), where) from None
            except ConnectionError as error:
                raise errors.no_cluster(str(self.address), str(error)) from None
            here = metadata.version("ray")
            if there not in (None, here):
                raise errors.other_ray(str(self.address), str(there), here)
        self._cluster.connect(str(self.address), self.verbose)

    def _protect_token(self) -> None:
        """Restrict the mode of the cluster's token: Ray leaves it readable by all who may read the home directory."""
        token = Path.home() / ".ray" / "auth_token"
        if token.is_file():
            token.chmod(0o600)


def _is_open(address: str) -> bool:
    """Return whether a cluster lets in who has no token. Workers that are started there with one are lost at once."""
    try:
        return cluster_state.ask_version(address, "") is not None
    except PermissionError:
        return False


def _copy_logs(session: Path, folder: Path) -> None:
    """Copy the logs of Ray's processes that tell why a run failed, where they hold more than Ray's marks of jobs."""
    for name in _READABLE:
        for file in sorted(session.glob(name), key=os.path.getmtime)[-_LOG_FILES:]:
            text = logs.excerpt(file, _LOG_BYTES)
            if any(line and not line.startswith(b":") for line in text.split(b"\n")):
                folder.mkdir(exist_ok=True)
                (folder / file.name).write_bytes(text)
    left = _LOGS_BYTES
    for file in sorted(folder.glob("*"), key=os.path.getmtime, reverse=True):  # those of earlier attempts go first
        left -= file.stat().st_size
        if left < 0:
            file.unlink()


def leave(status: int) -> NoReturn:
    """End this process at once, after flushing its output: an orderly end of torch and Ray takes seconds."""
    end_with(status)
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized() and not (own_node.abandoned() or ends_at_once()):
        ray.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _knock(address: str) -> str | None:
    """Check that a server listens at an address, and return the address as host:port, also for `auto`: Ray itself would
    retry for minutes. Return None if `auto` finds no cluster, which Ray reports at once.

    Raises:
        UserError: nothing does, or the address is of another form.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
        found = cluster_state.found_cluster() if address == "auto" else address
        if found is None:
            return None
        address = found
    host, _, port = address.rpartition(":")
    if "//" in address or not host or not port.isdigit():
        raise errors.no_cluster(address, "an address is HOST:PORT (6379 by default) or `auto`")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise errors.no_cluster(address, str(error)) from None
    return address


def _settle() -> None:
    """Public settings, some of which Ray reads when it is imported: short polls, no usage report, no progress bars."""
    # After its end a side thread must neither start Ray again nor join another one.
    if os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0") == "0":
        own_node.connect_only_by_init()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")


def _quieten(verbose: bool) -> None:
    """Import Ray's modules, and keep Ray's messages out of the terminal."""
    for module in ("ray.data", "ray.train.torch"):  # both set up their loggers when they are imported
        importlib.import_module(module)
    if not verbose:
        for name in ("ray", "ray.data", "ray.train"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
