"""Two ratios that need no quiet machine, for continuous integration: is the loop, or the loader, slower than it was?

    python benchmarks/regression.py

The best of several rounds counts and the floors lie well below the goals of `rows.py`, so that a busy machine passes
and a real slow-down does not.
"""

from __future__ import annotations

import sys

from benchmarks import dataset
from benchmarks.harness import Side, compare
from benchmarks.side import Workload

LOOP_FLOOR = 0.85
"""raytrain's loop by compute alone; the goal is 0.98."""
LOADER_FLOOR = 4.0
"""raytrain's loader by Ray Data's materialised one; the goal is 8."""

SAMPLES, ROUNDS = 6_400, 7


def loop_ratio() -> float:
    """Samples per second of raytrain's loop by those of the same model on random batches, MLP 784-512-512-10."""
    workload = _workload()
    return max(compare(Side("raytrain", workload), Side("compute", workload), ROUNDS).ratios)


def loader_ratio() -> float:
    """Samples per second of raytrain's loader alone by those of Ray Data's, whose data set is materialised."""
    workload = _workload(loader_alone=True)
    return max(compare(Side("raytrain", workload), Side("ray_materialised", workload), ROUNDS).ratios)


def _workload(loader_alone: bool = False) -> Workload:
    return Workload(str(dataset.prepare(SAMPLES, None)), SAMPLES, loader_alone=loader_alone)


def main() -> int:
    """Returns 1, with a line a ratio that is below its floor."""
    ratios = {"loop / compute alone": (loop_ratio(), LOOP_FLOOR),
              "loader / materialised Ray Data": (loader_ratio(), LOADER_FLOOR)}  # fmt: skip
    for name, (ratio, floor) in ratios.items():
        print(f"{'slower than it was' if ratio < floor else 'ok'}: {name} {ratio:.2f}, floor {floor:.2f}")
    return int(any(ratio < floor for ratio, floor in ratios.values()))


if __name__ == "__main__":
    sys.exit(main())
