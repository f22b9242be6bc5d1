"""The search for a micro-batch for people: what is being tried, a table of what was found, what to do next."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.status import Status
from rich.text import Text

from raytrain.experiment import Experiment
from raytrain.loggers import Logger
from raytrain.report.console import terminal
from raytrain.report.layout import cell, show_next, spinner
from raytrain.report.layout import show as show_line
from raytrain.tools.micro_batch import Found, Trial, best


class Spinner(Logger):
    """What the plan warns of, and on a terminal what is being tried."""

    def __init__(self) -> None:
        self._console = terminal()
        self._status = None
        if self._console.is_terminal:
            self._status = Status("starting", console=self._console, spinner=spinner(self._console))

    def planned(self, lines: Sequence[tuple[str, str]]) -> None:
        """Print the plan's notes."""
        for note in (text for name, text in lines if name == "note"):
            show_line(self._console, "note: ", note, "yellow", "yellow")
        if self._status:
            self._status.start()

    def status(self, text: str) -> None:
        """Say it."""
        if self._status:
            self._status.update(f"{text} ...")

    def close(self) -> None:
        """Take it away."""
        if self._status:
            self._status.stop()


def show(found: list[Found], value: Experiment, command: list[str]) -> None:
    """Print what was found, and the command that trains with it."""
    console = terminal()
    replicas = f"{value.replicas} replicas, {value.batch_size // value.replicas} samples each"
    title = f"micro-batches for a global batch of {value.batch_size}" + (
        f" on {replicas}" if value.replicas > 1 else ""
    )
    show_line(console, "", title, "bold")
    _row(console, "precision", "largest", "its memory", "fastest", "samples/s", "accumulated", style="bold")
    for one in found:
        largest, fastest = one.largest, one.fastest
        if largest is None or fastest is None:
            _row(console, one.precision, "none fits")
            continue
        memory = f"{(largest.peak_bytes or 0) / 2**20:,.0f} MiB"
        rate = f"{fastest.samples_per_second or 0:,.0f}"
        each = str(largest.micro_batch), memory, str(fastest.micro_batch), rate, str(fastest.accumulation)
        _row(console, one.precision, *each)
    following = next_command(found, command)
    if following is None:
        trial = found[0].trials[0]
        show_line(console, "", f"a micro-batch of {trial.micro_batch} needs more memory: {trial.why}")
        show_line(console, "", "next:  give more --memory, or use smaller images or a smaller model")
    else:
        show_next(console, [following])


def _row(console: Console, precision: str, *cells: str, style: str = "") -> None:
    widths = (9, 12, 9, 10, 11)
    rest = [cell(text, width) for text, width in zip(cells, widths, strict=False)]
    console.print(Text("  ".join([cell(precision, 9, left=True), *rest]), style=style))


def next_command(found: list[Found], command: list[str]) -> list[str] | None:
    """Return the command that trains with the fastest of all, or None where nothing fits."""
    chosen = best(found)
    if chosen is None:
        return None
    precision, trial = chosen
    return [*command, "--micro_batch_size", str(trial.micro_batch), "--precision", precision]


def to_json(found: list[Found], value: Experiment, command: list[str]) -> str:
    """One JSON object with all that was tried."""

    def row(trial: Trial | None) -> dict[str, object] | None:
        return None if trial is None else dataclasses.asdict(trial)

    following = next_command(found, command)
    precisions = [
        {
            "precision": one.precision,
            "largest": row(one.largest),
            "fastest": row(one.fastest),
            "trials": [row(trial) for trial in one.trials],
        }
        for one in found
    ]
    return json.dumps(
        {
            "batch_size": value.batch_size,
            "replicas": value.replicas,
            "precisions": precisions,
            "next": following and shlex.join(following),
        }
    )
