"""The flag --resume: the same command begins a run or a sweep, and goes on with it later."""

from __future__ import annotations

from pathlib import Path

from raytrain.checkpoint import location
from raytrain.checkpoint.storage import Storage, answered
from raytrain.cli.flags.arguments import take
from raytrain.driver.options import Options

_RESUMED = ("--dry_run", "--no_report", "--verbose", "--quiet", "--json")
"""The flags that a resumed run takes over; another one is a setting, which it has."""


def again(arguments: list[str]) -> list[str] | None:
    """Return the arguments of `resume` for a command whose run is there; None where the command begins one.

    Raises:
        UserError: storage does not answer.
    """
    names = take(arguments, "--name")[0]
    if "--resume" not in arguments or not names:
        return None
    where = location.join((take(arguments, "--out")[0] or [Options.out])[-1], names[-1])
    if location.is_url(where):
        there = answered(where, lambda: Storage(where).names("", recursive=False))
    else:
        there = [file.name for file in Path(where).expanduser().glob("*.json")]
    if not {"experiment.json", "sweep.json"} & {*there}:
        return None
    addresses = [f"--address={address}" for address in take(arguments, "--address")[0]]
    return [where, *addresses, *(flag for flag in arguments if flag in _RESUMED)]
