"""Ray, started sooner: a node with less around it, and Ray Train's controller in this process.

Stock, a node of one's own starts an API server, an autoscaler and a reader of logs, and a training starts five actors
besides its workers (controller, autoscaling coordinator, placement-group cleaner, dataset manager, and one behind
`ray.train.report`). Each is a process that imports much of Ray. The workers get a runtime environment of their own,
which rules out the idle processes that a node keeps. None of that serves raytrain: the metrics file is its channel, its
number of workers is fixed, and a placement group ends with the job of the process that made it.

And in each worker, DistributedDataParallel and the optimizers import the whole of torch.compile, half of a worker's
imports, to ask it two questions whose answers are known where nothing is compiled.

The one file with private names of Ray and torch: those of `VERSION` and `TORCH_VERSION`. On another version, or
where one is missing, everything is stock.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import importlib.util
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from raytrain.driver import network

if TYPE_CHECKING:
    from ray.train.torch import TorchConfig, TorchTrainer

VERSION = "2.60"
"""The version of Ray whose private names are used here."""
TORCH_VERSION = "2.15"
"""The version of torch whose private names are used here."""
_POLL_SECONDS = "0.1"
_ADDRESS_SECONDS = 14.0
"""How long the nodes may take to tell their addresses, and again to try the others': half a minute in all."""


@contextlib.contextmanager
def small_node() -> Iterator[None]:
    """Lets `ray.init` start a node without the processes that serve only Ray's own tools."""
    names = ("start_api_server", "start_monitor", "start_log_monitor")
    node: Any = None
    before: dict[str, Any] = {}
    if _known():
        with contextlib.suppress(ImportError, AttributeError):
            from ray._private.node import Node as node

            before = {name: getattr(node, name) for name in names}
    for name in before:
        setattr(node, name, _nothing)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(node, name, method)


@contextlib.contextmanager
def own_signals() -> Iterator[None]:
    """Keep `ray.init` from taking SIGTERM, for which its handler leaves a start half done."""
    utils: Any = None
    if _known():
        with contextlib.suppress(ImportError):
            from ray._private import utils
    taken = getattr(utils, "set_sigterm_handler", None)
    if taken is not None:
        utils.set_sigterm_handler = _nothing
    try:
        yield
    finally:
        if taken is not None:
            utils.set_sigterm_handler = taken


def abandon_node() -> None:
    """End what is left of the node of one's own, a part of which has died or which must end at once: `ray.shutdown`
    would wait for that part, and end this process with it.

    The raylet's children, workers and agents, would find out that it is gone within half a minute.
    """
    import ray

    with contextlib.suppress(AttributeError):
        node: Any = ray._private.worker.global_worker.node  # type: ignore[attr-defined]
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
    for pid in found:  # it grows on the way
        found += [child for child, parent in parents.items() if parent == pid]
    return found[len(pids) :]


def abandoned() -> bool:
    """Whether the node of one's own was ended so."""
    return bool(_ABANDONED)


_ABANDONED: list[bool] = []


def session_logs() -> Path | None:
    """Where the node of one's own keeps its logs, if there is one."""
    import ray

    with contextlib.suppress(AttributeError):
        return Path(ray._private.worker.global_worker.node.get_logs_dir_path())  # type: ignore[union-attr]
    return None


def trainer(shares: bool = False) -> type[TorchTrainer]:
    """Return the trainer to use: the fast one, or the stock one where Ray is not as it was.

    Args:
        shares: whether the fast one's workers take the bundles of the placement group that this process is in.
    """
    from ray.train.torch import TorchTrainer

    if _known():
        with contextlib.suppress(ImportError, AttributeError):
            return _fast(shares)
    return TorchTrainer


def shares_groups() -> bool:
    """Return whether a trainer's workers can take the bundles of the placement group that the trainer is in."""
    return issubclass(trainer(shares=True), _Cancelled)


class Unreachable(Exception):
    """Ranks on several nodes would not reach each other."""


def torch_config(backend: str) -> TorchConfig:
    """Return Ray Train's configuration of the process group, which on several nodes first checks that the ranks' nodes
    reach each other at the addresses that gloo and NCCL would use; the stock one where Ray is not as it was."""
    from ray.train.torch import TorchConfig

    if not _known():
        return TorchConfig(backend=backend)

    class Backend(TorchConfig().backend_cls):  # type: ignore[misc]  (a property of an instance)
        def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
            check_addresses(worker_group, backend)
            super().on_start(worker_group, backend_config)

    class Checked(TorchConfig):
        @property
        def backend_cls(self) -> Any:
            return Backend

    return Checked(backend=backend)


def check_addresses(worker_group: Any, backend: str) -> None:
    """Have one worker of each host look for the others, where there are several.

    Nodes with one address are of one host, whose workers reach each other on its loopback.

    Raises:
        Unreachable: a node is not reached; the text names it, its interface and address, and the variable to set.
    """
    import ray
    from ray.exceptions import GetTimeoutError

    first: dict[str, int] = {}
    for rank, worker in enumerate(worker_group.get_workers()):
        first.setdefault(worker.metadata.node_ip, rank)
    if len(first) < 2:
        return
    ask = worker_group.execute_single_async
    try:
        of_nodes = ray.get(
            [ask(rank, network.offer, backend, address) for address, rank in first.items()],
            timeout=_ADDRESS_SECONDS,
        )
        every = [place for places in of_nodes for place in places]
        wrong = network.fault(
            of_nodes,
            lambda: ray.get(
                [
                    ask(rank, network.unreached, [place for place in every if place not in own])
                    for rank, own in zip(first.values(), of_nodes, strict=True)
                ],
                timeout=_ADDRESS_SECONDS,
            ),
        )
    except GetTimeoutError:  # the nodes are slow, which is no proof: the process group will tell
        return
    if wrong:
        raise Unreachable(wrong)


def cancel(running: TorchTrainer) -> None:
    """Ends a trainer whose `fit` runs in another thread, with all that it started; the stock one cannot be ended."""
    if isinstance(running, _Cancelled):
        running.cancel()


def draining() -> set[str]:
    """The ids of nodes that are about to go: a spot instance that is called back, or `ray drain-node`."""
    if _known():
        with contextlib.suppress(ImportError, AttributeError):
            from ray._private.state import state

            return set(state.get_draining_nodes() or {})
    return set()


def free_cpus() -> dict[str, float]:
    """The CPUs of each node, by its id, that nothing has reserved; empty where Ray is not as it was."""
    if _known():
        with contextlib.suppress(ImportError, AttributeError):
            from ray._private.state import available_resources_per_node

            return {node: found.get("CPU", 0.0) for node, found in available_resources_per_node().items()}
    return {}


def without_messages() -> None:
    """Keeps Ray from printing, in this process, what the cluster says of a worker that died: who runs the worker says
    it, in a line."""
    if _known():
        with contextlib.suppress(ImportError, AttributeError):
            from ray._private import worker

            worker.print_to_stdstream  # noqa: B018  (what is replaced must be there)
            worker.print_to_stdstream = _nothing


def found_cluster() -> str | None:
    """The cluster that `auto` means: the one that is seen to run on this machine, or else the last one started, which
    may be gone."""
    try:
        from ray._private.services import find_gcs_addresses
        from ray._private.utils import read_ray_address
    except ImportError:
        return None
    running = find_gcs_addresses()
    return next(iter(running)) if len(running) == 1 else read_ray_address() or None


def ask_version(address: str, token: str) -> str | None:
    """The version of Ray of the cluster at HOST:PORT, within seconds, where `ray.init` would try for long and print
    each try; None where that cannot be asked so.

    Raises:
        PermissionError: the cluster lets nobody in with this token.
        ConnectionError: what is there is no cluster.
    """
    try:
        import grpc
        from ray.core.generated import gcs_service_pb2
    except ImportError:
        return None
    if not _known() or os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return None
    messages: Any = gcs_service_pb2  # whose names are made as it is imported
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        alive = channel.unary_unary(
            "/ray.rpc.NodeInfoGcsService/CheckAlive",
            request_serializer=messages.CheckAliveRequest.SerializeToString,
            response_deserializer=messages.CheckAliveReply.FromString,
        )
        try:
            metadata = (("authorization", f"Bearer {token}"),) if token else ()
            return alive(messages.CheckAliveRequest(), timeout=8, metadata=metadata).ray_version
        except grpc.RpcError as error:
            code = error.code()  # type: ignore[attr-defined]
            if code == grpc.StatusCode.UNAUTHENTICATED:
                raise PermissionError from None
            slow = code == grpc.StatusCode.DEADLINE_EXCEEDED
            raise ConnectionError("nothing within 8 s" if slow else "what is there is none") from None


def nodes_to_come() -> list[dict[str, float]]:
    """Return the resources of each worker node that the autoscaler may start, those that run already among them; none
    where this machine is not the head of a cluster that `ray up` launched."""
    try:
        values = _description()
        most, head = int(values.get("max_workers", 2)), values["head_node_type"]
        kinds = [kind for name, kind in values["available_node_types"].items() if name != head]
        return [
            {name: float(count) for name, count in (kind.get("resources") or {}).items()}
            for kind in kinds
            for _ in range(int(kind.get("max_workers", most)))
        ][:most]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def least_nodes() -> int:
    """Return how many nodes a cluster that `ray up` launched should have: the head, and the min_workers of its file; 0
    where this machine is not its head."""
    try:
        kinds = _description()["available_node_types"].values()
        return 1 + sum(int(kind.get("min_workers") or 0) for kind in kinds)
    except (KeyError, TypeError, ValueError, AttributeError):
        return 0


def _description() -> dict[str, Any]:
    """The description of the cluster whose head this machine is, where Ray's autoscaler reads it; empty elsewhere."""
    import ray
    import yaml

    own = ray.get_runtime_context().get_node_id()
    if any(node["NodeID"] == own and "node:__internal_head__" in node["Resources"] for node in ray.nodes()):
        with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
            return yaml.safe_load((Path.home() / "ray_bootstrap_config.yaml").read_text())
    return {}


def cluster_schema() -> dict[str, Any]:
    """Ray's own JSON schema of a file for `ray up`; empty where Ray is not as it was. Ray itself is not imported."""
    ray = importlib.util.find_spec("ray")
    if metadata.version("ray").rpartition(".")[0] == VERSION and ray is not None and ray.origin is not None:
        with contextlib.suppress(OSError, ValueError):
            return json.loads((Path(ray.origin).parent / "autoscaler" / "ray-schema.json").read_text())
    return {}


def refused_cluster(values: dict[str, Any]) -> tuple[tuple[object, ...], str] | None:
    """Why `ray up` would refuse a cluster file's values, after it has filled in its defaults, and where in them; None
    where it would take them, or where Ray is not as it was. Nothing is started, and no cloud asked."""
    if not _known():
        return None
    try:
        from jsonschema import ValidationError
        from ray.autoscaler._private.util import prepare_config, validate_config
    except ImportError:
        return None
    loggers = logging.getLogger("ray")
    level = loggers.level
    loggers.setLevel(logging.CRITICAL)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            validate_config(prepare_config(copy.deepcopy(values)))
    except ValidationError as error:
        return tuple(error.path), error.message
    except Exception as error:  # Ray indexes and asserts as it goes: any kind is a refusal
        return (), str(error) or " ".join(said.getvalue().split()) or type(error).__name__
    finally:
        loggers.setLevel(level)
    return None


def packed(folder: Path, excludes: Sequence[str], found: Callable[[Path], None]) -> None:
    """Calls `found` with each file and folder that Ray would send as a job's working directory, by its own rules
    (.gitignore, .rayignore, symbolic links followed); by those of `excludes` alone where Ray is not as it was."""
    if _known():
        with contextlib.suppress(ImportError, AttributeError):
            from ray._private.runtime_env import packaging

            silent = logging.getLogger("raytrain.silent")
            silent.setLevel(logging.CRITICAL)
            ignored = os.environ.get("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "0") != "1"
            rules = [packaging._get_excludes(folder, [*excludes])]
            return packaging._dir_travel(folder, rules, found, include_gitignore=ignored, logger=silent)
    for directory, names, files in os.walk(folder):
        names[:] = [name for name in names if name not in excludes]
        for name in files:
            found(Path(directory, name))


def defer_compiler() -> None:
    """Lets this process do without torch.compile's imports until something compiles."""
    import torch

    if torch.__version__.rpartition(".")[0] == TORCH_VERSION and "torch._dynamo" not in sys.modules:
        sys.modules["torch._dynamo"] = torch._dynamo = _Dynamo()


class _Dynamo(ModuleType):
    """What eager code asks of torch._dynamo; for all else the real one takes its place."""

    def __init__(self) -> None:
        super().__init__("torch._dynamo")
        self.utils = _Utils()

    @staticmethod
    def graph_break(*_: object, **__: object) -> None:
        """Nothing is traced."""

    @staticmethod
    def disable(function: Any, *_: object, **__: object) -> Any:
        """Nothing is traced."""
        return function

    def __getattr__(self, name: str) -> Any:
        return getattr(_compiler(), name)


class _Utils:
    """The same of torch._dynamo.utils, where it is reached as an attribute."""

    @staticmethod
    def get_optimize_ddp_mode() -> str:
        """torch._dynamo's default."""
        return "ddp_optimizer"

    def __getattr__(self, name: str) -> Any:
        return getattr(_compiler().utils, name)


def _compiler() -> Any:
    """The real torch._dynamo, from here on in its place."""
    if isinstance(sys.modules.get("torch._dynamo"), _Dynamo):
        del sys.modules["torch._dynamo"]
    return importlib.import_module("torch._dynamo")


def _known() -> bool:
    import ray

    return ray.__version__.rpartition(".")[0] == VERSION


def _nothing(*_: object, **__: object) -> None:
    pass


class _Cancelled:
    """What another thread can cancel."""

    _cancelled = False

    async def _cancellable(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.wait([task], timeout=0.1)
            if self._cancelled:
                task.cancel()
        await task

    def cancel(self) -> None:
        """Cancels it, from any thread."""
        self._cancelled = True


@contextlib.contextmanager
def _settings(**values: str) -> Iterator[None]:
    """Environment variables that Ray reads once."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@lru_cache(maxsize=2)
def _fast(shares: bool) -> type[TorchTrainer]:
    """Return the fast trainer.

    Args:
        shares: as for `trainer`.

    Raises:
        ImportError, AttributeError: Ray has not what it needs.
    """
    import ray
    from ray.exceptions import RayActorError
    from ray.train.torch import TorchTrainer
    from ray.train.v2._internal.callbacks import (
        AcceleratorSetupCallback,
        BackendSetupCallback,
        WorkingDirectorySetupCallback,
    )
    from ray.train.v2._internal.exceptions import WorkerGroupStartupFailedError, WorkerGroupStartupTimeoutError
    from ray.train.v2._internal.execution.controller import TrainController
    from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
    from ray.train.v2._internal.execution.worker_group import WorkerGroup
    from ray.train.v2._internal.execution.worker_group.placement_group_handle import DefaultPlacementGroupHandle
    from ray.train.v2._internal.execution.worker_group.state import WorkerGroupState, _shutdown_workers
    from ray.train.v2._internal.util import time_monotonic
    from ray.util.placement_group import get_current_placement_group

    nobody: Any = None  # in the place of the actor behind `ray.train.report`

    class Shared(DefaultPlacementGroupHandle):
        def shutdown(self) -> None:
            """Leave the group to who made it."""

    class State(WorkerGroupState):
        def shutdown(self) -> None:
            try:
                _shutdown_workers(self.workers)
            finally:
                self.placement_group_handle.shutdown()

    class Group(WorkerGroup):
        def _start_impl(self, worker_group_state_builder: Any) -> None:
            context = self._worker_group_context
            placement = self._create_placement_group(self._train_run_context.scaling_config, context)
            worker_group_state_builder.with_placement_group_handle(placement)  # which from here on is removed on errors
            if not placement.wait(self._worker_group_start_timeout_s):
                raise WorkerGroupStartupTimeoutError(num_workers=context.num_workers)
            try:
                need, group = context.resources_per_worker, placement.placement_group
                workers = self._create_workers(context.num_workers, group, need)
                worker_group_state_builder.with_workers(workers)
                self._worker_rank_to_replica_group_rank = {rank: rank for rank in range(len(workers))}
                self._worker_group_state = State(time_monotonic(), placement, workers, nobody)
                self._init_train_context(workers, nobody)
                for callback in self._callbacks:
                    callback.after_worker_group_start(self)
                ray.get([worker.actor.run_train_fn.remote(context.train_fn_ref) for worker in workers])
            except Exception as error:
                self._clear_state()  # it has not started: the builder shuts down what is there
                if isinstance(error, RayActorError):
                    raise WorkerGroupStartupFailedError("a worker ended while it started") from error
                raise

        def _create_placement_group(self, scaling_config: Any, worker_group_context: Any) -> Any:
            group = get_current_placement_group() if shares else None
            return Shared(group) if group else super()._create_placement_group(scaling_config, worker_group_context)

        def _init_train_context_on_workers(self, workers: Any, sync_actor: Any, train_context_args: Any) -> None:
            ray.get(
                [
                    worker.actor.init_train_context.remote(
                        train_run_context=self._train_run_context,
                        distributed_context=worker.distributed_context,
                        synchronization_actor=None,
                        storage_context=self._storage_context,
                        worker_callbacks=self._worker_callbacks_to_propagate,
                        controller_actor=None,
                    )
                    for worker in workers
                ]
            )
            self._decorate_worker_log_file_paths(workers)

        @staticmethod
        def _get_worker_runtime_env(custom_runtime_env: Any) -> Any:
            return custom_runtime_env or None

    class Policy(FixedScalingPolicy):
        def after_controller_start(self, train_run_context: Any) -> None:
            pass

        def _maybe_send_resource_request(self) -> None:
            pass

    class Controller(TrainController):
        worker_group_cls = Group

    class Trainer(_Cancelled, TorchTrainer):
        def _create_default_callbacks(self) -> list[Any]:
            return [
                AcceleratorSetupCallback(self.backend_config, self.scaling_config),
                BackendSetupCallback(self.backend_config),
                WorkingDirectorySetupCallback(),
            ]

        def _initialize_and_run_controller(self, **arguments: Any) -> Any:
            with _settings(
                RAY_TRAIN_ENABLE_CONTROLLER_STRUCTURED_LOGGING="0",  # it would redirect this process's loggers
                RAY_TRAIN_ENABLE_PREEMPTION_WATCHER="0",
                RAY_TRAIN_HEALTH_CHECK_INTERVAL_S=_POLL_SECONDS,
            ):
                controller = Controller(**{**arguments, "scaling_policy": Policy(self.scaling_config)})
            try:
                asyncio.run(self._cancellable(controller.run()))
            finally:
                group = controller.get_worker_group()
                if group is not None and group.has_started():
                    group.abort()
            return controller.get_result()

    for kind, names in {
        WorkerGroup: (
            *("_start_impl", "_create_placement_group", "_create_workers", "_init_train_context"),
            *("_get_worker_runtime_env", "abort"),
        ),
        TrainController: ("worker_group_cls", "run", "get_result", "get_worker_group"),
        FixedScalingPolicy: ("after_controller_start", "_maybe_send_resource_request"),
        TorchTrainer: ("_create_default_callbacks", "_initialize_and_run_controller"),
    }.items():
        for name in names:
            getattr(kind, name)  # what is overridden must be there, or the override would do nothing
    return Trainer
