"""A worker from its start to its end: its job, its output, and its record of an error."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import ray
import torch
import torch.distributed as dist

from raytrain import errors
from raytrain.checkpoint import mapped, remote, storage
from raytrain.data import Index
from raytrain.data.decode_gpu import Decoder
from raytrain.data.loader import Reader
from raytrain.data.reader import Direct, Part, Resident
from raytrain.data.streaming import Streaming
from raytrain.driver import gpu_errors, logs
from raytrain.driver.blame import last_place, misses_another, of_gpu, to_edit
from raytrain.driver.gate import Gate
from raytrain.driver.guard import end_now
from raytrain.driver.job import Job
from raytrain.driver.network import answers
from raytrain.driver.room import cpus_for_data, why_no_block
from raytrain.experiment import Experiment, Scaling
from raytrain.files import append, write_atomically
from raytrain.hooks import Hook
from raytrain.machine import host_cpus
from raytrain.parallel.strategy import RankContext
from raytrain.run.lock import WRITER_LOCK, Lock
from raytrain.run.metrics_log import note
from raytrain.training import memory, stages
from raytrain.training.profiling import Profiling
from raytrain.training.trainer import Trainer
from raytrain.user_code import places
from raytrain.watchdog import Hang, Hung, Watchdog, doing

_CUT_OFF_SECONDS, _ASK_SECONDS = 20.0, 2.0
"""Seconds for which the cluster's head may be out of reach, and seconds between checks."""
_STORE_SECONDS, _END_SECONDS = 10.0, 10.0
"""When a rank hangs: how long the process group's store may take to answer, and what comes before the end of the
process: a record on storage; in the driver, the unwinding of the main thread and Ray's end."""


def work(job: Job, hooks: Sequence[Hook] = (), unwind: Callable[[BaseException], None] | None = None) -> None:
    """Train as one rank: of the process group that is there, or alone.

    Args:
        hooks: called by the trainer.
        unwind: raises `Hung` in the main thread where training hangs; without it, the process ends.
    """
    job.experiment.parallel.prepare_process()
    ranks = _rank(job.experiment.scaling)
    there = None
    if job.url:
        there, path = remote.at_work(job.url)
        job = replace(job, run=path)
    if dist.is_initialized():
        address = ray.get_runtime_context().gcs_address
        threading.Thread(target=_end_when_cut_off, args=(address,), daemon=True, name="head").start()
        _mark_place(job, ranks.rank, there)
    with (
        _recorded(job, ranks.rank, there),
        _watched(job, ranks, there, unwind),
        Lock(job.run, WRITER_LOCK, wait=60) if ranks.rank == 0 else contextlib.nullcontext(),
    ):
        indices: dict[str, Index] = ray.get(job.indices)
        weights = _weights(job)
        hooks = list(hooks)
        if job.profile:
            hooks.append(Profiling(job.profile))
        if job.gated:
            hooks.append(Gate())

        @contextlib.contextmanager
        def made(value: Experiment, hook: Hook) -> Iterator[Trainer]:
            readers = _readers(replace(job, experiment=value), indices, ranks.device)
            try:
                yield Trainer(
                    value,
                    job.run,
                    indices,
                    readers,
                    weights,
                    ranks,
                    job.command_started,
                    storage=there,
                    hooks=[*hooks, hook],
                    baseline=job.baseline,
                )
            finally:
                for reader in readers.values():
                    if isinstance(reader, Direct):
                        reader.close()

        stages.fit(job.experiment, made)


def _rank(scaling: Scaling) -> RankContext:
    """Return this rank, with its GPU as the process's own and its share of the GPU's memory as the limit."""
    if dist.is_initialized():
        from ray.train.torch import get_devices  # 0.2 s, which a rank alone does not need

        device, *more = get_devices()
        waits = scaling.collective_seconds
        ranks = RankContext(dist.get_rank(), dist.get_world_size(), device, tuple(more), collective_seconds=waits)
    else:
        ranks = RankContext.alone(scaling.gpus_per_worker)
    if ranks.device.type == "cuda":
        torch.cuda.set_device(ranks.device)
        share = scaling.gpus_per_worker or 1.0
        if dist.is_initialized() and share < 1:
            memory.cap_gpus(share)  # a trial without a process group has its own limit
    return ranks


def _mark_place(job: Job, rank: int, there: storage.Storage | None) -> None:
    """Write where this rank runs, for the driver: node, host and process, and where its part of the log begins."""
    here: dict[str, Any] = {
        "node": ray.get_runtime_context().get_node_id(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    with contextlib.suppress(OSError):  # what was there before is of a process that is gone
        here["log"] = (job.run / "logs" / f"rank_{rank}.log").stat().st_size
    name = f"logs/place_{rank}.json"
    write_atomically(job.run / name, json.dumps(here))
    if there:
        there.write(name, json.dumps(here).encode())


def put_weights(value: Experiment, weights: dict[str, torch.Tensor] | None) -> Any:
    """Put initial weights into the object store; return a reference, or None where there are none. Of a model that is
    spread they are arrays, which each rank maps and reads in part."""
    if weights is None:
        return None
    return ray.put(mapped.arrays(weights) if value.parallel.spreads else weights)


def _weights(job: Job) -> dict[str, torch.Tensor] | None:
    """Return what `put_weights` has put."""
    if job.weights is None:
        return None
    found: Any = ray.get(job.weights)
    return mapped.from_arrays(found) if job.experiment.parallel.spreads else found


def _readers(job: Job, indices: dict[str, Index], device: torch.device) -> Mapping[str, Reader]:
    """Return what the samples come from. A collective."""
    if job.images:
        return {split: _resident(job.images[split]) for split in indices}
    return _streams(job, indices, device)


def _fetched(reference: Any) -> Any:
    """Return an object of Ray's object store. Images from another node may take long; the wait counts as progress."""
    while not ray.wait([reference], timeout=1)[0]:
        doing.tick()
    return ray.get(reference)


def _resident(reference: Any) -> Resident:
    found = _fetched(reference)
    return Resident(_fetched(found.arrays), found.rows) if isinstance(found, Part) else Resident(found)


def _streams(job: Job, indices: dict[str, Index], device: torch.device) -> dict[str, Reader]:
    """Return what reads the samples while training goes on. A collective."""
    data = job.experiment.data
    if job.threads:
        threads, decoder = min(job.threads, host_cpus()), Decoder(device) if data.on_gpu else None
        return {split: Direct(data, index, threads, complete=True, decoder=decoder) for split, index in indices.items()}
    cpus, waits = _data_cpus(job)
    return {
        split: Streaming(data, index, ray.put(index), cpus, waits, job.tasks or None)
        for split, index in indices.items()
    }


def _data_cpus(job: Job) -> tuple[float, Callable[[float], None]]:
    """Return the CPUs that a task of Ray Data requests besides this run's workers, and a function that notes a wait. A
    collective.

    The tasks of a sweep's trial request none: its reservation counts for them too. Else another trial, of this sweep or
    of another one, could reserve what they wait for, and wait likewise.

    Raises:
        UserError: the workers leave no CPU.
    """
    each = job.experiment.scaling.cpus_per_worker or 0.0
    places: list[Any] = [None]
    if dist.is_initialized():
        places *= dist.get_world_size()
        dist.all_gather_object(places, ray.get_runtime_context().get_node_id())
    if job.tasks:
        cpus = 0.0
    elif dist.is_initialized():
        cpus = cpus_for_data(each, Counter(places))
    else:  # the driver trains, and holds no CPU
        cpus = min(1.0, max(node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]) / 2)
    first = places[0] in (None, ray.get_runtime_context().get_node_id())

    def waits(seconds: float) -> None:
        if first:  # the node of rank 0, from which notes reach the driver
            note(job.run, why_no_block(seconds, cpus, each, Counter(places)))

    return cpus, waits


def _end_when_cut_off(address: str) -> None:
    """End this process when the cluster's head has been out of reach for long. The other workers continue without it,
    and it must release the run; otherwise it would wait for them while the network is silent."""
    host, _, port = address.rpartition(":")
    heard = None
    while True:
        if answers(host, int(port)):
            heard = time.monotonic()
        elif heard is not None and time.monotonic() > heard + _CUT_OFF_SECONDS:
            print(f"error: {address} did not answer for {_CUT_OFF_SECONDS:g} s: this node is cut off", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)
        time.sleep(_ASK_SECONDS)


@contextlib.contextmanager
def _recorded(job: Job, rank: int, there: storage.Storage | None = None) -> Iterator[None]:
    """Send a worker's output to the run's logs, and write a record of an error there, with its time."""
    log = job.run / "logs" / f"rank_{rank}.log"
    try:
        if job.own_output:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        with logs.bounded(log, logs.rank_limit(ranks)):
            yield
    except Hung:  # which has its record
        raise
    except BaseException as caught:
        error = of_gpu(caught)
        with contextlib.suppress(OSError):  # a full disk must not hide the error
            if job.own_output or dist.is_initialized():
                traceback.print_exc()
            else:  # the command's own output says it in one line
                append(log, traceback.format_exc())
        known = isinstance(error, errors.UserError)  # which says where by itself
        at = "" if known else places.line_of(error) or last_place(error)
        record = {
            "time": time.time(),
            "lost": gpu_errors.lost(error) or misses_another(error),
            "gpu": gpu_errors.lost(error),
            "rank": rank,
            "error": str(error) if known else f"{type(error).__name__}: {gpu_errors.explain(error) or error}",
            "at": at,
            "edit": to_edit(error, at),
            "traceback": traceback.format_exc(),
        }
        _write_record(job, record, there)
        raise


def _write_record(job: Job, record: dict[str, Any], there: storage.Storage | None) -> None:
    name = f"logs/rank_{record['rank']}.json"
    with contextlib.suppress(OSError):  # as above
        write_atomically(job.run / name, json.dumps(record))
        if there:
            there.write(name, json.dumps(record).encode())


def _watched(
    job: Job, ranks: RankContext, there: storage.Storage | None, unwind: Callable[[BaseException], None] | None
) -> contextlib.AbstractContextManager[object]:
    """Return the context in which this rank is ended, with a record of what it did, if it hangs."""

    def hung(hang: Hang) -> None:
        own = {"time": time.time(), "lost": hang.error, "hung": True, "rank": ranks.rank, "error": hang.error}
        record = own | {"at": hang.at, "traceback": hang.stack}
        line = f"rank {ranks.rank} {hang.error} ({hang.at})"

        def leave() -> None:
            _write_record(job, record, there)
            if unwind is not None:  # standard error is the command's own
                with contextlib.suppress(OSError):
                    append(job.run / "logs" / f"rank_{ranks.rank}.log", f"{hang.stack}{line}\n")

        _in_time(leave, _END_SECONDS)  # storage may be what hangs
        if unwind is None:
            end_now(f"{hang.stack}{line}", 1)
        else:
            unwind(Hung(line))
            if not watchdog.ended.wait(_END_SECONDS):
                _in_time(ray.shutdown, _END_SECONDS)
                where = there.url if there else job.run
                end_now(
                    f"error: the run failed: {errors.one_line(line)}; go on with {errors.command('resume', where)}", 1
                )

    seconds = job.experiment.scaling.hang_seconds
    if not job.watched or not seconds:
        return contextlib.nullcontext()
    store: Any = None
    if dist.is_initialized():
        # A connection of its own: the main thread may wait for a key with the other one.
        store = cast(Any, dist.group.WORLD).get_group_store().clone()
        store.set_timeout(timedelta(seconds=_STORE_SECONDS))
    watchdog = Watchdog(ranks.rank, ranks.world, seconds, store, hung)
    return watchdog


def _in_time(do: Callable[[], object], seconds: float) -> None:
    """Call a function, and continue without it if it takes too long."""
    thread = threading.Thread(target=do, daemon=True, name="end")
    thread.start()
    thread.join(seconds)
