"""Clusters of several nodes on this machine, which end with a test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def started(*cpus: int, **head: Any) -> Iterator[Any]:
    """A cluster of nodes with so many CPUs each; `head` are further arguments of the first one."""
    from ray.cluster_utils import Cluster

    options = {"num_cpus": cpus[0], "include_dashboard": False, **head}
    cluster: Any = Cluster(initialize_head=True, head_node_args=options)
    try:
        for count in cpus[1:]:
            cluster.add_node(num_cpus=count)
        yield cluster
    finally:
        for node in [*cluster.worker_nodes, cluster.head_node]:
            with contextlib.suppress(Exception):
                node.kill_all_processes(check_alive=False, allow_graceful=False)
