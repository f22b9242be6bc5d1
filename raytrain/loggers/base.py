"""The base of all loggers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from raytrain import config, errors


@dataclass(frozen=True)
class RunInfo:
    """The run that a logger follows, or the sweep.

    Attributes:
        path: its directory on this machine.
        where: its directory or URL, as commands take it.
        experiment: the `raytrain.Experiment`; None for a sweep.
        steps_per_epoch: optimizer steps of an epoch.
        samples: training samples of an epoch.
        earlier: the rows of metrics.jsonl when the command began: those of a resumed run up to its newest checkpoint.
        kind: of the model's input, as a `Field` has it; an image where that is not known.
        sweep: the name of the sweep that the run is a trial of.
    """

    path: Path
    where: str
    experiment: Any = None
    steps_per_epoch: int = 0
    samples: int = 0
    earlier: Sequence[Mapping[str, Any]] = ()
    kind: str = "image"
    sweep: str = ""

    @property
    def values(self) -> dict[str, Any]:
        """The experiment's values by their dotted paths, such as `optimizer.lr`."""
        return {} if self.experiment is None else config.leaves(self.experiment)


@dataclass(frozen=True)
class Held:
    """The rows that a logger holds: those of the first `step` steps, of the first `epoch` epochs, and of the
    validations inside epochs (kind `validation`) up to step `validation`."""

    step: int = 0
    epoch: int = 0
    validation: int = 0


@dataclass(frozen=True)
class Logger:
    """The base of all loggers, which does nothing. Subclass it in an experiment file, as a frozen dataclass.

    Its fields are values of the experiment; what it opens, such as a file, belongs into `state`. Loggers run in the
    driver, each in a thread of its own: one that is slow or fails does not hold the training up. Where a method raises,
    the error is shown once, and a new copy of the logger begins with `start` after a pause.

    `log` gets the rows of metrics.jsonl that a checkpoint has made permanent, each row once: a killed run has no other
    rows after it is resumed. `rows` gets all rows at once, for a display: rows since the last checkpoint come again
    after a kill.
    """

    @cached_property
    def state(self) -> dict[str, Any]:
        """What changes while it runs: files, clients, counts. It ends with the process."""
        return {}

    def check(self) -> None:
        """Called before anything starts: raise UserError if a package that the logger needs is not installed."""

    def writes_to(self) -> str:
        """Return where it writes, such as a folder of the run, if only one logger of its class can write there: a
        second one is refused before anything starts."""
        return ""

    # A run or a sweep

    def planned(self, lines: Sequence[tuple[str, str]]) -> None:
        """The plan for people, before anything starts: a name and a text for each line."""

    def status(self, text: str) -> None:
        """What happens while no step is done; an empty text ends it."""

    def note(self, text: str) -> None:
        """What the user should know and does not end the run."""

    def finish(self, run: RunInfo, summary: Mapping[str, Any]) -> None:
        """The end of the command: the content of summary.json, or of sweep.json. `summary["status"]` is `completed`
        or `interrupted`, of a sweep also `out_of_time`. After a failed run
        only `close` is called, not `finish`."""

    def close(self) -> None:
        """Release what `state` holds. Called last: after `finish`, after a failed run, or after a method has raised."""

    # A run

    def start(self, run: RunInfo, held: Held) -> None:
        """Called before the first row, in each command that trains the run. All rows after `held` come again, so remove
        those that are there: a kill may have come between `log` and the note of how far it came."""

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Permanent rows, in order, each once. They must be stored when it returns. `row["kind"]` is `step`, `epoch`,
        or `validation` (inside an epoch), or `precision` before the first step."""

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """New rows as they are written; an empty list now and then. Those since the last checkpoint may come again."""

    def workers(self, event: str, why: str, checkpoint: str) -> None:
        """Workers were `lost`, their number changes (`resized`), or the run is `waiting` for room or storage. It
        resumes from the checkpoint of that name; an empty one is the start."""

    # A sweep

    def trials(
        self,
        records: list[dict[str, Any]],
        objectives: list[dict[str, Any]],
        elapsed: float,
        count: int | None = None,
    ) -> None:
        """The state of the trials, a few times a second.

        Args:
            records: `trials` of sweep.json: those that were proposed.
            objectives: `objectives` of sweep.json.
            elapsed: seconds of the sweep so far.
            count: how many trials there will be.
        """


def check_loggers(loggers: Sequence[Logger]) -> None:
    """Check, before anything starts, that loggers can work beside each other.

    Raises:
        UserError: one lacks a package, or two of a class write to one place, which would hold each row twice.
    """
    taken = set[tuple[type, str]]()
    for logger in loggers:
        logger.check()
        if (place := logger.writes_to()) and (type(logger), place) in taken:
            what = f"two {type(logger).__name__} write to {place}, which would have each row twice"
            raise errors.UserError(what, "in loggers", "leave one of them out, or give each a place of its own")
        taken.add((type(logger), place))
