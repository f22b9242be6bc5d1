"""Ray itself: a cluster that is there already, or one of our own on this machine; what it has, its noise, its logs."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

from raytrain import errors, plan
from raytrain.experiment import Experiment
from raytrain.plan import Resources


class Session(contextlib.AbstractContextManager["Session"]):
    """The Ray cluster of a run: one that is there already, or one of our own on this machine."""

    def __init__(self, address: str | None, verbose: bool):
        ray = sys.modules.get("ray")
        self.address = address or os.environ.get("RAY_ADDRESS")
        self.verbose = verbose
        self.found = ray is not None and ray.is_initialized()
        self.own = not self.found and not self.address
        if self.address and not self.found:
            self._connect()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def resources(self) -> Resources:
        """What there is to train on; for a cluster of our own, what this machine will give it."""
        if self.own:
            return plan.local_resources()
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        total = ray.cluster_resources()
        return Resources(
            total.get("CPU", 0),
            total.get("GPU", 0),
            len(nodes),
            int(min(node.get("memory", 0) for node in nodes)),
            ray.get_runtime_context().gcs_address,
        )

    def start(self) -> None:
        """Starts a cluster of our own, if that is what the run uses."""
        if self.own:
            import ray

            _quieten(self.verbose)
            ray.init(
                address="local",
                num_cpus=int(plan.local_resources().cpus),
                include_dashboard=False,
                log_to_driver=self.verbose,
                logging_level=logging.INFO if self.verbose else logging.ERROR,
            )
            self._protect_token()

    def stop(self) -> None:
        """Ends what `start` started, or the connection."""
        ray = sys.modules.get("ray")
        if not self.found and ray is not None:
            ray.shutdown()

    def check_shared(self, path: Path) -> None:
        """Checks that every node of a cluster sees the run's directory.

        Raises:
            UserError: one of them does not.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = [node for node in ray.nodes() if node["Alive"]]
        if len(nodes) < 2:
            return
        sees: Any = ray.remote(num_cpus=0)(os.path.isfile)
        file = str(path.absolute() / "experiment.json")
        seen = ray.get(
            [
                sees.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
                    file
                )
                for node in nodes
            ]
        )
        blind = [node["NodeManagerHostname"] for node, there in zip(nodes, seen, strict=True) if not there]
        if blind:
            raise errors.not_writable(
                path, f"the nodes {', '.join(blind[:4])} do not see it; it must be on storage that all nodes share"
            )

    def keep_logs(self, logs: Path) -> None:
        """Copies the session's logs into the run's directory."""
        import ray

        if not self.own or not ray.is_initialized():
            return
        session = Path(ray._private.worker.global_worker.node.get_logs_dir_path())  # type: ignore[union-attr]
        with contextlib.suppress(OSError, shutil.Error):
            shutil.copytree(session, logs / "ray", dirs_exist_ok=True, symlinks=True)

    def _connect(self) -> None:
        _knock(str(self.address))
        token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
        if token.is_file() or os.environ.get("RAY_AUTH_TOKEN"):
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        import ray

        _quieten(self.verbose)
        try:
            ray.init(
                address=self.address,
                log_to_driver=self.verbose,
                logging_level=logging.INFO if self.verbose else logging.CRITICAL,
            )
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise errors.no_cluster(str(self.address), reason) from None

    def _protect_token(self) -> None:
        """Ray writes the cluster's token readable for all who may read the home directory."""
        token = Path.home() / ".ray" / "auth_token"
        if token.is_file():
            token.chmod(0o600)


def _knock(address: str) -> None:
    """Looks whether anything listens at host:port: Ray itself would try for minutes.

    Raises:
        UserError: nothing does, or the address is of another form.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "//" in address or not host or not port.isdigit():
        raise errors.no_cluster(address, "an address is HOST:PORT (6379 by default) or `auto`")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise errors.no_cluster(address, str(error)) from None


def _quieten(verbose: bool) -> None:
    """Public settings of Ray, before it starts: short polls, no usage report, and its messages in files alone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    if not verbose:
        import ray.data
        import ray.train.torch  # noqa: F401  (both set their loggers up when they are imported)

        for name in ("ray", "ray.data", "ray.train"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def ship_classes(experiment: Experiment) -> None:
    """Lets the classes that an experiment brings travel to the workers by value: they may have no such module."""
    from ray import cloudpickle

    for part in vars(experiment).values():
        name = type(part).__module__
        if name.partition(".")[0] not in ("raytrain", "builtins", "__main__"):
            cloudpickle.register_pickle_by_value(sys.modules[name])
