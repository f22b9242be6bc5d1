"""A raw pack that is larger than the memory of the process that reads it: `python benchmarks/beyond_memory.py FOLDER`.

Needs root: a control group limits the memory of a process and of the page cache of its files. In it, plain reads of
single samples in random order by some threads (the disk's rate), epochs of raytrain's reader (which compares checksums)
and of its loader (which also normalises) alternate. The model costs nothing. Rates are MiB of samples in a second.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from raytrain.data import Data, Index, Packed
from raytrain.data.checks import checked_indices
from raytrain.data.loader import Loader, keep_memory
from raytrain.data.reader import Direct, Epoch
from raytrain.tools.pack import pack
from raytrain.tools.pack_settings import Settings

_SHAPE, _BATCH = (3, 256, 256), 64
_AHEAD = 16
"""Batches that the loader reads ahead (`Direct`)."""
_GROUPS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),  # version 1
    (Path("/sys/fs/cgroup"), "memory.max"),
)


@dataclass(frozen=True)
class Noise(Data):
    """Images of random pixels."""

    count: int = 20_000
    """Number of training samples."""

    def index(self) -> dict[str, Index]:
        """Return samples of one class, and one batch for validation."""
        counts = {"train": self.count, "val": _BATCH}
        return {split: Index(np.zeros(n, np.int64), ("a",), _SHAPE, split, np.arange(n)) for split, n in counts.items()}

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        """Return images, uint8 [k, 3, 256, 256]."""
        return np.stack([np.random.default_rng(int(one)).integers(0, 256, _SHAPE, np.uint8) for one in samples])


def plain(folder: Path, threads: int, rows: np.ndarray) -> int:
    """Read samples in threads, one at a time and straight from the shards; return their number."""
    size = int(np.prod(_SHAPE))
    shards = sorted(folder.glob("shard-*.bin"))
    files = [os.open(shard, os.O_RDONLY) for shard in shards]
    for file in files:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    each = shards[0].stat().st_size // size

    def read(some: np.ndarray) -> None:
        buffer = bytearray(size)
        for row in some.tolist():
            os.preadv(files[row // each], [buffer], row % each * size)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(read, np.array_split(rows, threads)))
    for file in files:
        os.close(file)
    return len(rows)


def steady(counts: Iterator[int], steps: int) -> tuple[float, float]:
    """Return what `timed` does of some batches, given the sizes of all, once as many are ahead as there will be: what
    is ahead at the end has been read for nothing."""
    for _ in range(_AHEAD):
        next(counts)
    return timed(lambda: sum(next(counts) for _ in range(steps)))


def timed(work: Callable[[], int]) -> tuple[float, float]:
    """Return MiB in a second, and CPU seconds for a GiB, of what reads some samples and returns their number."""
    spent, began = cpu_seconds(), time.perf_counter()
    size = work() * int(np.prod(_SHAPE))
    return size / (time.perf_counter() - began) / 2**20, (cpu_seconds() - spent) / size * 2**30


def cpu_seconds() -> float:
    """Return the CPU seconds of this process, those of the kernel for it included."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(folder: Path, count: int, rounds: int, steps: int) -> None:
    """Alternate the ways in this process, whose memory is limited, and print a table."""
    torch.set_num_threads(1)
    keep_memory()
    data = Packed(str(folder))
    index = checked_indices(data)["train"]
    reader = Direct(data, index)
    loader = Loader(data, index, reader, _BATCH, 0, 0, 1, torch.device("cpu"), train=True)
    found: dict[str, list[tuple[float, float]]] = {}
    for number in range(rounds + 1):  # the first round warms up
        random = np.random.default_rng(number)
        for threads in (2, 8, 32):
            rows = random.permutation(count)[: steps * _BATCH]
            found.setdefault(f"disk, {threads} threads", []).append(timed(partial(plain, folder, threads, rows)))
        # Each pass has an epoch of its own: others' samples would be in the page cache.
        read = (len(ids) for ids, _ in reader.read(Epoch(loader.shard, 0, 2 * number)))
        found.setdefault("reader", []).append(steady(read, steps))
        batches = (part for step in loader.epoch(2 * number + 1) for part in step.micro_batches(_BATCH))
        found.setdefault("loader", []).append(steady((len(part.images) for part in batches), steps))
    disk = max(statistics.median(rate for rate, _ in ways[1:]) for name, ways in found.items() if "disk" in name)
    print("| way | MiB/s | range | of the disk's best | CPU s per GiB |\n|---|---|---|---|---|")
    for name, (_, *pairs) in found.items():
        rates, cpus = zip(*pairs, strict=True)
        rate, cpu = statistics.median(rates), statistics.median(cpus)
        print(f"| {name} | {rate:,.0f} | {min(rates):,.0f}-{max(rates):,.0f} | {rate / disk:.2f} | {cpu:.2f} |")


def limited(limit: int, command: list[str]) -> int | str:
    """Run a command in a control group whose memory is limited; return its exit status, or why it was killed."""
    base, name = next(((base, name) for base, name in _GROUPS if (base / "cgroup.procs").exists()), (None, ""))
    if base is None or os.geteuid():
        sys.exit("error: no control group for memory can be made here; run as root on Linux")
    group = base / f"raytrain-{os.getpid()}"
    group.mkdir()
    try:
        (group / name).write_text(str(limit))
        enter = f'echo $$ > {group}/cgroup.procs; exec "$@"'
        status = subprocess.run(["sh", "-c", enter, "sh", *command], check=False).returncode
        return status if status >= 0 else f"error: ended by signal {-status}; try a larger --memory"
    finally:
        group.rmdir()


def main() -> None:
    """Pack, and measure in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path(tempfile.gettempdir()), help="on the disk")
    parser.add_argument("--memory", type=float, default=2.0, help="GiB of the limit; the pack is three times as large")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100, help="batches of a round")
    parser.add_argument("--pack", type=Path, help="(of this command itself) the pack to measure")
    given = parser.parse_args()
    limit = int(given.memory * 2**30)
    count = 3 * limit // int(np.prod(_SHAPE))
    if given.pack:
        return measure(given.pack, count, given.rounds, given.steps)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        place = f"{folder}/pack"
        pack(Noise(count=count), place, Settings("raw"), lambda total, done: None, lambda done: None)
        for shard in Path(place).glob("shard-*.bin"):  # the pages that packing left in memory count for others
            with open(shard, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        print(f"{count:,} samples, {3 * given.memory:g} GiB; memory of {given.memory:g} GiB\n", flush=True)
        sys.exit(limited(limit, [sys.executable, *sys.argv, "--pack", place]))


if __name__ == "__main__":
    main()
