"""Gather facts from this machine, and from each node of a cluster by a task pinned to it."""

from __future__ import annotations

import ipaddress
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from raytrain import errors
from raytrain.checkpoint import location
from raytrain.doctor.checks import Survey
from raytrain.doctor.facts import Facts, clock, gather, probe, remove
from raytrain.driver import limits
from raytrain.driver.ray_internals import cluster_state
from raytrain.driver.session import Session
from raytrain.files import existing

_NODE_SECONDS = 60.0
"""A node's first process imports Ray, and perhaps torch, before it answers."""
_CLOCKS = 3
"""How often a clock is asked; the shortest way there and back counts."""


def examine(address: str | None = None, out: str = "runs") -> Survey:
    """Gather facts from this machine, and from the nodes of a cluster if there is an address (or RAY_ADDRESS).

    Args:
        address: host:port, or `auto`.
        out: the folder or URL for runs; of a folder that is not there, the nearest above it is looked at.

    Raises:
        UserError: no cluster answers at the address.
    """
    folder = out if location.is_url(out) else str(existing(Path(out)))
    mark = f".raytrain-doctor-{uuid.uuid4().hex[:12]}"
    own = f"{mark}-here"
    try:
        here = Facts.of(gather(folder, own, own))
        address = address or os.environ.get("RAY_ADDRESS")
        if not address:
            return Survey(here, out=out, refused=_refused())
        with Session(address, verbose=False) as session:
            session.start()
            return _cluster(here, address, out, folder, mark)
    finally:
        remove(folder, [own])


def _refused() -> tuple[str, str] | None:
    """Return why Ray would not start here, and the remedy."""
    try:
        limits.check()
    except errors.UserError as error:
        return f"{error.what} {error.where}", error.how
    return None


def _cluster(here: Facts, address: str, out: str, folder: str, mark: str) -> Survey:
    """Gather facts from the nodes of the connected cluster."""
    import ray.cloudpickle  # a machine without a cluster is examined without it

    from raytrain.driver.ray_cluster import ask

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
            except Exception as error:  # whatever keeps a node from answering is the finding
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
    return Survey(here, tuple(found), tuple(silent), address, out, free, not loopback, cluster_state.least_nodes())


def _names(nodes: list[dict[str, Any]]) -> dict[str, str]:
    """What nodes are called, by their ids: their host's name and, where several have one, their id's beginning."""
    hosts = [node["NodeManagerHostname"] for node in nodes]
    return {
        node["NodeID"]: host if hosts.count(host) == 1 else f"{host} ({node['NodeID'][:6]})"
        for node, host in zip(nodes, hosts, strict=True)
    }


def _skew(clock: Any) -> tuple[float, float]:
    """Seconds by which a clock is ahead of ours, and half of the shortest way there and back (Cristian's algorithm)."""
    tries = []
    for _ in range(_CLOCKS):
        before = time.time()
        there = clock()
        after = time.time()
        tries.append(((after - before) / 2, there - (before + after) / 2))
    uncertain, skew = min(tries)
    return skew, uncertain
