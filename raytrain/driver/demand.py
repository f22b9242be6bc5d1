"""The demand of a run on an autoscaling cluster."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import Any

import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from raytrain.driver.network import answers
from raytrain.driver.ray_internals import cluster_state
from raytrain.experiment import Experiment


class Demand(contextlib.AbstractContextManager["Demand"]):
    """Requests workers from an autoscaling cluster, by placement groups in which nothing runs.

    An autoscaler counts pending groups as demand. They are this run's own, and Ray removes them when the driver's job
    ends, also after SIGKILL. `request_resources` is one value for the whole cluster, and stays until it is overwritten.
    """

    def __init__(self) -> None:
        self._wanted: list[int] | None = None
        self._groups: list[Any] = []

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):  # the cluster may be gone
            self.drop()

    def hold(self, need: dict[str, float], counts: list[int]) -> None:
        """Keep the demand pending until `drop`; call it once a second.

        A group that found room is removed at once, since it would keep others, Ray Data too, from using that room.

        Args:
            need: what one worker asks Ray for.
            counts: the workers of each group; a group finds room for all of its workers, or for none.
        """
        if self._wanted != counts:
            self.drop()
            self._wanted = counts
            self._groups = [placement_group([need] * count) for count in counts]
        elif self._groups:
            states = {name: found["state"] for name, found in placement_group_table().items()}
            placed = [group for group in self._groups if states.get(group.id.hex()) == "CREATED"]
            self._groups = [group for group in self._groups if group not in placed]
            for group in placed:
                remove_placement_group(group)

    def drop(self) -> None:
        """End the demand."""
        groups, self._groups, self._wanted = self._groups, [], None
        for group in groups:
            remove_placement_group(group)


def resources_needed(value: Experiment) -> dict[str, float]:
    """Return what each worker asks Ray for."""
    scaling = value.scaling
    need = {"CPU": scaling.cpus_per_worker or 1.0}
    return need | ({"GPU": scaling.gpus_per_worker} if scaling.gpus_per_worker else {})


def smaller_sizes(workers: int, larger: list[int]) -> list[int]:
    """Return how many workers each larger size adds to the one before it.

    Args:
        larger: the sizes, most first.
    """
    sizes = [workers, *reversed(larger)]
    return [after - before for before, after in pairwise(sizes)]


def workers_at_most(need: dict[str, float]) -> int:
    """Return how many workers fit on the nodes that are alive and not draining."""
    going = cluster_state.draining()
    return sum(
        int(min(node["Resources"].get(kind, 0.0) / count for kind, count in need.items()))
        for node in ray.nodes()
        if node["Alive"]
        and node["NodeID"] not in going
        # The head reports a node as alive until half a minute after its end.
        and answers(node["NodeManagerAddress"], node["NodeManagerPort"])
    )
