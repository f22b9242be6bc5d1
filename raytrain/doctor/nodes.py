"""Gather facts from each node of a cluster by a task pinned to it."""

from __future__ import annotations

import ipaddress
import sys
import time
from typing import Any

import ray.cloudpickle

from raytrain.doctor.checks import Survey
from raytrain.doctor.facts import Facts, clock, gather, probe, remove
from raytrain.driver.ray_cluster import ask
from raytrain.driver.ray_internals import autoscaler

_NODE_SECONDS = 60.0
"""A node's first process imports Ray, and perhaps torch, before it answers."""
_CLOCKS = 3
"""Requests to a clock; the shortest round trip counts."""


def survey(here: Facts, address: str, out: str, folder: str, mark: str) -> Survey:
    """Gather facts from the nodes of the connected cluster.

    Args:
        here: the facts of this machine.
        address: the cluster's address.
        out: the folder or URL for runs.
        folder: the nearest folder above `out` that exists, or the URL.
        mark: the beginning of the names of files that nodes write there.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    names = _names(nodes)
    places = {node["NodeID"]: (node["NodeManagerAddress"], node["NodeManagerPort"]) for node in nodes}
    head, _, port = ray.get_runtime_context().gcs_address.rpartition(":")

    package = sys.modules["raytrain"]
    ray.cloudpickle.register_pickle_by_value(package)  # a node may lack raytrain, or have another
    try:
        asked = []
        for node in nodes:
            peers = [(head, int(port)), *(place for other, place in places.items() if other != node["NodeID"])]
            own = f"{mark}-{node['NodeID']}"
            asked.append(ask(node, gather, folder, own, f"{mark}-here", names[node["NodeID"]], peers))
        found, silent = [], []
        deadline = time.monotonic() + _NODE_SECONDS
        for node, answer in zip(nodes, asked, strict=True):
            own = f"{mark}-{node['NodeID']}"
            try:
                said: Any = ray.get(answer, timeout=max(0.0, deadline - time.monotonic()))
                skew = _skew(lambda node=node: ray.get(ask(node, clock), timeout=_NODE_SECONDS))
                seen = probe(folder, own)
                ray.get(ask(node, remove, folder, [own]), timeout=_NODE_SECONDS)
            except Exception as error:  # any error of a node is a finding
                remove(folder, [own])
                silent.append((names[node["NodeID"]], " ".join(str(error).split())[:300] or type(error).__name__))
                continue
            counted = (node["Resources"].get("CPU", 0.0), node["Resources"].get("GPU", 0.0))
            more = {"address": node["NodeManagerAddress"], "declared": counted, "skew": skew, "seen": seen}
            if "node:__internal_head__" in node["Resources"]:
                more["job_port"] = node.get("DashboardAgentListenPort")
            found.append(Facts.of(said, **more))
    finally:
        ray.cloudpickle.unregister_pickle_by_value(package)
    free = ray.available_resources().get("CPU", 0.0)
    loopback = all(ipaddress.ip_address(node["NodeManagerAddress"]).is_loopback for node in nodes)
    return Survey(here, tuple(found), tuple(silent), address, out, free, not loopback, autoscaler.least_nodes())


def _names(nodes: list[dict[str, Any]]) -> dict[str, str]:
    """Return the nodes' names, by their ids: the host's name and, where several nodes share one, their id's
    beginning."""
    hosts = [node["NodeManagerHostname"] for node in nodes]
    return {
        node["NodeID"]: host if hosts.count(host) == 1 else f"{host} ({node['NodeID'][:6]})"
        for node, host in zip(nodes, hosts, strict=True)
    }


def _skew(clock: Any) -> tuple[float, float]:
    """Return the seconds by which a clock is ahead of this one, and half of the shortest round trip (Cristian's
    algorithm)."""
    tries = []
    for _ in range(_CLOCKS):
        before = time.time()
        there = clock()
        after = time.time()
        tries.append(((after - before) / 2, there - (before + after) / 2))
    uncertain, skew = min(tries)
    return skew, uncertain
