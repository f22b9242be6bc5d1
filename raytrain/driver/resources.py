"""The resources of a machine or a cluster: nodes, CPUs, GPUs, memory."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field

from raytrain import errors
from raytrain.machine import host_cpus, host_memory

THIS_MACHINE = "this machine"
"""Where a run is that has started Ray itself."""


@dataclass(frozen=True)
class Node:
    """One node of a cluster, or this machine.

    Attributes:
        memory: bytes.
        store: bytes of Ray's object store; None where Ray does not run yet.
    """

    name: str
    cpus: float
    gpus: float
    memory: int
    store: int | None = None

    def room(self, cpus: float, gpus: float) -> int:
        """Return the number of workers of so many CPUs and GPUs that the node holds."""
        return int(min(self.cpus / cpus if cpus else math.inf, self.gpus / gpus if gpus else math.inf) + 1e-6)


@dataclass(frozen=True)
class Resources:
    """The resources of this machine or of a cluster.

    Attributes:
        by_node: the nodes, each with what it has.
        where: the cluster's address, or this machine.
        runs: equal runs, such as a sweep's trials, that share the nodes at the same time.
        reserved: whether a run reserves all CPUs that it uses, those of Ray Data's tasks too, which request none.
        gpu_memory: asks for the bytes of the smallest GPU; None where that cannot be known.
    """

    by_node: tuple[Node, ...]
    where: str
    runs: int = 1
    reserved: bool = False
    gpu_memory: Callable[[], int | None] = field(default=lambda: None, compare=False)

    @property
    def cpus(self) -> float:
        """CPUs of all nodes."""
        return sum(node.cpus for node in self.by_node)

    @property
    def gpus(self) -> float:
        """GPUs of all nodes."""
        return sum(node.gpus for node in self.by_node)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.by_node)

    @property
    def memory(self) -> int:
        """Bytes of the smallest node's memory."""
        return min(node.memory for node in self.by_node)

    @property
    def store(self) -> int | None:
        """Bytes of the smallest node's object store; None where no node tells."""
        return min((node.store for node in self.by_node if node.store is not None), default=None)

    def room(self, cpus: float, gpus: float = 0.0) -> int:
        """Return the number of workers of so many CPUs and GPUs that fit, each on one node."""
        return sum(node.room(cpus, gpus) for node in self.by_node)

    def placed(self, workers: int, cpus: float, gpus: float, spread: bool) -> list[int]:
        """Return the workers on each node, as Ray places them where the cluster is free: PACK fills one node after
        another, SPREAD takes the nodes in turn. Workers without room are left out."""
        rooms = [node.room(cpus, gpus) for node in self.by_node]
        order = sorted(range(len(rooms)), key=lambda place: (-rooms[place], place))
        counts = [0] * len(rooms)
        left = min(workers, sum(rooms))
        while left:
            for place in order:
                more = min(left, rooms[place] - counts[place], 1 if spread else left)
                counts[place] += more
                left -= more
        return counts

    def beside(self, workers: int, cpus: float, gpus: float) -> float:
        """Return the most CPUs that one node can keep free beside the workers."""
        total = self.room(cpus, gpus)
        return max(node.cpus - cpus * max(0, workers - total + node.room(cpus, gpus)) for node in self.by_node)

    def most_cpus(self, workers: int, gpus: float) -> float | None:
        """Return the most CPUs, in hundredths, with which so many workers have room; None where no number is."""
        counts = range(1, workers + 1)
        shares = {int(100 * node.cpus / count + 1e-6) / 100 for node in self.by_node for count in counts}
        return max((cpus for cpus in shares if cpus > 0 and self.room(cpus, gpus) >= workers), default=None)

    @property
    def listed(self) -> str:
        """The nodes for people."""
        gpus = (f", {node.gpus:g} GPUs" if node.gpus else "" for node in self.by_node)
        return errors.listed(map("{0.name} ({0.cpus:g} CPUs{1})".format, self.by_node, gpus), 4)


def local_resources() -> Resources:
    """Return this machine's resources, as Ray counts them."""
    import torch  # every command imports this module

    node = Node(THIS_MACHINE, host_cpus(), torch.cuda.device_count(), host_memory())
    return Resources((node,), THIS_MACHINE, gpu_memory=lambda: smallest_gpu(int(node.gpus)))


def smallest_gpu(count: int) -> int | None:
    """Return the bytes of the smallest of this machine's GPUs, without taking any of them; None where nvidia-smi does
    not say. Where more GPUs are there than `count`, the largest ones are counted."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
        sizes = sorted((int(line) * 2**20 for line in said.split("\n") if line.strip()), reverse=True)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return min(sizes[:count], default=None)
