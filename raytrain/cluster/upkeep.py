"""The checks of shared storage and of costs for a cluster of `ray up`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from raytrain.cluster.description import Cluster
from raytrain.cluster.document import Finding, Place

_MOUNT = re.compile(
    r"\bmount\b[^;&|]*?(?:-t[= ]?(?:nfs4?|efs|lustre|ceph|cifs|beegfs|gpfs|9p|fuse\S*)\b|\s[\"']?(?:[\w.\[\]:-]+:|/)/)"
    r"(?:[^;&|]*?\s)?[\"']?(/[\w./-]+)[\"']?\s*(?:$|[;&|#)])"
    r"|\bmount\s+(/[\w./-]+)\s*(?:$|[;&|#)])"
    r"|\b(?:mount-s3|s3fs|goofys|gcsfuse|blobfuse2?(?: mount)?|juicefs mount|sshfs)\b[^;&|]*?\s(/[\w./-]+)"
    r"|\bmountpoint\s+(?:-q\s+)?(/[\w./-]+)"
)
_ROLES = ("", "head_", "worker_")


def storage(cluster: Cluster) -> Iterator[Finding]:
    """Check that all nodes share a folder."""
    if cluster.alone or (cluster.types and not cluster.workers):
        return
    top = cluster.top
    before = ("initialization_commands", "setup_commands")
    shared = [folder for command in cluster.commands(*before) for folder in _mounted(command)]
    of_head = [folder for command in cluster.commands("head_setup_commands") for folder in _mounted(command)]
    of_workers = [folder for command in cluster.commands("worker_setup_commands") for folder in _mounted(command)]
    common = shared + [folder for folder in of_head if folder[0] in {other for other, _ in of_workers}]
    if not common:
        found = [*of_head, *of_workers]
        if found:
            folder, place = found[0]
            role = "head" if of_head else "workers"
            yield place.warning(
                f"only the {role} mount {folder}: what is written there is local to a node",
                "mount it under initialization_commands, or keep runs at a URL",
            )
        else:
            yield top["initialization_commands"].warning(
                "no command mounts a folder that all nodes share, and runs would be local to a node",
                "mount one (`sudo mount -t nfs4 ...`), check it (`mountpoint -q /shared`), or keep runs at a URL",
            )
        return
    if not cluster.docker:
        return
    visible = {role: " ".join(p.text for p in top["docker"][f"{role}run_options"].items) for role in _ROLES}
    outside = [(f, place) for c in cluster.commands("initialization_commands") for f, place in _mounted(c)]
    for folder, place in outside:
        both = folder in visible["head_"] and folder in visible["worker_"]
        if folder not in visible[""] and not both:
            yield place.error(
                f"{folder} is mounted on the machine, and the container does not see it",
                f"add `-v {folder}:{folder}` to docker.run_options",
            )
            return


def _mounted(command: Place) -> list[tuple[str, Place]]:
    """The folders that a command mounts, or looks for."""
    found = {folder: command for groups in _MOUNT.findall(command.text) for folder in groups if folder}
    return list(found.items())


def costs(cluster: Cluster) -> Iterator[Finding]:
    """Check spot instances and idle cost."""
    head, top = cluster.head, cluster.top
    if cluster.cloud and not head.empty:
        if (spot := cluster.spot(head)) is not None:
            yield spot.warning("the head may be reclaimed, and all runs end with it", "let the workers alone be spot")
        if cluster.has_gpu(head) and any(cluster.has_gpu(kind) for kind in cluster.workers.values()):
            yield cluster.size(head).warning(
                "the head has a GPU, which is paid for as long as the cluster is up", "use a machine without one"
            )
    cached = top["provider"]["cache_stopped_nodes"]
    if (cluster.provider in ("aws", "azure") and cached.value is not False) or cached.value is True:
        yield cached.warning(
            "machines are stopped and kept, and their disks paid for after `ray down`",
            "write cache_stopped_nodes: false",
        )


def container(cluster: Cluster) -> Iterator[Finding]:
    """Check Docker's options."""
    docker = cluster.top["docker"]
    options = [place.text for name in _ROLES for place in docker[f"{name}run_options"].items]
    if cluster.docker and docker["container_name"].empty:
        yield docker["container_name"].error("docker has no container_name", "add container_name: raytrain")
    if docker["disable_shm_size_detection"].value is True and not any("--shm-size" in option for option in options):
        yield docker["disable_shm_size_detection"].error(
            "the container has 64 MiB of shared memory, and Ray's objects live there", "remove it, or add --shm-size"
        )
    if docker["disable_automatic_runtime_detection"].value is True and not any("gpus" in option for option in options):
        if any(cluster.has_gpu(kind) for kind in cluster.types.values()):
            yield docker["disable_automatic_runtime_detection"].error(
                "the container sees no GPU", "remove it, or add `--gpus all` to docker.worker_run_options"
            )
    for place in (p for name in _ROLES for p in docker[f"{name}run_options"].items):
        if "--privileged" in place.text:
            yield place.warning(
                "--privileged gives the container the machine", "leave it out: training needs none of it"
            )
