"""How many workers a run has, and the CPUs and threads of each."""

from __future__ import annotations

import math
from dataclasses import replace

from raytrain import errors
from raytrain.data import Data
from raytrain.driver.resources import THIS_MACHINE, Resources
from raytrain.experiment import Scaling

_LEAST_CPUS = 0.25
"""The fewest CPUs of a worker if cpus_per_worker is not set."""


DATA_CPUS = 0.5
"""CPUs that streaming needs on a node beside the workers: a task of Ray Data asks for one CPU, or for what is left."""


_THREADS, _LEAST_THREADS = 4, 64
"""Threads of a worker for each CPU of its node at most; so many are allowed on a small node too, where an experiment of
a larger one is repeated with its bits. torch itself takes any number and crashes the process beyond the system's."""


def scaled(scaling: Scaling, resources: Resources, threads: int | None, streams: bool) -> Scaling:
    """Decide what was left open: GPUs where there are enough, CPUs such that all workers have room, each on one node,
    and that a node keeps a CPU for Ray Data, or half of one: where a task of Ray Data never gets its CPU, a run that
    streams would wait for ever.

    Args:
        threads: see `Parallel.threads`.
        streams: whether Ray Data's tasks read while the run trains.

    Raises:
        UserError: the workers do not fit on the nodes.
    """
    streams = streams and not resources.reserved
    all_workers = scaling.ranks * resources.runs
    gpus = scaling.gpus_per_worker
    if gpus is None:
        gpus = 1.0 if resources.room(_LEAST_CPUS, 1.0) >= scaling.ranks else 0.0
    if 0 < gpus < 1 and scaling.ranks > 1:
        raise errors.UserError(
            f"{scaling.ranks} workers of {gpus:g} GPU may share a GPU, which NCCL does not support",
            "in scaling.gpus_per_worker",
            "give each worker a whole GPU, or use one worker",
        )
    if gpus * scaling.ranks > resources.gpus:
        raise _too_few("GPUs", gpus * scaling.ranks, resources.gpus, "scaling.workers x scaling.gpus_per_worker")
    cpus = scaling.cpus_per_worker
    if cpus is None:
        if gpus and resources.room(0, gpus) < scaling.ranks:
            raise _no_room_for(scaling.ranks, 0, gpus, resources)
        cpus = _cpus_per_worker(all_workers, gpus, resources, streams)
        cpus = cpus or _cpus_per_worker(scaling.ranks, gpus, resources, streams)
        if cpus is None:
            raise _too_many(scaling.ranks, gpus, resources, streams)
    elif resources.room(cpus, gpus) < scaling.ranks:
        raise _no_room_for(scaling.ranks, cpus, gpus, resources)
    elif streams and resources.beside(scaling.ranks, cpus, gpus) < DATA_CPUS:
        raise errors.UserError(
            f"{scaling.ranks} workers of {cpus:g} CPUs leave no CPU of {resources.listed} to Ray Data, which streams "
            "the samples",
            "in scaling.cpus_per_worker",
            "request less for each worker, fewer workers, or --data.mode resident",
        )
    threads = scaling.threads_per_worker or threads
    if threads is None:
        counts = resources.placed(all_workers, cpus, gpus, scaling.placement == "spread")
        used = [(node, count) for node, count in zip(resources.by_node, counts, strict=True) if count]
        threads = max(1, min((int(node.cpus) // count for node, count in used), default=1))
    most = max(_LEAST_THREADS, *(_THREADS * int(node.cpus) for node in resources.by_node))
    if threads > most:
        raise errors.UserError(
            f"scaling.threads_per_worker must be at most {most}, got {threads}",
            f"with {resources.listed}",
            "leave it out to share the cores among the workers",
        )
    return replace(scaling, gpus_per_worker=gpus, cpus_per_worker=cpus, threads_per_worker=threads)


def notes(scaling: Scaling, resources: Resources) -> list[str]:
    """Return a note where another run of the cluster may get CPUs whose cores this one computes with.

    Args:
        scaling: as `scaled` returns it.
    """
    threads, cpus = scaling.threads_per_worker or 1, scaling.cpus_per_worker or 0.0
    if resources.where == THIS_MACHINE or resources.reserved or scaling.gpus_per_worker or threads <= math.ceil(cpus):
        return []
    return [
        f"a worker reserves {cpus:g} CPU{'' if cpus == 1 else 's'} and computes with {threads} threads; where others "
        f"use its node too, each slows the other down: --scaling.cpus_per_worker {threads} reserves them, and "
        "--scaling.threads_per_worker 1 leaves them"
    ]


def reading_threads(data: Data, mode: str, scaling: Scaling, resources: Resources) -> int:
    """Return how many threads of each worker read samples while it trains: its share of its node's CPUs.

    They need nothing that Ray would have to keep free, and do in a second what twice as many CPUs do for Ray Data. So
    its tasks read for them only where the nodes without workers have more CPUs than those with workers, and never
    crops of whole images, or what the workers' GPUs decode.

    Args:
        scaling: as `scaled` returns it.

    Returns:
        0 where samples are resident, or read by tasks of Ray Data.
    """
    if mode == "resident" or not (data.direct or data.whole):
        return 0
    cpus, gpus = scaling.cpus_per_worker or 0.0, scaling.gpus_per_worker or 0.0
    counts = resources.placed(scaling.ranks * resources.runs, cpus, gpus, scaling.placement == "spread")
    used = [(node, count) for node, count in zip(resources.by_node, counts, strict=True) if count]
    here = sum(node.cpus for node, _ in used)
    if used and resources.cpus - here > here and not (data.whole or data.on_gpu):
        return 0
    return max(1, min((int(node.cpus) // count for node, count in used), default=1))


def _cpus_per_worker(workers: int, gpus: float, resources: Resources, streams: bool) -> float | None:
    """Return the largest share of at most one CPU with which all workers have room and a CPU is left; None where
    there is none."""
    spare = max(resources.cpus - 1, resources.cpus / 2)
    for share in range(int(min(1.0, spare / workers) * 100 + 1e-6), int(_LEAST_CPUS * 100) - 1, -1):
        cpus = share / 100
        fits = resources.room(cpus, gpus) >= workers
        if fits and (not streams or resources.beside(workers, cpus, gpus) >= DATA_CPUS):
            return cpus
    return None


def _too_many(workers: int, gpus: float, resources: Resources, streams: bool) -> errors.UserError:
    """Return the error for more workers than fit; it names the largest number that does."""
    most = min(workers - 1, resources.room(_LEAST_CPUS, gpus))
    while most and _cpus_per_worker(most, gpus, resources, streams) is None:
        most -= 1
    return _too_few(
        "workers",
        workers,
        most,
        f"scaling.workers ({resources.listed}; a worker takes {_LEAST_CPUS} CPUs at least and one CPU stays "
        "with Ray Data)",
    )


def _no_room_for(workers: int, cpus: float, gpus: float, resources: Resources) -> errors.UserError:
    """Return the error for workers of a given size that do not fit on the nodes."""
    needs = {"cpus": f"{cpus:g} CPUs" if cpus else "", "gpus": f"{gpus:g} GPUs" if gpus else ""}
    each, room = " and ".join(filter(None, needs.values())), resources.room(cpus, gpus)
    return errors.UserError(
        f"{workers} worker{'s' if workers > 1 else ''} of {each} cannot be placed: each needs one node, and "
        f"{resources.listed} hold{'s' if resources.nodes == 1 else ''} {room or 'none'}",
        "in " + " and ".join(f"scaling.{kind}_per_worker" for kind, need in needs.items() if need),
        "request less for each worker" + (", or fewer workers" if room else ""),
    )


def _too_few(resource: str, asked: float, has: float, where: str) -> errors.UserError:
    return errors.UserError(
        f"the run asks for {asked:g} {resource[:-1] if asked == 1 else resource} and the cluster has {has:g}",
        f"in {where}",
        "ask for less, or start more nodes",
    )
