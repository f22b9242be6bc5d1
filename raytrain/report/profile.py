"""What a profile found, as tables on the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from raytrain.experiment import Experiment
from raytrain.files import known_json
from raytrain.report.console import terminal
from raytrain.report.layout import show
from raytrain.report.run_time import bottleneck
from raytrain.run.metrics_log import VALIDATED, read_metrics
from raytrain.run.run import Run
from raytrain.training.phases import PHASES, grouped, read
from raytrain.training.profiling import FIGURES, FOLDER, WARM_UP

_IDLE = 0.3
"""Share of the time for which a GPU may wait for its host, above which the profile says what to change."""


def show_profile(run: Run, value: Experiment) -> None:
    """Print a run's profile: the share of each phase, the operators that take longest, and what to change.

    Args:
        value: the experiment, whose validations decide the share of one.
    """
    console, found = terminal(), known_json(run.path / FIGURES)
    if not found:
        show(console, "", f"no profile: the run ended within its first {WARM_UP} steps, or storage refused it")
        return
    rank = min(found["ranks"], key=lambda one: grouped(one["activities"])["exchange"])
    first, steps = found["first"], rank["steps"]
    whose = f" on rank {rank['rank']}, which the others wait for" if len(found["ranks"]) > 1 else ""
    show(console, "", f"steps {first:,} to {first + steps - 1:,}{whose}", "bold")
    parts = {name: seconds for name, seconds in rank["activities"].items() if name != "validating"}
    total = math.fsum(parts.values()) or 1.0
    lines = [
        (name, f"{1e3 * seconds / steps:,.2f} ms a step", f"{seconds / total:.0%}")
        for name, seconds in sorted(parts.items(), key=lambda part: -part[1])
    ]
    _table([*lines, ("all", f"{1e3 * total / steps:,.2f} ms a step", "100%")])
    device = rank["device"] or {}
    busy = math.fsum(device.values()) or 1.0
    if device:
        show(console, "", "the GPU's own time; exchange and copies are what computing does not hide", "bold")
        _table(
            [(name, f"{1e3 * spent / steps:,.2f} ms a step", f"{spent / busy:.0%}") for name, spent in device.items()]
        )
    show(console, "", f"operators with the longest own time{' on the GPU' if device else ''}", "bold")
    _table([(one["name"], f"{one['calls']:,} calls", f"{1e3 * one['seconds']:,.1f} ms") for one in rank["operators"]])
    between = value.validate_every_steps or found["steps_per_epoch"]
    seconds = epoch_of(rank, between, _validation(run))
    if seconds["validation"]:
        took, share = seconds["validation"], seconds["validation"] / math.fsum(seconds.values())
        show(console, "", f"a validation takes {took:.2f} s, {share:.0%} of the time if it follows {between:,} steps")
    if slow := bottleneck(seconds, value, found["device"]):
        show(console, "bottleneck: ", slow.line)
        if slow.phase == "compute" and (share := device.get("idle", 0.0) / busy) >= _IDLE:
            show(
                console,
                "            ",
                f"the GPU waits for its host {share:.0%} of the time: {_launched(value, found)}",
            )
    show(console, "", f"traces for Perfetto or chrome://tracing: {run.where}/{FOLDER}/rank*.json.gz")


def _launched(value: Experiment, found: Mapping[str, Any]) -> str:
    """Return what to change where a host launches a GPU's work too slowly."""
    if value.graph == "off" and value.accumulation == 1 and not value.parallel.uncaptured(len(found["ranks"])):
        return "launch a step at once with --graph auto, or give it more work with a larger --batch_size"
    return f"give it more work with a larger --batch_size, such as {2 * value.batch_size}"


def epoch_of(rank: Mapping[str, Any], between: int, validation: float) -> dict[str, float]:
    """Return the seconds of each of `PHASES` from one validation to the next, from those of the steps that were traced.

    Args:
        rank: a rank's figures.
        between: steps from one validation to the next.
        validation: seconds of a validation.
    """
    seconds = {name: spent / rank["steps"] * between for name, spent in grouped(rank["activities"]).items()}
    if device := rank["device"]:  # the host waits for the GPU's exchanges as for its computing
        exchange = min(device["exchange"] / rank["steps"] * between, seconds["compute"])
        seconds["exchange"] += exchange
        seconds["compute"] -= exchange
    return {name: seconds[name] for name in PHASES} | {"validation": validation}


def _validation(run: Run) -> float:
    """Return the seconds of the run's fastest validation; the first one may start threads and compile."""
    found, before = [], 0.0
    for row in read_metrics(run.path / "metrics.jsonl", kinds=VALIDATED)[0]:
        now = read(row).get("validation", 0.0)
        found.append(now - before)
        before = 0.0 if row["kind"] == "epoch" else now
    return max(0.0, min(found, default=0.0))


def _table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of a name and figures, the names cut to 48 columns."""
    rows = [(name[:48], *figures) for name, *figures in rows]
    first, *others = [max(len(row[place]) for row in rows) for place in range(3)] if rows else [0]
    console = terminal()
    for name, *figures in rows:
        cells = [name.ljust(first), *(text.rjust(width) for text, width in zip(figures, others, strict=True))]
        console.print(Text("  " + "  ".join(cells)))
