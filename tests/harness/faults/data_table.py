"""Injects faults into reads of runs, and into packers, and says in a table what came of them.

    PYTHONPATH=tests python -m harness.faults.data_table N SEED [KIND ...]

N faults of each kind, several in a run. A fault is made good if every step's row and the final weights of the run, or
the files of the pack, are those of the undisturbed one, bit for bit.
"""

from __future__ import annotations

import platform
import sys
import tempfile
import time
from pathlib import Path

import ray
import torch

from harness.faults.data_runs import INJECTED, MOST, World, play, why_not
from harness.faults.runs import COMMANDS

_HEAD = "| kind | injected | made good | runs | commands to go on | seconds |"


def main(each: int, first: int, kinds: list[str]) -> int:
    """Prints the table; `first` is the first run's seed. Returns 1 where a fault was not made good."""
    print(f"Python {platform.python_version()}, Ray {ray.__version__}, torch {torch.__version__}")
    print(f"\n{_HEAD}\n|{'---|' * _HEAD[1:].count('|')}", flush=True)
    bad, injected = [], 0
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        try:
            for kind in kinds:
                if why := why_not(kind):
                    print(f"| {kind} | left out: {why} | | | | |", flush=True)
                    continue
                began, done, good, again, seed = time.monotonic(), 0, 0, 0, first
                while done < each and seed < first + each:
                    seed += 1
                    asked = min(MOST[kind], each - done)
                    try:
                        story = play(kind, seed - 1, asked, world)
                        done, good, again = done + story.injected, good + story.injected, again + story.again
                    except AssertionError as error:
                        bad.append(f"{kind}, seed {seed - 1}: {error}")
                        print(bad[-1], file=sys.stderr, flush=True)
                        done += asked
                injected += done
                seconds = time.monotonic() - began
                print(f"| {kind} | {done} | {good} | {seed - first} | {again} | {seconds:.0f} |", flush=True)
        finally:
            world.close()
    print(f"\n{injected} faults, {len(bad)} runs that were not made good.")
    print("".join(f"\n{complaint}\n" for complaint in bad))
    return int(bool(bad))


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or list(INJECTED)))
    finally:
        for command in COMMANDS:
            command.abandon()
