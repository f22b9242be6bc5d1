"""What frequent checkpoints cost: the time of a step with them by that of one without, one after the other (A B A B).

    python benchmarks/checkpoints.py [ROUNDS]

The CNN (16 and 32 channels) on images of MNIST's size, 64 a worker in a batch, fp32, SGD with momentum, one thread a
worker: a step of some milliseconds, and checkpoints of 0.4 MB on the disk that holds temporary files.
"""

from __future__ import annotations

import statistics
import sys

from benchmarks import report
from benchmarks.deterministic import side
from benchmarks.harness import compare_each

SAMPLES, ROUNDS, RANKS = 6_400, 41, (1, 2)


def main() -> None:
    """Prints a row a number of workers."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    print("\n".join(report.machine(f"{SAMPLES:,} generated digits; {rounds} rounds; 1 thread a worker")))
    print("| workers | every 10th step: step time, by that without (range) | every step |\n|---|---|---|")
    for ranks in RANKS:
        ours = [side(ranks, SAMPLES, **{"checkpoint.every_steps": every}) for every in (10, 1)]
        found = [[1 / ratio for ratio in one.ratios] for one in compare_each(ours, side(ranks, SAMPLES), rounds)]
        cells = (f"{statistics.median(each):.3f} ({min(each):.3f} to {max(each):.3f})" for each in found)
        print(f"| {ranks} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
