"""Kills the drivers of sweeps at many moments, and says in a table what came of it.

    PYTHONPATH=tests python -m harness.faults.sweeps_table 20
    PYTHONPATH=tests python -m harness.faults.sweeps_table 4 gated      # of one kind

As many kills as are asked for under the scheduler `Complete`, where the outcome must be the undisturbed sweep's bit for
bit; a quarter as many under `ASHA`, where what it stops depends on which trial comes first, and where trials that
have ended must stay as they are, none be lost and none repeated; and half as many where trials of two workers wait at
validations inside epochs for `ASHA`, one trial at a time, and lose workers besides: again bit for bit. Other kinds run
where they are named: `tune`, a searcher of Ray Tune with a callback that must hear everything once; `conditional`, a
space with a condition, a first point and a constraint; and `grid`, `tpe` and `median`, whose trials lose their
processes besides; again bit for bit. Under `hyperband`, `pbt` and `pb2`, which lose processes too, the outcome depends
on which trial comes first, as under `ASHA`.
"""

from __future__ import annotations

import platform
import random
import sys
import tempfile
from pathlib import Path

import ray
import torch

from harness.faults.sweeps import (
    COMMANDS,
    EIGHT,
    EIGHT_ASHA,
    EIGHT_CONDITIONAL,
    EIGHT_TUNE,
    FOUR_GATED,
    ONE_WORKER,
    Kill,
    Pace,
    Story,
    check_heard,
    killed,
    outcome,
    statuses,
    undisturbed,
)

_KINDS = {
    "Complete": (EIGHT, 1, 100),
    "ASHA": (EIGHT_ASHA, 4, 200),
    "gated": (FOUR_GATED, 2, 300),
    "tune": (EIGHT_TUNE, 1, 400),
    "conditional": (EIGHT_CONDITIONAL, 1, 500),
    **{name: (file, 1, 600 + 100 * number) for number, (name, file) in enumerate(ONE_WORKER.items())},
}
"""The sweep of each kind, its part of the kills, and the seed of its first one."""
_BY_TIME = ("ASHA", "hyperband", "pbt", "pb2")
"""Kinds whose outcome depends on which trial comes first."""
_LIKELY = (2, 2, 2, 10, 1)
_HEAD = "| kill | seed | kind | second | phase | had ended | gone after | recovered | equal |"


def main(kills: int, kinds: list[str]) -> int:
    """Prints the table as it grows; returns 1 where a kill was not made good."""
    print(f"Python {platform.python_version()}, Ray {ray.__version__}, torch {torch.__version__}\n")
    print(f"{_HEAD}\n|{'---|' * _HEAD[1:].count('|')}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        stories: list[Story] = []
        bad, paces = 0, {}
        for kind in kinds or ("Complete", "ASHA", "gated"):
            file, share, seed = _KINDS[kind]
            like = EIGHT if file == EIGHT_ASHA else file  # takes the same time
            if like not in paces:
                paces[like] = undisturbed(Path(folder) / like.stem, like), outcome(Path(folder) / like.stem)
            bad += _some(Path(folder), -(-kills // share), seed, kind, *paces[like], stories)
        late = 0.0
        for kill in (kill for story in stories for kill in story.kills):
            kill.command.check_agents_gone()
            late = max(late, kill.command.agents_gone or 0.0)
    print(
        f"\n{bad} of {len(stories)} sweeps were not made good; {sum(story.lost for story in stories)} processes were",
        end=" ",
    )
    print("killed besides. Of each kill all was gone in the end, Ray's agents", end=" ")
    print(f"{late:.0f} s after it at the latest.")
    return int(bad > 0)


def _some(out: Path, kills: int, seed: int, kind: str, pace: Pace, whole: dict, stories: list[Story]) -> int:
    """Kills of one kind; returns how many sweeps were not made good."""
    bad, count = 0, 0
    while count < kills:
        seed += 1
        story = Story(out / f"sweep-{seed}", seed)
        wanted = min(random.Random(seed).randint(2, 4), kills - count)
        recovered, equal, complaint = True, "yes", ""
        try:
            story = killed(story.sweep, seed, wanted, pace, _LIKELY, _KINDS[kind][0])
            if kind == "tune":
                check_heard(story.sweep, len(story.kills))
            if kind in _BY_TIME:
                equal = f"({list(statuses(story.sweep).values()).count('stopped')} stopped)"
            elif outcome(story.sweep) != whole:
                equal, complaint = "NO", "the outcome is another one"
        except AssertionError as error:
            recovered, equal, complaint = False, "NO", str(error.args[0])
            story = error.args[1] if len(error.args) > 1 else story
        stories.append(story)
        for kill in story.kills:
            count += 1
            print(_row(count, story, kind, kill, recovered, equal), flush=True)
        if complaint:
            bad += 1
            count += not story.kills
            print(f"\nseed {seed}: {complaint[:3000]}\n", flush=True)
    return bad


def _row(count: int, story: Story, kind: str, kill: Kill, recovered: bool, equal: str) -> str:
    return (
        f"| {count} | {story.seed} | {kind} | {kill.seconds:.1f} | {kill.phase} "
        f"| {kill.ended} of {kill.command.trials} | {kill.command.gone or 0:.1f} s "
        f"| {'yes' if recovered else 'NO'} | {equal} |"
    )


if __name__ == "__main__":
    try:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, sys.argv[2:]))
    finally:
        for command in COMMANDS:
            command.abandon()
