"""What `Deterministic()` costs: samples per second with it by those without it, one after the other (A B A B).

    python benchmarks/deterministic.py [ROUNDS]

The CNN (16 and 32 channels) on images of MNIST's size, 64 a worker in a batch, fp32, SGD with momentum, one thread a
worker. `micro-batches` has the same forward passes without it, by gradients that accumulate: what small passes cost.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from benchmarks import dataset, report
from benchmarks.harness import Side, compare_each
from benchmarks.side import Workload

SAMPLES, ROUNDS, BATCH, RANKS = 6_400, 9, 64, (1, 2, 4)


def side(ranks: int, samples: int = SAMPLES, *, strategy: str = "ddp", **overrides: Any) -> Side:
    """raytrain with a parallel strategy and some fields of its experiment."""
    overrides["parallel.strategy"] = strategy
    folder = str(dataset.prepare(samples, None))
    return Side("raytrain", Workload(folder, samples, "cnn", batch_size=BATCH, ranks=ranks, overrides=overrides))


def main() -> None:
    """Prints a row a number of workers."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    print("\n".join(report.machine(f"{SAMPLES:,} generated digits; {rounds} rounds; 1 thread a worker")))
    print("| workers | deterministic (range) | micro-batches (range) |\n|---|---|---|")
    for ranks in RANKS:
        ours = [side(ranks, strategy="deterministic"), side(ranks, micro_batch_size=BATCH * ranks // 4)]
        found = [one.ratios for one in compare_each(ours, side(ranks), rounds)]
        cells = (f"{statistics.median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in found)
        print(f"| {ranks} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
