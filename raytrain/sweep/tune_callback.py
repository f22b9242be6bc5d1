"""TuneCallback: any callback or logger of Ray Tune as a part of a sweep; and which trials callbacks know of."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from raytrain import config
from raytrain.files import known_json, write_atomically
from raytrain.sweep import record
from raytrain.user_code.wrappers import Wrapped, Wraps


@dataclass(frozen=True, repr=False)
class TuneCallback(Wrapped):
    """A callback of Ray Tune: `TuneCallback(MyCallback, folder="curves")`, or a logger such as `CSVLoggerCallback`.

    The first argument is a class derived from `ray.tune.Callback`, or a function of your own that returns a callback.
    All other arguments are given by name and become fields. A trial's name in Tune, `trial_0003`, holds its number,
    and `trial.config["values"]` its axes' values; a result has the figures of its validation. A callback is not told
    again what it was told of a trial before the sweep was interrupted, and an end that a kill has kept from it is made
    up for. One that raises an error is left out from then on, with a note.
    """

    _wraps: ClassVar[Wraps] = Wraps(
        "a class derived from ray.tune.Callback or a function that returns a callback",
        "CSVLoggerCallback",
        ("ray.tune", "Callback"),
    )
    """What it wraps."""

    def __post_init__(self) -> None:
        config.check(self)

    def build(self) -> Any:
        """Return Tune's callback.

        Raises:
            UserError: it cannot be made.
        """
        return self._made("callback")


class Told:
    """What callbacks know of the trials of a sweep, in a file beside each trial's logs.

    Args:
        path: the sweep's directory.
        count: how many callbacks there are.
    """

    def __init__(self, path: Path, count: int):
        self.path, self.count = path, count
        self._known: dict[int, list[dict[str, Any]]] = {}

    def of(self, number: int) -> list[dict[str, Any]]:
        """Return what each callback knows of a trial: `trained`, the time of its last result, and whether it has
        `ended`."""
        if number not in self._known:
            found = known_json(self._file(number)).get("callbacks")
            found = found if isinstance(found, list) and len(found) == self.count else [{}] * self.count
            self._known[number] = [{"trained": 0.0, "ended": False} | one for one in found]
        return self._known[number]

    def note(self, number: int, callback: int, **known: Any) -> None:
        """Note what a callback has just been told of a trial."""
        self.of(number)[callback] |= known
        self._file(number).parent.mkdir(exist_ok=True)
        write_atomically(self._file(number), json.dumps({"callbacks": self.of(number)}))

    def behind(self, number: int) -> bool:
        """Return whether some callback does not know the end of a trial that has ended; of one that could not be, none
        hears."""
        found = record.read(record.folder(self.path, number)) if self.count else {"refused": True}
        return not found.get("refused") and not all(one["ended"] for one in self.of(number))

    def _file(self, number: int) -> Path:
        return record.folder(self.path, number) / "logs" / "callbacks.json"
