"""Ray Train's controller in this process, with no actors besides the workers.

Importing this module raises ImportError or AttributeError where Ray lacks a name that it uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from typing import Any, ClassVar

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

from raytrain.driver.ray_internals.cancelling import Cancellable

_POLL_SECONDS = "0.1"


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


_NOBODY: Any = None  # in place of the actor behind `ray.train.report`


class _Shared(DefaultPlacementGroupHandle):
    def shutdown(self) -> None:
        """Leave the group to who made it."""


class _State(WorkerGroupState):
    def shutdown(self) -> None:
        try:
            _shutdown_workers(self.workers)
        finally:
            self.placement_group_handle.shutdown()


class _Group(WorkerGroup):
    shares: ClassVar[bool] = False
    """Whether workers take the bundles of the placement group that this process is in."""

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
            self._worker_group_state = _State(time_monotonic(), placement, workers, _NOBODY)
            self._init_train_context(workers, _NOBODY)
            for callback in self._callbacks:
                callback.after_worker_group_start(self)
            ray.get([worker.actor.run_train_fn.remote(context.train_fn_ref) for worker in workers])
        except Exception as error:
            self._clear_state()  # it has not started: the builder shuts down what is there
            if isinstance(error, RayActorError):
                raise WorkerGroupStartupFailedError("a worker ended while it started") from error
            raise

    def _create_placement_group(self, scaling_config: Any, worker_group_context: Any) -> Any:
        group = get_current_placement_group() if self.shares else None
        return _Shared(group) if group else super()._create_placement_group(scaling_config, worker_group_context)

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


class _SharingGroup(_Group):
    shares = True


class _Policy(FixedScalingPolicy):
    def after_controller_start(self, train_run_context: Any) -> None:
        pass

    def _maybe_send_resource_request(self) -> None:
        pass


class _Controller(TrainController):
    worker_group_cls = _Group


class _SharingController(TrainController):
    worker_group_cls = _SharingGroup


class FastTrainer(Cancellable, TorchTrainer):
    """Run the controller in this process and start the workers alone."""

    controller_cls: ClassVar[type[TrainController]] = _Controller

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
            controller = self.controller_cls(**{**arguments, "scaling_policy": _Policy(self.scaling_config)})
        try:
            asyncio.run(self._cancellable(controller.run()))
        finally:
            group = controller.get_worker_group()
            if group is not None and group.has_started():
                group.abort()
        return controller.get_result()


class SharingTrainer(FastTrainer):
    """The same, with workers that take the bundles of the placement group that this process is in."""

    controller_cls = _SharingController


def check() -> None:
    """Check that Ray has what the classes above override: elsewhere an override would do nothing.

    Raises:
        AttributeError: it has not.
    """
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
            getattr(kind, name)
