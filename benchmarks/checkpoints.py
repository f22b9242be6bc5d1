"""What frequent checkpoints cost: the time of a step with them by that of one without, one after the other (A B A B).

    python benchmarks/checkpoints.py [ROUNDS]

The CNN (16 and 32 channels) on images of MNIST's size, 64 a worker in a batch, fp32, SGD with momentum, one thread a
worker: a step of some milliseconds, and checkpoints of 0.4 MB on the disk that holds temporary files.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from benchmarks import report
from benchmarks.deterministic import side
from benchmarks.harness import compare

SAMPLES, ROUNDS, RANKS = 6_400, 61, (1, 2)


def main() -> None:
    """Prints a row a number of workers."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    data = f"{SAMPLES:,} generated digits; {rounds} rounds, a third of them for every step; 1 thread a worker"
    print("\n".join(report.machine(data)))
    print("| workers | every 10th step: step time, by that without (quartiles) | every step |\n|---|---|---|")
    for ranks in RANKS:
        cells = []
        # One at a time: a turn and the one that it is compared with are next to each other.
        for every, turns in ((10, rounds), (1, max(rounds // 3, 1))):
            overrides: dict[str, Any] = {"checkpoint.every_steps": every}
            ours = side(ranks, SAMPLES, **overrides)
            times = [1 / ratio for ratio in compare(ours, side(ranks, SAMPLES), turns).ratios]
            low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
            cells.append(f"{statistics.median(times):.3f} ({low:.3f} to {high:.3f})")
        print(f"| {ranks} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
