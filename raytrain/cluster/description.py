"""A file for `ray up`: its values, and the questions that several rules ask."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from raytrain.cluster.document import Place

RAY_START = re.compile(r"\bray start\b")
_GPU_MACHINES = {
    "aws": re.compile(r"(p\d|g\d|gr\d)[a-z]*\d*[a-z-]*\.", re.IGNORECASE),
    "gcp": re.compile(r"(a2|a3|a4|a4x|g2|g4)-"),
    "azure": re.compile(r"Standard_N[CDVG]", re.IGNORECASE),
}
SIZES = {"aws": "InstanceType", "gcp": "machineType", "azure": "vmSize"}
"""The name of the field with a node type's machine, by provider."""
COMMANDS = (
    *("initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands"),
    *("head_start_ray_commands", "worker_start_ray_commands"),
)


@dataclass(frozen=True)
class Cluster:
    """The values of a file for `ray up`, with the questions that several rules ask."""

    top: Place

    @cached_property
    def provider(self) -> str:
        """The provider: aws, gcp, azure, local, or the file's value."""
        return self.top["provider"]["type"].text

    @cached_property
    def cloud(self) -> bool:
        """Whether Ray creates the machines."""
        return self.provider in _GPU_MACHINES

    @cached_property
    def docker(self) -> bool:
        """Whether Ray runs in a container."""
        docker = self.top["docker"]
        return not all(docker[name].empty for name in ("image", "head_image", "worker_image"))

    @cached_property
    def types(self) -> dict[str, Place]:
        """Node types by name; provider local has none."""
        return self.top["available_node_types"].fields

    @cached_property
    def head(self) -> Place:
        """The head's node type."""
        return self.top["available_node_types"][self.top["head_node_type"].text]

    @cached_property
    def workers(self) -> dict[str, Place]:
        """The other node types by name."""
        return {name: kind for name, kind in self.types.items() if kind is not self.head}

    @cached_property
    def alone(self) -> bool:
        """Whether the cluster never has more than the head."""
        return self.top["max_workers"].number == 0

    def machine(self, kind: Place) -> Place:
        """Return the place of a node type's machine."""
        node = kind["node_config"]
        return node["azure_arm_parameters"] if self.provider == "azure" else node

    def size(self, kind: Place) -> Place:
        """Return the name of a node type's machine."""
        return self.machine(kind)[SIZES.get(self.provider, "")]

    def has_gpu(self, kind: Place) -> bool:
        """Return whether a node type has GPUs: by its resources, or by the name of its machine."""
        declared = kind["resources"]["GPU"].number
        return self.has_gpu_machine(kind) if declared is None else declared > 0

    def has_gpu_machine(self, kind: Place) -> bool:
        """Return whether a node type's machine has GPUs, by its name."""
        pattern = _GPU_MACHINES.get(self.provider)
        known = bool(pattern and pattern.match(self.size(kind).text))
        return known or not self.machine(kind)["guestAccelerators"].empty

    def spot(self, kind: Place) -> Place | None:
        """Return the place that makes a node type's machines spot instances."""
        machine = self.machine(kind)
        market, priority = machine["InstanceMarketOptions"]["MarketType"], machine["priority"]
        if market.text == "spot" or priority.text in ("Spot", "Low"):
            return market if market.text == "spot" else priority
        scheduling = machine["scheduling"]
        for place in [scheduling, *scheduling.items]:
            for mark in (place["preemptible"], place["provisioningModel"]):
                if mark.value is True or mark.text == "SPOT":
                    return mark
        return None

    def commands(self, *names: str) -> list[Place]:
        """Return the commands of some lists."""
        return [command for name in names for command in self.top[name].items]

    def all_commands(self) -> list[Place]:
        """Every command that a node runs."""
        inside = [
            command
            for kind in self.types.values()
            for name in ("initialization_commands", "worker_setup_commands")
            for command in kind[name].items
        ]
        return self.commands(*COMMANDS) + inside

    def images(self) -> list[tuple[Place, bool]]:
        """Container images, and whether they run where there are GPUs."""
        docker = self.top["docker"]
        head = not self.head.empty and self.has_gpu(self.head)
        workers = any(self.has_gpu(kind) for kind in self.workers.values())
        found = [
            (docker["image"], head or workers),
            (docker["head_image"], head),
            (docker["worker_image"], workers),
            *((kind["docker"]["worker_image"], self.has_gpu(kind)) for kind in self.types.values()),
        ]
        return [(image, gpu) for image, gpu in found if image.there]
