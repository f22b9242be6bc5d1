"""Injects faults into runs and says in a table what came of them.

    PYTHONPATH=tests python -m harness.faults.runs_table N SEED [KIND ...]

N faults of each kind; each run takes up to five of one kind, at steps drawn from its seed. The environment variable
MINUTES limits the time: kinds that would start later are left out, and the table says so.
"""

from __future__ import annotations

import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

import ray
import torch

from harness.faults.runs import COMMANDS, DETERMINISTIC, EVERY, KINDS, WAYS, Story, play, undisturbed

_PER_RUN = 5
_HEAD = "| kind | injected | recovered | bit-equal | steps redone, most | seconds to the next step, median (most) |"


def main(each: int, first: int, kinds: list[str]) -> int:
    """Prints the table; `first` is the first run's seed. Returns 1 where a fault was not made good."""
    print(f"Python {platform.python_version()}, Ray {ray.__version__}, torch {torch.__version__}; ", end="")
    print(f"a checkpoint every {EVERY} steps\n\n{_HEAD}\n|{'---|' * _HEAD[1:].count('|')}", flush=True)
    bad, injected = [], 0
    end = time.monotonic() + 60 * float(os.environ.get("MINUTES", "inf"))
    with tempfile.TemporaryDirectory() as folder:
        whole = {}
        runs = -(-each // _PER_RUN)
        for kind in kinds:
            if time.monotonic() > end:
                print(f"| {kind} | left out: the time is up | | | | |", flush=True)
                continue
            stories: list[Story] = []
            for seed in range(first, first + runs):
                place = Path(folder) / f"{kind}-{seed}".replace(" ", "-")
                flags = ("--parallel.strategy", "deterministic") if kind in DETERMINISTIC else ()
                way = WAYS[seed % len(WAYS)]
                if (way, flags) not in whole:
                    whole[way, flags] = undisturbed(Path(folder) / "-".join(("whole", *way, *flags)), way, *flags)
                try:
                    stories.append(play(kind, seed, place, -(-each // runs), whole[way, flags]))
                except AssertionError as error:
                    bad.append(f"{kind}, seed {seed}: {error.args[0]}")
                    print(bad[-1], file=sys.stderr, flush=True)
                    stories += [story for story in error.args[1:] if isinstance(story, Story)]
            faults = [fault for story in stories for fault in story.faults]
            injected += len(faults)
            seconds = [fault.seconds for fault in faults if fault.recovered] or [float("nan")]
            print(
                f"| {kind} | {len(faults)} | {sum(f.recovered for f in faults)} | {sum(f.equal for f in faults)} "
                f"| {max((f.redone for f in faults), default=0)} "
                f"| {statistics.median(seconds):.1f} ({max(seconds):.1f}) |",
                flush=True,
            )
    print(f"\n{injected} faults, {len(bad)} runs that were not made good.")
    print("".join(f"\n{complaint}\n" for complaint in bad))
    return int(bool(bad))


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or list(KINDS)))
    finally:
        for command in COMMANDS:
            command.abandon()
