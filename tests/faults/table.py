"""Kills the drivers of sweeps at many moments, and says in a table what came of it: python tests/faults/table.py 20"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from sweeps import Kill, Story, killed, outcome, undisturbed

_LIKELY = (2, 2, 1, 9, 2)
_HEAD = "| kill | seed | sweep | second | phase | trials ended | trials and Ray gone after | recovered | equal |"


def main(kills: int) -> int:
    """Prints the table as it grows; returns 1 where a kill was not made good."""
    print(f"{_HEAD}\n|{'---|' * _HEAD[1:].count('|')}", flush=True)
    bad = count = 0
    stories: list[Story] = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        pace = undisturbed(out / "whole")
        whole = outcome(out / "whole")
        seed = 100
        while count < kills:
            seed += 1
            asha = seed % 4 == 0
            flags = ("--scheduler", "scheduler:asha") if asha else ()
            wanted = min(random.Random(seed).randint(2, 4), kills - count)
            story = Story(out / f"sweep-{seed}", seed)
            try:
                story = killed(story.sweep, seed, wanted, pace, _LIKELY, *flags)
                recovered, equal = True, asha or outcome(story.sweep) == whole
                complaint = "" if equal else "the outcome is another one"
            except AssertionError as error:
                complaint, story = str(error.args[0]), error.args[1] if len(error.args) > 1 else story
                recovered = equal = False
            for kill in story.kills:
                count += 1
                print(_row(count, story, kill, recovered, "as it ended" if asha and equal else equal), flush=True)
            stories.append(story)
            if complaint:
                bad += 1
                count += not story.kills
                print(f"\nseed {seed}: {complaint[:3000]}\n", flush=True)
        late = []
        for kill in (kill for story in stories for kill in story.kills):
            kill.command.check_agents_gone()
            late.append(kill.command.agents_gone or 0.0)
    print(f"\nRay's agents, the last of its processes, were gone {max(late):.0f} s after a kill at the latest.")
    return int(bad > 0)


def _row(count: int, story: Story, kill: Kill, recovered: bool, equal: bool | str) -> str:
    said = equal if isinstance(equal, str) else "yes" if equal else "NO"
    kind = "ASHA" if story.seed % 4 == 0 else "Complete"
    return (
        f"| {count} | {story.seed} | {kind} | {kill.seconds:.1f} | {kill.phase} | {kill.ended} of 8 "
        f"| {kill.command.gone or 0:.1f} s | {'yes' if recovered else 'NO'} | {said} |"
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 20))
