"""What this process may use of its machine: CPUs and memory, within the limits of its container or job."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def host_memory() -> int:
    """Return bytes of this machine's memory, or of the container's or the job's where that is less."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [*_limits("memory", "memory.limit_in_bytes"), *_limits("", "memory.max")]
    return min([whole, *(int(limit[0]) for limit in limits)])


def host_cpus() -> int:
    """Return the CPUs that this process may use, or as many as its container or job has the time of, where that is
    less; a part of one is left out, as Ray does it."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    times = [*_limits("cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us"), *_limits("", "cpu.max")]
    return max(1, min([cpus, *(int(quota / period) for quota, period in times if quota > 0)]))


def _limits(controller: str, *files: str) -> Iterator[tuple[float, ...]]:
    """Yield the numbers that the control groups of this process have in some files, where they limit something.

    Args:
        controller: of version 1, or empty for version 2.
    """
    top = _GROUPS / controller
    with contextlib.suppress(OSError):
        for line in _OWN.read_text().splitlines():
            _, kinds, name = line.split(":", 2)
            if controller not in kinds.split(","):
                continue
            inner = top / name.lstrip("/")  # a container may not see it: its own group is the root that it sees
            for group in (top, *(one for one in (inner, *inner.parents) if top in one.parents)):
                with contextlib.suppress(OSError, ValueError):  # "max" is no limit
                    yield tuple(float(number) for file in files for number in (group / file).read_text().split())
