"""What each worker gets, and the function that Ray Train calls with it.

A worker imports this module first. It imports neither Ray nor torch, since a strategy sets environment variables that
torch reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytrain.driver.ray_internals import compiler
from raytrain.experiment import Experiment
from raytrain.user_code.shipping import Shipped


@dataclass
class Job:
    """The job of every worker. Large values are references into the object store. For a run at a URL, `run` is the
    driver's mirror, and each worker has its own."""

    experiment: Experiment
    run: Path
    indices: Any
    images: dict[str, Any]
    weights: Any
    command_started: float
    own_output: bool
    url: str | None = None
    watched: bool = True
    """Whether each rank watches itself; a sweep watches its trials."""
    gated: bool = False
    """Whether the workers wait after each validation until `driver.gate` lets them train on."""
    baseline: dict[str, float] | None = None
    """What a constant answer scores, for the summary."""
    threads: int = 0
    """Threads of each worker that read samples while it trains; 0 where they are resident, or Ray Data reads them."""
    tasks: int = 0
    """Tasks of Ray Data that read for each worker at once, where they request no CPU; else 0."""
    profile: int = 0
    """Steps to trace; see `Profiling`."""

    def __getstate__(self) -> dict[str, Any]:
        # The experiment comes first: what follows may hold the user's classes too.
        rest = {name: value for name, value in vars(self).items() if name != "experiment"}
        return {"experiment": Shipped(self.experiment), **rest}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"experiment": state["experiment"].value})


def work_on_cluster(settings: dict[str, Any]) -> None:
    """The function that Ray Train calls on every worker."""
    value = settings["job"].experiment
    value.parallel.prepare_process()
    if not (value.compile or value.parallel.sharded):  # torch's sharded tensors import the compiler themselves
        compiler.defer_compiler()
    from raytrain.driver import worker  # which imports torch

    worker.work(settings["job"])
