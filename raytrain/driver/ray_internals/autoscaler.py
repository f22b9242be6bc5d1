"""The nodes that the description of a cluster by `ray up` promises."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import ray
import yaml


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
    """Return the description of the cluster whose head this machine is, where Ray's autoscaler reads it; empty
    elsewhere."""
    own = ray.get_runtime_context().get_node_id()
    if any(node["NodeID"] == own and "node:__internal_head__" in node["Resources"] for node in ray.nodes()):
        with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
            return yaml.safe_load((Path.home() / "ray_bootstrap_config.yaml").read_text())
    return {}
