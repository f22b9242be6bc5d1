"""How long a run spends on what: the seconds of each phase on the rank that the others wait for.

`watchdog.doing` measures each activity of a rank. `LossLog.reduce` sends the seconds along with the losses, so that no
further collective and no wait for a device is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from raytrain.watchdog import (
    BACKWARD,
    EXCHANGING,
    FORWARD,
    HOOK,
    MEETING,
    MOVING,
    PREPARING,
    SETTLING,
    WAITING,
    doing,
)

PHASES = {
    "data": "waiting for data",
    "augment": "augmenting and normalising",
    "compute": "computing",
    "exchange": "exchanging gradients",
    "checkpoint": "waiting for checkpoints",
    "hooks": "calling hooks",
    "validation": "validating",
}
"""The phases, and what they are for people. metrics.jsonl and summary.json have them as `seconds_data` and so on."""
COLUMN = "seconds_"
"""What the names of these columns begin with."""

_OF = {
    WAITING: "data",
    MOVING: "data",
    PREPARING: "augment",
    FORWARD: "compute",
    BACKWARD: "compute",
    "updating the weights": "compute",
    "between two steps": "compute",
    "adding up losses": "compute",  # the host waits for the device
    EXCHANGING: "exchange",
    MEETING: "exchange",
    SETTLING: "checkpoint",
    "writing a checkpoint": "checkpoint",
    HOOK: "hooks",
    "validating": "validation",
}
"""The phase of each activity."""
_VALIDATING = ("validating", "adding up the validation's metrics")
_CENTURY = 3.2e9


class Clock:
    """The seconds of this rank's activities since it was last read."""

    def __init__(self) -> None:
        self._before = doing.spent()

    def activities(self) -> dict[str, float]:
        """Return the seconds of each activity outside of validation since the last call, and all of validation as
        `validating`; activities that take no time of the run, such as a trial's wait for its sweep, are left out."""
        now, before = doing.spent(), self._before
        self._before, found = now, dict[str, float]()
        for phase, parts in now.items():
            for part, seconds in parts.items():
                what = _VALIDATING[0] if phase in _VALIDATING and part != HOOK else part
                passed = seconds - before.get(phase, {}).get(part, 0.0)
                if what in _OF and passed > 0:
                    found[what] = found.get(what, 0.0) + passed
        return found

    def phases(self) -> dict[str, float]:
        """Return the seconds of each phase since the last call."""
        return grouped(self.activities())


def grouped(activities: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each of `PHASES`, from those of activities."""
    found = dict.fromkeys(PHASES, 0.0)
    for what, seconds in activities.items():
        found[_OF[what]] += seconds
    return found


def slowest(seconds: Sequence[float]) -> dict[str, float]:
    """Return the seconds of the rank that holds the others back: they wait for it in exchanges, and it waits least.

    A mean over ranks would call a rank's slow disk an exchange, since all others wait for that rank.

    Args:
        seconds: of each of `PHASES`, of each rank, one after the other.
    """
    size = len(PHASES)
    ranks = [dict(zip(PHASES, seconds[n : n + size], strict=True)) for n in range(0, len(seconds), size)]
    return min(ranks, key=lambda rank: rank["exchange"])


def added(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """Return the sums of the seconds of each phase; a phase that is missing counts 0."""
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in PHASES if name in one or name in other}


def columns(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the columns of a row; `seconds_hooks` only where there are hooks."""
    return {f"{COLUMN}{name}": value for name, value in seconds.items() if name != "hooks" or value}


def read(row: Mapping[str, object]) -> dict[str, float]:
    """Return the seconds of each phase of a row or a summary; those of an older version have none, and a damaged figure
    is left out."""
    found = {name: row.get(f"{COLUMN}{name}") for name in PHASES}
    return {name: float(v) for name, v in found.items() if isinstance(v, int | float) and 0 <= v < _CENTURY}


def are_seconds(values: Mapping[Any, Any]) -> bool:
    """Return whether a checkpoint's values are seconds of phases."""
    return values.keys() <= PHASES.keys() and all(
        type(value) in (int, float) and math.isfinite(value) for value in values.values()
    )
