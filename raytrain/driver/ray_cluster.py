"""The driver's calls to a Ray cluster: start or connect, nodes, resources.

Ray reads environment variables when it is imported: `session` sets them and imports this module after that.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import NodeDiedError, RayError, TaskUnschedulableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raytrain import errors
from raytrain.driver import resources as machine
from raytrain.driver.ray_internals import autoscaler
from raytrain.driver.resources import Node, Resources

_GPU_SECONDS = 60.0
"""How long the nodes may take to report the memory of their GPUs."""
_ANSWER_SECONDS = 20.0
"""How long a node may take for a task that does nothing: it may have to start a process for it."""


def start_here(folders: dict[str, Any], verbose: bool) -> None:
    """Start a cluster of this machine alone.

    Args:
        folders: arguments of `ray.init` that name folders.
        verbose: show Ray's own messages.

    Raises:
        TimeoutError: it is not there in time (`own_node.patient_start`).
    """
    try:
        ray.init(
            address="local",
            num_cpus=int(machine.local_resources().cpus),
            include_dashboard=False,
            **folders,
            log_to_driver=verbose,
            logging_level=logging.INFO if verbose else logging.ERROR,
        )
    except Exception as error:
        if "timed out during startup" not in str(error):
            raise
        raise TimeoutError("Ray did not start in time; wait until other processes need fewer CPUs") from error


def connect(address: str, verbose: bool) -> None:
    """Connect to a running cluster.

    Raises:
        UserError: no cluster answers there, or one of another Python.
    """
    if not verbose:
        logging.getLogger("ray").setLevel(logging.CRITICAL)
    try:
        ray.init(address=address, log_to_driver=verbose, logging_level=logging.INFO if verbose else logging.CRITICAL)
    except (ConnectionError, ValueError, RuntimeError, OSError, RayError) as error:
        pythons = re.findall(r"^ *Python: (\S+)$", str(error), re.MULTILINE)  # Ray's message has both
        if len(pythons) == 2:
            raise errors.other_python(address, *pythons) from None
        raise errors.no_cluster(address, errors.first_line(error)) from None


def resources() -> Resources:
    """Return what the cluster has, or may grow to."""
    there = [(node["NodeManagerHostname"], node["Resources"]) for node in ray.nodes() if node["Alive"]]
    heads = [node for node in there if "node:__internal_head__" in node[1]]
    grown = [*heads, *(("a node to come", node) for node in autoscaler.nodes_to_come())]
    least = int(min(node["memory"] for _, node in (*there, *grown) if "memory" in node))
    counted = (tuple(_node(name, node, least) for name, node in nodes) for nodes in (there, grown))
    where = ray.get_runtime_context().gcs_address
    every = (Resources(nodes, where, gpu_memory=smallest_gpu) for nodes in counted)
    return max(every, key=lambda found: (found.gpus, found.cpus))


def _node(name: str, has: dict[str, float], least: int) -> Node:
    """Return a node.

    Args:
        has: its resources, as Ray counts them.
        least: bytes of memory of a node that tells none.
    """
    store = has.get("object_store_memory")
    memory = int(has.get("memory", least))
    return Node(name, has.get("CPU", 0.0), has.get("GPU", 0.0), memory, None if store is None else int(store))


def places() -> list[tuple[str, int]]:
    """Return the addresses of the cluster's head and of this machine's node."""
    own = ray.get_runtime_context().get_node_id()
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    nodes = [node for node in ray.nodes() if node["NodeID"] == own]
    return [(host, int(port)), *((one["NodeManagerAddress"], one["NodeManagerPort"]) for one in nodes)]


def let_nodes_tell() -> None:
    """Run a no-op task on every node to refresh the head's view of free resources; wait for none of them."""
    for node in ray.nodes():
        if node["Alive"]:  # it may be out of reach
            ask(node, lambda: None)


def all_answer(nodes: Iterable[str]) -> bool:
    """Return whether nodes, given by their ids, are alive and answer in time: one that was cut off from its power is
    alive to the head for a while."""
    alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    if not {*nodes} <= alive.keys():
        return False
    asked = [ask(alive[node], lambda: None) for node in nodes]
    try:
        ray.get(asked, timeout=_ANSWER_SECONDS)
    except RayError:
        return False
    return True


def smallest_gpu() -> int | None:
    """Return the memory in bytes of the smallest GPU of the cluster; None if a node does not report it."""
    counts = [(node, int(node["Resources"].get("GPU", 0))) for node in ray.nodes() if node["Alive"]]
    asked = [ask(node, machine.smallest_gpu, count) for node, count in counts if count]
    try:
        sizes = ray.get(asked, timeout=_GPU_SECONDS)
    except RayError:
        return None
    return None if None in sizes else min(sizes, default=None)


def ask(node: dict[str, Any], function: Callable[..., Any], *arguments: Any, retries: int = 0) -> Any:
    """Call a function on a node that `ray.nodes()` lists; return the reference to its result."""
    there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
    task: Any = ray.remote(num_cpus=0, max_retries=retries)(function)
    return task.options(scheduling_strategy=there).remote(*arguments)


def check_shared(file: Path) -> None:
    """Check that the other nodes see a file.

    Raises:
        UserError: one of them does not see it.
    """
    here = ray.get_runtime_context().get_node_id()
    nodes = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here]
    path = file.absolute()
    seen = [ask(node, os.path.isfile, str(path), retries=3) for node in nodes]
    blind = [node["NodeManagerHostname"] for node, there in zip(nodes, seen, strict=True) if not _told(there)]
    if blind:
        raise errors.not_writable(
            path.parent, f"the nodes {', '.join(blind[:4])} do not see it; it must be on storage that all nodes share"
        )


def _told(seen: Any) -> bool:
    """Return what a node has answered; True of one that is gone, though the head took it for alive when it was asked:
    no worker will be there."""
    try:
        return ray.get(seen)
    except (NodeDiedError, TaskUnschedulableError):
        return True
