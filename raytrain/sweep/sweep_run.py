"""A sweep on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from raytrain import errors
from raytrain.files import needed_json
from raytrain.run.run import Run
from raytrain.sweep import record


class SweepRun:
    """A sweep on disk: `sweep.json`, `trials.csv`, `best.json`, and `trials/0000`, each of which is a run.

    Args:
        path: the sweep's directory.

    Raises:
        UserError: there is none.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        if not os.path.isfile(self.path / "sweep.json"):
            raise errors.not_a_sweep(self.path)

    def __repr__(self) -> str:
        return f"SweepRun({str(self.path)!r})"

    @property
    def answer(self) -> dict[str, Any]:
        """All of `sweep.json`: `status`, `best` (a trial's number), `front`, `trials` with their figures."""
        return needed_json(self.path / "sweep.json", f"`raytrain sweep {self.path}` writes it again")

    @property
    def trials(self) -> list[dict[str, Any]]:
        """The trials' values, what became of them, and their figures."""
        return self.answer["trials"]

    @property
    def best(self) -> Run | None:
        """The best trial's run; None if no trial has a result."""
        number = self.answer["best"]
        return None if number is None else Run(record.folder(self.path, number))
