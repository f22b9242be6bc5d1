"""The use of the machine that rank 0 trains on."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from raytrain.hooks.base import Hook


@dataclass(frozen=True)
class SystemMetrics(Hook):
    """Adds columns to the rows of epochs and validations. They are sampled about twice a second on rank 0's node:

    - `cpu_percent`: the share of all CPUs' time that was in use since the row before.
    - `memory_bytes`: the most of the node's memory that was in use.
    - `gpu_percent`: the mean share of the time in which rank 0's GPU ran a kernel, if nvidia-ml-py is installed.
    - `gpu_memory_bytes`: the most of that GPU's memory that was in use, by all processes.

    A system without /proc has the GPU's alone.
    """

    @cached_property
    def _samples(self) -> dict[str, list[float]]:
        """By column, since the last row. Not in `state`: a checkpoint does not need them."""
        return {}

    @cached_property
    def _cpu(self) -> list[tuple[int, int]]:
        """The CPU times at the last row: those in use, and all."""
        return []

    def start(self, trainer: Any) -> None:
        """Begin to count CPU times."""
        self._cpu[:] = _cpu_times()
        self._samples.clear()

    def after_losses(self, trainer: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        """Take a sample."""
        if trainer.ranks.rank == 0:
            for name, value in {**_memory(), **_gpu(trainer.ranks.device)}.items():
                self._samples.setdefault(name, []).append(value)

    def after_validation(self, trainer: Any, row: Mapping[str, Any]) -> dict[str, float]:
        """See the base class."""
        found: dict[str, float] = {}
        if (now := _cpu_times()) and self._cpu:
            busy, whole = (new - old for new, old in zip(now[0], self._cpu[0], strict=True))
            found["cpu_percent"] = 100 * busy / max(whole, 1)
        self._cpu[:] = now
        for name, values in self._samples.items():
            found[name] = max(values) if name.endswith("bytes") else sum(values) / len(values)
        self._samples.clear()
        return found

    def after_epoch(self, trainer: Any, row: Mapping[str, Any]) -> dict[str, float]:
        """See the base class."""
        return self.after_validation(trainer, row)


def _cpu_times() -> list[tuple[int, int]]:
    """Return the times of all CPUs, in use and whole, in ticks (proc_stat(5)); none where the system does not say."""
    with contextlib.suppress(OSError, ValueError):
        times = [int(one) for one in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return [(sum(times) - times[3] - times[4], sum(times))]  # without idle and iowait
    return []


def _memory() -> dict[str, float]:
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        kilobytes = {words[0]: int(words[1]) for words in lines}
        return {"memory_bytes": 1024 * (kilobytes["MemTotal:"] - kilobytes["MemAvailable:"])}
    return {}


def _gpu(device: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    if device.type == "cuda":
        cuda = importlib.import_module("torch.cuda")
        with contextlib.suppress(Exception):  # the driver does not say, as of a slice of a GPU
            free, whole = cuda.mem_get_info(device)
            found["gpu_memory_bytes"] = whole - free
        with contextlib.suppress(Exception):  # also where nvidia-ml-py is not installed
            found["gpu_percent"] = cuda.utilization(device)
    return found
