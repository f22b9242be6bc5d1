"""Kills drivers and trials' processes of sweeps at many moments, and says in a table what came of them.

    PYTHONPATH=tests python -m harness.faults.sweeps_table N [KIND ...]

N kills of the driver, and as many of processes of trials, for each kind of sweep, at moments drawn from the number in
the variable SEED (by default 0). The outcome must be the undisturbed sweep's bit for bit. Each kill is a line on
standard error.
"""

from __future__ import annotations

import os
import platform
import random
import sys
import tempfile
from pathlib import Path

import ray
import torch

from harness.faults.sweeps import (
    COMMANDS,
    Kill,
    Pace,
    Story,
    apart,
    check_heard,
    killed,
    outcome,
    statuses,
    undisturbed,
)

_KINDS = {
    "random": "eight",
    "grid": "eight_grid",
    "conditional": "eight_conditional",
    "tpe": "eight_tpe",
    "tune": "eight_tune",
    "median": "eight_median",
    "asha": "eight_asha",
    "hyperband": "eight_hyperband",
    "pbt": "eight_pbt",
    "pb2": "eight_pb2",
    "two_workers": "four_gated",
}
"""The file of each kind."""
_LIKELY = (2, 2, 2, 10, 1)
_HEAD = "| kind | drivers killed | processes killed | sweeps | made good | gone after, at most |"


def main(kills: int, kinds: list[str]) -> int:
    """Prints the table as it grows; returns 1 where a sweep was not made good."""
    print(f"Python {platform.python_version()}, Ray {ray.__version__}, torch {torch.__version__}\n")
    print(f"{_HEAD}\n|{'---|' * _HEAD[1:].count('|')}", flush=True)
    stories: list[Story] = []
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds or _KINDS:
            file = Path(__file__).with_name(f"{_KINDS[kind]}.py")
            whole = Path(folder) / f"{kind}-whole"
            pace = undisturbed(whole, file)
            some, lost = _some(Path(folder), kills, kind, file, pace, outcome(whole))
            gone = max(kill.command.gone or 0.0 for story in some for kill in story.kills)
            print(
                f"| {kind} | {sum(len(story.kills) for story in some)} | {sum(story.lost for story in some)} "
                f"| {len(some)} | {len(some) - lost} | {gone:.0f} s |",
                flush=True,
            )
            stories, bad = stories + some, bad + lost
        for kill in (kill for story in stories for kill in story.kills):
            kill.command.check_agents_gone()
    late = max(kill.command.agents_gone or 0.0 for story in stories for kill in story.kills)
    print(f"\n{bad} sweeps were not made good. Ray's agents were gone {late:.0f} s after a kill at the latest.")
    return int(bad > 0)


def _some(out: Path, kills: int, kind: str, file: Path, pace: Pace, whole: dict) -> tuple[list[Story], int]:
    """Sweeps of one kind with so many kills in all; returns them, and how many were not made good."""
    stories: list[Story] = []
    bad, seed = 0, 100 * (1 + list(_KINDS).index(kind)) + 10_000 * int(os.environ.get("SEED", "0"))
    while (left := kills - sum(len(one.kills) for one in stories)) > 0 or sum(one.lost for one in stories) < kills:
        seed += 1
        story = Story(out / f"sweep-{seed}", seed)
        complaint = ""
        try:
            wanted = min(random.Random(seed).randint(3, 7), max(left, 1))
            story = killed(story.sweep, seed, wanted, pace, _LIKELY, file)
            if kind == "tune":
                check_heard(story.sweep, len(story.kills) + story.lost)
            if difference := apart(outcome(story.sweep), whole):
                complaint = f"the outcome is another one: {difference}"
        except AssertionError as error:
            complaint = str(error.args[0])
            story = error.args[1] if len(error.args) > 1 else story
        stories.append(story)
        for kill in story.kills:
            print(_line(story, kind, kill), file=sys.stderr, flush=True)
        if complaint:
            bad += 1
            print(f"\n{kind}, seed {seed}: {complaint[:3000]}\n", file=sys.stderr, flush=True)
            if bad > 3:
                break
    return stories, bad


def _line(story: Story, kind: str, kill: Kill) -> str:
    stopped = list(statuses(story.sweep).values()).count("stopped")
    return (
        f"{kind}, seed {story.seed}: killed after {kill.seconds:.1f} s, {kill.phase}, "
        f"{kill.ended} of {kill.command.trials} trials ended; {stopped} stopped in the end"
    )


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
    finally:
        for command in COMMANDS:
            command.abandon()
