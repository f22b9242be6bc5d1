"""What a trial reserves in a cluster, and how many trials run at once."""

from __future__ import annotations

import time
from typing import Any

from raytrain.driver import ray_cluster
from raytrain.driver.ray_internals import ray_train
from raytrain.experiment import Scaling
from raytrain.sweep.sweep_plan import SweepPlan

_JOINED_SECONDS = 5.0
"""Seconds between two looks for nodes that have joined the cluster."""


class Most:
    """How many trials may run at once: as planned, and more where nodes have joined since.

    Args:
        together: whether all may, as only their reservations hold them back.
    """

    def __init__(self, planned: SweepPlan, together: bool):
        self.planned, self.together = planned, together
        self.most, self.due = planned.concurrent, time.monotonic() + _JOINED_SECONDS

    def __call__(self) -> int:
        """Return it; look at the nodes once in `_JOINED_SECONDS`."""
        if self.together:
            return self.planned.sweep.count
        if time.monotonic() >= self.due:
            self.most, self.due = self.planned.at_once(ray_cluster.resources()), time.monotonic() + _JOINED_SECONDS
        return self.most


def room_for(scaling: Scaling, apart: bool = False) -> dict[str, Any]:
    """Return what a trial with a planned scaling reserves: the bundles of its placement group, and how they are placed.

    A trial of one worker trains in the actor, which takes the first bundle. The actor of a larger one takes nothing,
    so that Tune holds the trial back until all of its workers have room.

    Args:
        apart: whether the nodes share no folder, so that a trial must be on one of them.
    """
    bundle = {"CPU": scaling.cpus_per_worker, "GPU": scaling.gpus_per_worker or 0.0}
    if scaling.ranks <= 1:
        return {"bundles": [bundle], "strategy": "PACK"}
    if not ray_train.shares_groups():  # Ray Train makes a group of its own, and Tune refuses an empty request
        return {"bundles": [{"memory": 1}], "strategy": "PACK"}
    strategy = "STRICT_PACK" if apart else scaling.placement.upper()
    return {"bundles": [{}, *[bundle] * scaling.ranks], "strategy": strategy}
