"""Room for workers and for reading on the cluster's nodes, and why there is none."""

from __future__ import annotations

from collections.abc import Mapping

import ray
from ray.util import placement_group_table

from raytrain import errors
from raytrain.driver.ray_internals import cluster_state
from raytrain.experiment import Scaling


def cpus_for_data(cpus_per_worker: float, workers: Mapping[str, int]) -> float:
    """Return what a task of Ray Data asks for beside the workers: one CPU, or the most that they leave on a node.

    Args:
        workers: how many are on each node, by its id.

    Raises:
        UserError: they leave nothing.
    """
    nodes = [node for node in ray.nodes() if node["Alive"]]
    left = {node["NodeID"]: node["Resources"].get("CPU", 0.0) for node in nodes}
    most = max(left[node] - cpus_per_worker * workers.get(node, 0) for node in left)
    if most < 0.01:
        names = ", ".join(f"{node['NodeManagerHostname']} ({left[node['NodeID']]:g} CPUs)" for node in nodes[:4])
        raise errors.UserError(
            f"no CPU for Ray Data, which streams the samples: the workers hold all of {names}",
            "in scaling.cpus_per_worker",
            "request less for each worker, fewer workers, or --data.mode resident",
        )
    return int(min(1.0, most) * 100) / 100


def why_no_block(seconds: float, needs: float, cpus_per_worker: float = 0.0, workers: Mapping[str, int] = {}) -> str:
    """Return why Ray Data has given no block for so many seconds, judging by what holds the nodes' CPUs.

    Args:
        needs: CPUs that one of its tasks asks for.
        cpus_per_worker, workers: as for `cpus_for_data`.
    """
    if not needs:
        return f"Ray Data has read nothing for {seconds:g} s: is the data's storage slow?"
    free, found = cluster_state.free_cpus(), []
    if any(cpus >= needs for cpus in free.values()):
        return f"Ray Data has read nothing for {seconds:g} s, though CPUs are free: is the data's storage slow?"
    for node in ray.nodes():
        if node["Alive"] and (cpus := node["Resources"].get("CPU", 0.0)):
            own, left = cpus_per_worker * workers.get(node["NodeID"], 0), free.get(node["NodeID"], 0.0)
            held = f"{own:g} held by this run's workers, " if own else ""
            other = f"{max(0.0, cpus - own - left):g} held by tasks that read or by other jobs"
            found.append(f"{node['NodeManagerHostname']} has {cpus:g} CPUs, {held}{other}")
    return f"Ray Data has read no samples for {seconds:g} s: {'; '.join(found[:4])}"


def why_no_room(scaling: Scaling) -> str:
    """Return what the next trial of a sweep waits for, judging by what is free on the nodes.

    Args:
        scaling: the trial's, as it was planned.
    """
    job = ray.get_runtime_context().get_job_id()  # the ids of this job's placement groups end with it
    waits = [name for name, group in placement_group_table().items() if group["state"] in ("PENDING", "RESCHEDULING")]
    if not any(name.endswith(job) for name in waits):
        return "its room is reserved, and its process is starting"
    return needed_and_free(scaling)


def needed_and_free(scaling: Scaling) -> str:
    """Return what workers need, and what the nodes have and what of it is free.

    Args:
        scaling: as it was planned.
    """
    gpus, free, found = scaling.gpus_per_worker or 0.0, cluster_state.free_cpus(), []
    for node in ray.nodes():
        if node["Alive"]:
            left = f", {_counted(free[node['NodeID']], 0)} free" if node["NodeID"] in free else ""
            has = _counted(node["Resources"].get("CPU", 0.0), node["Resources"].get("GPU", 0.0) if gpus else 0.0)
            found.append(f"{node['NodeManagerHostname']} has {has}{left}")
    each = _counted(scaling.cpus_per_worker or 0.0, gpus)
    workers = f"{scaling.ranks} workers of {each} each" if scaling.ranks > 1 else each
    return f"it needs {workers}, and {'; '.join(found[:4])}"


def _counted(cpus: float, gpus: float) -> str:
    """Return numbers of CPUs and GPUs as text."""
    counts = [f"{count:g} {kind}{'s' if count != 1 else ''}" for count, kind in ((cpus, "CPU"), (gpus, "GPU")) if count]
    return " and ".join(counts) or "0 CPUs"
