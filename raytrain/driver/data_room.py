"""Where samples have room: a node's memory, Ray's object store, and the disk; and how fast they can be read."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from raytrain.data import Data, Images, Index, Manifest, Packed, cache, decode, table_cells, tables
from raytrain.driver.resources import THIS_MACHINE, Resources
from raytrain.driver.sizing import reading_threads
from raytrain.errors import BadSample, no_room
from raytrain.experiment import Experiment
from raytrain.files import is_url, size
from raytrain.order import spread
from raytrain.training.threads import threads

_SHARE = 0.25
"""Share of the smallest node's memory up to which samples may be resident."""
_COPIED = 2 << 30
"""Bytes up to which raw samples, which each rank could read by itself, are resident: a GPU may keep them."""
_STORE_SHARE, _STORE_MOST = 0.3, 200 * 10**9
"""Share of a node's memory that Ray's object store takes, and its bytes at most (Ray's `services.py`), where Ray does
not run yet."""
_SHM = "/dev/shm"
"""Where Ray keeps the object store; with less room there, it takes the disk, which is slow."""
_READ, _SECONDS = 32, 0.5
"""Samples that are read to measure, and the seconds after which no further one is."""
_FETCHED = 8
"""Samples that are fetched from a URL to measure: the first ones, which are in one shard or row group."""
_LARGE_GROUP = 1 << 30
"""Bytes of a row group from which the plan warns of it."""
_TRAINED, _SLOW_SECONDS = 16, 0.5
"""Samples of a pass that measures the model, and the seconds of a pass of one sample after which no other follows."""
_SHOWN_FROM = 64 << 20
"""Bytes of resident samples from which /dev/shm is looked at: less always has room."""


def resident_room(resources: Resources) -> int:
    """Return the bytes that resident samples may take on each node: a quarter of its memory, and the same part of what
    the object store holds."""
    store = resources.store or min(resources.memory * _STORE_SHARE, _STORE_MOST)
    return int(min(resources.memory * _SHARE, store * _SHARE / _STORE_SHARE))


def total_bytes(indices: dict[str, Index]) -> int:
    """Return the size of the samples that training and validation read."""
    return sum(indices[split].bytes for split in ("train", "val"))


def mode(data: Data, indices: dict[str, Index], resources: Resources) -> Literal["resident", "streaming"]:
    """Return where images are kept.

    Raises:
        UserError: they are to be resident and do not fit.
    """
    if data.whole or data.on_gpu:
        return "streaming"
    total, room = total_bytes(indices), resident_room(resources)
    if data.mode == "auto":
        return "resident" if total <= (min(room, _COPIED) if data.raw else room) else "streaming"
    if data.mode == "resident" and total > room:
        raise no_room(
            "keeping all samples resident", total, room, "in data.mode", "use --data.mode streaming, or smaller samples"
        )
    return data.mode


def notes(
    experiment: Experiment,
    indices: dict[str, Index],
    resources: Resources,
    mode: str,
    module: nn.Module,
    resumed: bool = False,
) -> list[str]:
    """Return why samples are streamed, how fast they can be read, and whether that or the model is the bottleneck; or
    that resident samples have no room in shared memory; and what takes long or room elsewhere.

    Args:
        experiment: with its scaling decided.
        module: the model, whose weights stay as they are.
        resumed: whether the run goes on.
    """
    data = experiment.data
    more = [*_large_groups(data), *_elsewhere(data, resources)]
    if mode == "resident":
        total = total_bytes(indices)
        return [*_shared_memory(total, resources), *_cached(data, indices["train"], total), *more]
    return [*_streamed(experiment, indices, resources, module), *more, *([] if resumed else _read_first(data, indices))]


def _large_groups(data: Data) -> list[str]:
    """Return a note about row groups of Parquet files that take long to read for each image."""
    if not isinstance(data, Manifest) or not data.bytes:
        return []
    largest = table_cells.largest_group(tables.files(data.root), data.bytes)
    if largest <= _LARGE_GROUP:
        return []
    how = "write the table again with row_group_size=1000, or `raytrain pack` it"
    return [f"row groups of up to {size(largest)} are read whole, by each process: {how}"]


def _read_first(data: Data, indices: dict[str, Index]) -> list[str]:
    """Return a note where all samples are read before training, since the disk cache has not which of them are bad."""
    if data.on_bad_sample != "skip" or all(_known(data, indices[split]) for split in ("train", "val")):
        return []
    return ["all samples are read before the first step, to find those to skip (data.on_bad_sample)"]


def _known(data: Data, index: Index) -> bool:
    entry = data.cache_entry(index)
    return entry is not None and cache.load_bad(entry, index) is not None


def _elsewhere(data: Data, resources: Resources) -> list[str]:
    """Return a note where other machines than this one fetch shards."""
    here = (THIS_MACHINE, socket.gethostname())
    if not isinstance(data, Packed) or not is_url(data.root) or all(one.name in here for one in resources.by_node):
        return []
    return ["each node fetches shards to its own disk, and this machine's is the only one whose room is known"]


def _streamed(experiment: Experiment, indices: dict[str, Index], resources: Resources, module: nn.Module) -> list[str]:
    """Return why samples are streamed, and how fast that is."""
    data = experiment.data
    total, room = total_bytes(indices), resident_room(resources)
    why = "data.mode is streaming"
    if data.mode == "auto" and total > room:
        limit = "a quarter of its memory" if room == int(resources.memory * _SHARE) else "Ray's object store"
        why = f"{size(total)} are more than the {size(room)} that a node may keep ({limit})"
    elif data.mode == "auto":
        return []
    remote = _remote(data, indices["train"])
    measure = _decoding_rate if remote else _rate
    rate = None if data.on_gpu else measure(data, indices["train"])
    if not rate:
        return [f"samples are streamed: {why}"]
    threads = reading_threads(data, "streaming", experiment.scaling, resources) * experiment.scaling.ranks
    count, unit = (threads, "thread") if threads else (resources.cpus, "CPU")
    on = f"{count:g} {unit}{'s' if count != 1 else ''}"
    most = f"at most {_rounded(rate * count)} samples/s on {on}, {_rounded(rate)} by each"
    trained = None  # on GPUs and on other machines the model's rate is not known here
    if resources.where == THIS_MACHINE and not experiment.scaling.gpus_per_worker:
        trained = _training_rate(module, data.sample(indices["train"]), indices["train"].input.seen_as)
    limit = "a model that is faster waits for it"
    if trained is not None:
        bottleneck = "the model" if trained < rate else "decoding" if remote else "reading"
        bottleneck += " is the bottleneck" + (", if the network is not" if remote else "")
        limit = f"one CPU trains the model on about {_rounded(trained)} samples/s: {bottleneck}"
    work = "decoding, without the network," if remote else "reading"
    return [f"samples are streamed: {why}; {work} does {most}, and {limit}"]


def _training_rate(module: nn.Module, sample: tuple[int, ...], dtype: str) -> float | None:
    """Return the samples that one thread takes forward and backward through the model in a second; None where a plain
    pass does not work, as on the meta device."""
    if any(parameter.is_meta for parameter in module.parameters()):
        return None
    try:
        with threads(1), torch.random.fork_rng(devices=[]), torch.enable_grad():
            seconds = _pass_seconds(module, 1, sample, dtype)
            if seconds > _SLOW_SECONDS:
                return 1 / min(seconds, _pass_seconds(module, 1, sample, dtype))  # the first one loads kernels
            _pass_seconds(module, _TRAINED, sample, dtype)  # the first one of a size takes its memory
            return _TRAINED / _pass_seconds(module, _TRAINED, sample, dtype)
    except Exception:
        return None
    finally:
        module.zero_grad(set_to_none=True)


def _pass_seconds(module: nn.Module, count: int, sample: tuple[int, ...], dtype: str) -> float:
    inputs = torch.zeros(count, *sample, dtype=getattr(torch, dtype))
    began = time.perf_counter()
    module(inputs).float().mean().backward()
    return time.perf_counter() - began


def _shared_memory(total: int, resources: Resources) -> list[str]:
    if resources.where != THIS_MACHINE or total < _SHOWN_FROM or not os.path.isdir(_SHM):
        return []
    found = os.statvfs(_SHM)
    free = found.f_bavail * found.f_frsize
    if free >= total:
        return []
    return [
        f"{size(total)} of resident samples do not fit into {_SHM} ({size(free)} free), so Ray keeps them on the disk: "
        "give it more (docker run --shm-size), or use --data.mode streaming"
    ]


def _cached(data: Data, index: Index, total: int) -> list[str]:
    """Return a note where the disk cache has no room for all decoded images of a run."""
    if not isinstance(data, Images) or data.cache == "off":
        return []
    folder = cache.folder(data.cache)
    most = cache.limit(folder, data.cache_size)
    if total <= most or data.cache_entry(index) is None:
        return []
    how = "--data.cache_size gives it more"
    if cache.limit(folder, total / 2**30 + 1) < total:  # its disk has no room for them
        how = f"make room on the disk of {folder}, or name a folder of another by --data.cache"
    return [f"not all of {size(total)} of decoded images fit into the cache, which may take {size(most)}: {how}"]


def _remote(data: Data, index: Index) -> bool:
    """Return whether samples are at a URL."""
    where = data.where(index, 0) if isinstance(data, Images) else ""
    return is_url(where) or is_url(str(getattr(data, "root", "")))


def _rate(data: Data, index: Index) -> float | None:
    """Return the samples that one thread reads in a second; None where none is read."""
    return _measured(lambda sample: data.read(index, np.array([sample])), spread(len(index), _READ))


def _decoding_rate(data: Data, index: Index) -> float | None:
    """Return the samples at a URL that one thread decodes in a second; None where they are not images to decode."""
    if not isinstance(data, Images) or not data.decodes:
        return None
    try:
        fetched = list(data.encoded(index, np.arange(min(len(index), _FETCHED))))
    except BadSample:
        return None
    channels, side, _ = index.input.shape

    def decoded(raw: bytes) -> None:
        try:
            decode.square(raw, side, channels, data.resampling, data.squashed)
        except ValueError as error:
            raise BadSample("", str(error)) from None

    return _measured(decoded, fetched)


def _measured(work: Callable[[Any], Any], items: Iterable[Any]) -> float | None:
    """Return how many items one thread does in a second; bad samples are left out."""
    seconds = list[float]()
    for item in items:
        began = time.perf_counter()
        try:
            work(item)
        except BadSample:
            continue
        seconds.append(time.perf_counter() - began)
        if sum(seconds[1:]) > _SECONDS:  # the first one loads libraries
            break
    return (len(seconds) - 1) / sum(seconds[1:]) if len(seconds) > 1 else None


def _rounded(rate: float) -> str:
    """Return a measured rate with two digits."""
    return f"{float(f'{rate:.2g}'):,.0f}" if rate >= 1 else f"{rate:.2g}"
