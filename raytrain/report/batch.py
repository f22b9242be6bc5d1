"""The search for a micro-batch for people: what is being tried, a table of what was found, what to do next."""

from __future__ import annotations

import dataclasses
import json
import shlex

from rich.status import Status
from rich.table import Table

from raytrain.batch_size import Found, Trial, best
from raytrain.experiment import Experiment
from raytrain.observe import Observer
from raytrain.plan import Plan
from raytrain.report.console import terminal


class Spinner(Observer):
    """What the plan warns of, and on a terminal what is being tried."""

    def __init__(self) -> None:
        self._console = terminal()
        self._status = Status("starting", console=self._console) if self._console.is_terminal else None

    def planned(self, plan: Plan) -> None:
        """Prints the plan's notes."""
        for note in plan.notes:
            self._console.print(f"note: {note}", style="yellow", markup=False)
        if self._status:
            self._status.start()

    def status(self, text: str) -> None:
        """Says it."""
        if self._status:
            self._status.update(f"{text} ...")

    def close(self) -> None:
        """Takes it away."""
        if self._status:
            self._status.stop()


def show(found: list[Found], value: Experiment, command: list[str]) -> None:
    """Prints what was found, and the command that trains with it."""
    console = terminal()
    replicas = f"{value.replicas} replicas, {value.batch_size // value.replicas} samples each"
    title = f"a global batch of {value.batch_size}" + (f" on {replicas}" if value.replicas > 1 else "")
    table = Table(title=title, title_justify="left")
    for name in ("precision", "largest micro-batch", "its memory", "fastest micro-batch", "samples/s", "accumulated"):
        table.add_column(name, justify="left" if name == "precision" else "right")
    for one in found:
        largest, fastest = one.largest, one.fastest
        if largest is None or fastest is None:
            table.add_row(one.precision, "none fits")
            continue
        memory = f"{(largest.peak_bytes or 0) / 2**20:,.0f} MiB"
        rate = f"{fastest.samples_per_second or 0:,.0f}"
        each = str(largest.micro_batch), memory, str(fastest.micro_batch), rate, str(fastest.accumulation)
        table.add_row(one.precision, *each)
    console.print(table)
    following = next_command(found, command)
    if following is None:
        console.print(f"a micro-batch of {found[0].trials[0].micro_batch} needs more memory: {found[0].trials[0].why}")
    console.print(
        f"next:  {following or 'give more --memory, or take smaller images or a smaller model'}", markup=False
    )


def next_command(found: list[Found], command: list[str]) -> str | None:
    """The command that trains with the fastest of all, or None where nothing fits."""
    chosen = best(found)
    if chosen is None:
        return None
    precision, trial = chosen
    return shlex.join([*command, "--micro_batch_size", str(trial.micro_batch), "--precision", precision])


def to_json(found: list[Found], value: Experiment, command: list[str]) -> str:
    """One JSON object with all that was tried."""

    def row(trial: Trial | None) -> dict[str, object] | None:
        return None if trial is None else dataclasses.asdict(trial)

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
            "next": next_command(found, command),
        }
    )
