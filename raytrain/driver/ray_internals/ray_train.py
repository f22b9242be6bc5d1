"""Ray Train's trainer and process group: the fast ones, or Ray's own with other versions of Ray."""

from __future__ import annotations

import contextlib
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.train.torch import TorchConfig, TorchTrainer

from raytrain.driver import network
from raytrain.driver.ray_internals.cancelling import Cancellable
from raytrain.driver.ray_internals.versions import known, private

_ADDRESS_SECONDS = 14.0
"""How long the nodes may take to tell their addresses, and again to try the others': half a minute in all."""


def trainer(shares: bool = False) -> type[TorchTrainer]:
    """Return the trainer class: the fast one, or Ray's own with other versions of Ray.

    Args:
        shares: whether the fast one's workers take the bundles of the placement group that this process is in.
    """
    fast_train = private("raytrain.driver.ray_internals.fast_train", "check")
    with contextlib.suppress(AttributeError):  # names that are looked up later
        if fast_train is not None:
            fast_train.check()
            return fast_train.SharingTrainer if shares else fast_train.FastTrainer
    return TorchTrainer


def shares_groups() -> bool:
    """Return whether a trainer's workers can take the bundles of the placement group that the trainer is in."""
    return issubclass(trainer(shares=True), Cancellable)


class Unreachable(Exception):
    """Ranks on several nodes would not reach each other."""


def torch_config(backend: str, collective_seconds: float) -> TorchConfig:
    """Return Ray Train's configuration of the process group, which on several nodes first checks that the ranks' nodes
    reach each other at the addresses that gloo and NCCL would use; the stock one where Ray is not as it was.

    Args:
        collective_seconds: how long a collective may take.
    """
    settings: dict[str, Any] = {"backend": backend, "timeout_s": collective_seconds}  # an int in Ray's annotation only
    if not known():
        return TorchConfig(**settings)

    class Backend(TorchConfig().backend_cls):  # type: ignore[misc]  (a property of an instance)
        def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
            check_addresses(worker_group, backend)
            super().on_start(worker_group, backend_config)

    class Checked(TorchConfig):
        @property
        def backend_cls(self) -> Any:
            return Backend

    return Checked(**settings)


def check_addresses(worker_group: Any, backend: str) -> None:
    """Check that the hosts' workers reach each other, by one worker on each host.

    Nodes with one address are of one host, whose workers reach each other on its loopback.

    Raises:
        Unreachable: a node is not reached; the text names it, its interface and address, and the variable to set.
    """
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
    except GetTimeoutError:  # slow nodes prove nothing: the process group will show it
        return
    if wrong:
        raise Unreachable(wrong)


def cancel(running: TorchTrainer) -> None:
    """End a trainer whose `fit` runs in another thread, with all that it started; the stock one cannot be ended."""
    if isinstance(running, Cancellable):
        running.cancel()
