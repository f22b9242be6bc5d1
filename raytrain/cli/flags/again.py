"""The flag --resume: the same command begins a run or a sweep, and goes on with it later.

Its settings are given to `resume`, which says where one is not that of the run and cannot change."""

from __future__ import annotations

from raytrain.checkpoint import location
from raytrain.checkpoint.storage import Storage, answered
from raytrain.cli.flags.arguments import take
from raytrain.cli.flags.precision_and_batch import FLAG
from raytrain.driver.options import Options
from raytrain.files import expanded, is_url

_WITHOUT_VALUE = ("--dry_run", "--no_report", "--verbose", "--quiet", "--json")
"""Flags without a value, of both commands."""


def again(arguments: list[str]) -> list[str] | None:
    """Return the arguments of `resume` or `sweep` for a command whose run is there; None where the command begins one.

    Raises:
        UserError: storage does not answer.
    """
    names = take(arguments, "--name")[0]
    if "--resume" not in arguments or not names:
        return None
    where = location.join((take(arguments, "--out")[0] or [Options.out])[-1], names[-1])
    if is_url(where):
        there = answered(where, lambda: Storage(where).names("", recursive=False))
    else:
        there = [file.name for file in expanded(where).glob("*.json")]
    if not {"experiment.json", "sweep.json"} & {*there}:
        return None
    if FLAG in arguments:  # the settings are those of an experiment, and the sweep's are made from them
        addresses = [f"--address={address}" for address in take(arguments, "--address")[0]]
        return [where, *addresses, *(flag for flag in arguments if flag in _WITHOUT_VALUE)]
    given = take([flag for flag in arguments[1:] if flag != "--resume"], "--name", "--out", "--profile_steps")[1]
    counts, given = take(given, "--folds")
    return [where, *_without_open(given), *(f"--data.folds.count={count}" for count in counts)]


def _without_open(arguments: list[str]) -> list[str]:
    """Return the arguments without settings that the command leaves to the plan, such as `--precision auto`: the run
    has decided them."""
    rest: list[str] = []
    for argument in arguments:
        flag, equals, text = argument.partition("=")
        if equals and _is_open(flag, text):
            continue
        if rest and rest[-1].startswith("--") and _is_open(rest[-1], argument):
            rest.pop()
            continue
        rest.append(argument)
    return rest


def _is_open(flag: str, text: str) -> bool:
    """Return whether a value leaves a setting to the plan. None does so for the CPUs, GPUs and threads of workers; for
    other settings it is a value like others."""
    return (text == "auto" and flag != "--address") or (text == "None" and flag.startswith("--scaling."))
