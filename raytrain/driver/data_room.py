"""Where samples have room: a node's memory, Ray's object store, and the disk; and how fast they can be read."""

from __future__ import annotations

import os
import time
from typing import Literal

import numpy as np
import torch
from torch import nn

from raytrain.data import Data, Index
from raytrain.driver.resources import Resources
from raytrain.errors import BadSample, no_room
from raytrain.experiment import Experiment
from raytrain.files import size

_SHARE = 0.25
"""Share of the smallest node's memory up to which samples may be resident."""
_COPIED = 2 << 30
"""Bytes up to which raw samples, which each rank could read by itself, are resident: a GPU may keep them."""
_STORE_SHARE, _STORE_MOST = 0.3, 200 * 10**9
"""Share of a node's memory that Ray's object store takes, and its bytes at most (Ray's `services.py`)."""
_SHM = "/dev/shm"
"""Where Ray keeps the object store; with less room there, it takes the disk, which is slow."""
_READ, _SECONDS = 32, 0.5
"""Samples that are read to measure, and the seconds after which no further one is."""
_TRAINED, _SLOW_SECONDS = 16, 0.5
"""Samples of a pass that measures the model, and the seconds of a pass of one sample after which no other follows."""
_SHOWN_FROM = 64 << 20
"""Bytes of resident samples from which /dev/shm is looked at: less always has room."""


def resident_room(resources: Resources) -> int:
    """Return the bytes that resident samples may take on each node: a quarter of its memory, and the same part of what
    the object store holds at most."""
    return int(min(resources.memory * _SHARE, _STORE_MOST * _SHARE / _STORE_SHARE))


def mode(data: Data, indices: dict[str, Index], resources: Resources) -> Literal["resident", "streaming"]:
    """Return where images are kept.

    Raises:
        UserError: they are to be resident and do not fit.
    """
    if data.whole or data.on_gpu:
        return "streaming"
    total, room = sum(indices[split].bytes for split in ("train", "val")), resident_room(resources)
    if data.mode == "auto":
        return "resident" if total <= (min(room, _COPIED) if data.raw else room) else "streaming"
    if data.mode == "resident" and total > room:
        raise no_room(
            "keeping all samples resident", total, room, "in data.mode", "use --data.mode streaming, or smaller samples"
        )
    return data.mode


def notes(
    experiment: Experiment, indices: dict[str, Index], resources: Resources, mode: str, module: nn.Module
) -> list[str]:
    """Return why samples are streamed, how fast they can be read, and whether that or the model is the bottleneck; or
    that resident samples have no room in shared memory.

    Args:
        experiment: with its scaling decided.
        module: the model, whose weights stay as they are.
    """
    data = experiment.data
    total, room = sum(indices[split].bytes for split in ("train", "val")), resident_room(resources)
    if mode == "resident":
        return _shared_memory(total, resources)
    why = "data.mode is streaming"
    if data.mode == "auto" and total > room:
        limit = "a quarter of its memory" if room < int(_STORE_MOST * _SHARE / _STORE_SHARE) else "Ray's object store"
        why = f"{size(total)} are more than the {size(room)} that a node may keep ({limit})"
    elif data.mode == "auto":
        return []
    rate = None if data.on_gpu else _rate(data, indices["train"])
    if not rate:
        return [f"samples are streamed: {why}"]
    cpus = f"{resources.cpus:g} CPU" + ("s" if resources.cpus != 1 else "")
    most = f"at most {_rounded(rate * resources.cpus)} samples/s on {cpus}, {_rounded(rate)} by each"
    trained = None  # on GPUs and on other machines the model's rate is not known here
    if resources.where == "this machine" and not experiment.scaling.gpus_per_worker:
        trained = _training_rate(module, data.sample(indices["train"]), indices["train"].input.seen_as)
    limit = "a model that is faster waits for it"
    if trained is not None:
        bottleneck = "the model" if trained < rate else "reading"
        limit = f"one CPU trains the model on about {_rounded(trained)} samples/s: {bottleneck} is the bottleneck"
    return [f"samples are streamed: {why}; reading does {most}, and {limit}"]


def _training_rate(module: nn.Module, sample: tuple[int, ...], dtype: str) -> float | None:
    """Return the samples that one thread takes forward and backward through the model in a second; None where a plain
    pass does not work, as on the meta device."""
    if any(parameter.is_meta for parameter in module.parameters()):
        return None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            seconds = _pass_seconds(module, 1, sample, dtype)
            if seconds > _SLOW_SECONDS:
                return 1 / min(seconds, _pass_seconds(module, 1, sample, dtype))  # the first one loads kernels
            _pass_seconds(module, _TRAINED, sample, dtype)  # the first one of a size takes its memory
            return _TRAINED / _pass_seconds(module, _TRAINED, sample, dtype)
    except Exception:
        return None
    finally:
        module.zero_grad(set_to_none=True)
        torch.set_num_threads(threads)


def _pass_seconds(module: nn.Module, count: int, sample: tuple[int, ...], dtype: str) -> float:
    inputs = torch.zeros(count, *sample, dtype=getattr(torch, dtype))
    began = time.perf_counter()
    module(inputs).float().mean().backward()
    return time.perf_counter() - began


def _shared_memory(total: int, resources: Resources) -> list[str]:
    if resources.where != "this machine" or total < _SHOWN_FROM or not os.path.isdir(_SHM):
        return []
    found = os.statvfs(_SHM)
    free = found.f_bavail * found.f_frsize
    if free >= total:
        return []
    return [
        f"{size(total)} of resident samples do not fit into {_SHM} ({size(free)} free), so Ray keeps them on the disk: "
        "give it more (docker run --shm-size), or use --data.mode streaming"
    ]


def _rate(data: Data, index: Index) -> float | None:
    """Return the samples that one thread reads in a second; None where the network decides that, or none is read."""
    if "://" in str(getattr(data, "root", "")):
        return None
    done, began = 0, time.perf_counter()
    for sample in np.unique(np.linspace(0, len(index) - 1, min(len(index), _READ)).astype(np.int64)):
        try:
            data.read(index, np.array([sample]))
        except BadSample:
            continue
        done += 1
        if done == 1:  # the first one loads libraries
            began = time.perf_counter()
        elif time.perf_counter() - began > _SECONDS:
            break
    return (done - 1) / (time.perf_counter() - began) if done > 1 else None


def _rounded(rate: float) -> str:
    """Return a measured rate with two digits."""
    return f"{float(f'{rate:.2g}'):,.0f}" if rate >= 1 else f"{rate:.2g}"
