"""What a run spends its time on: the phase that holds it back, what to change, and the section of a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from raytrain import config
from raytrain.experiment import Experiment
from raytrain.report.html import safe, table
from raytrain.training.phases import PHASES, added, read

_SHARE, _AIM = 0.2, 0.05
"""The share of the time from which on a phase is named, and the share that advice aims at."""
_LEAST_SECONDS = 10.0
"""The console names no phase of a shorter run, which mostly starts up."""
_MOST_BARS, _WIDTH, _BAR, _LEFT = 60, 480, 12, 60
_COLOURS = {"compute": 0, "data": 1, "augment": 2, "exchange": 3, "checkpoint": 4, "validation": 5}


class Bottleneck(NamedTuple):
    """The phase that holds a run back.

    Attributes:
        phase: one of `PHASES`.
        share: its share of the time, in (0, 1].
        advice: what to change; empty for `compute`.
    """

    phase: str
    share: float
    advice: str

    @property
    def line(self) -> str:
        """What to print."""
        text = f"{PHASES[self.phase]} takes {self.share:.0%} of the time"
        return f"{text}: {self.advice}" if self.advice else text


def bottleneck(seconds: Mapping[str, float], value: Experiment, device: str = "cpu") -> Bottleneck | None:
    """Return what holds a run back: the longest phase besides compute if it takes a fifth of the time, or else compute.

    A GPU computes while its host prepares the next steps, and the time in which the host waits for it is compute. So on
    a GPU another phase must take longer than compute.

    Args:
        seconds: of each of `PHASES`, on the rank that the others wait for.
        value: the experiment, whose fields the advice names.
        device: cpu or cuda.

    Returns:
        None if there are no seconds.
    """
    total = math.fsum(seconds.values())
    if not total > 0:
        return None
    others = {name: spent for name, spent in seconds.items() if name != "compute"}
    phase = max(others, key=others.__getitem__, default="compute")
    hidden = device == "cuda" and seconds[phase] < seconds.get("compute", 0.0)
    if seconds[phase] < _SHARE * total or hidden:
        phase = "compute"
    share = seconds.get(phase, 0.0) / total
    return Bottleneck(phase, share, _advice(phase, share, config.leaves(value), device))


def line(summary: Mapping[str, Any], value: Experiment) -> str:
    """Return the line for the end of a run; empty where nothing but compute holds it back, or the run was short."""
    seconds = read(summary)
    found = bottleneck(seconds, value, str(summary.get("device")))
    if found is None or found.phase == "compute" or math.fsum(seconds.values()) < _LEAST_SECONDS:
        return ""
    return found.line


def _advice(phase: str, share: float, fields: Mapping[str, Any], device: str) -> str:
    """Return what to change.

    Args:
        fields: the experiment's values by their dotted paths.
    """
    fewer = max(2, math.ceil(min(share, 0.99) / (1 - min(share, 0.99)) * (1 - _AIM) / _AIM))
    return {
        "data": lambda: _for_data(fields),
        "augment": lambda: _for_augmentation(fields, device),
        "exchange": lambda: _for_exchange(fields, device),
        "checkpoint": lambda: _for_checkpoints(fields, fewer),
        "validation": lambda: _for_validation(fields, fewer),
        "hooks": lambda: "let the hooks do less, or do it in fewer steps",
        "compute": lambda: "",
    }[phase]()


def _for_data(fields: Mapping[str, Any]) -> str:
    found = []
    if fields.get("data.whole"):
        found.append("store smaller images with `raytrain pack --codec jpeg`")
    elif fields.get("data.mode") != "resident" and fields.get("data.decode") != "gpu":
        found.append("keep the samples in memory with --data.mode resident if they fit")
    if fields.get("data.cache") == "off":
        found.append("keep decoded images on disk with --data.cache auto")
    found.append("leave more CPUs to reading (a lower --scaling.cpus_per_worker, or more nodes)")
    return ", or ".join([*found, "put the data on a faster disk"])


def _for_augmentation(fields: Mapping[str, Any], device: str) -> str:
    found = ["take fewer or cheaper operations in data.augment"]
    if "data.size" in fields:
        found.append("store smaller images with --data.size")
    found.append(
        "use more workers" if device == "cpu" else "move what your own operations compute on the CPU to the GPU"
    )
    return ", or ".join(found)


def _for_exchange(fields: Mapping[str, Any], device: str) -> str:
    found = [f"exchange less often with a larger --batch_size, such as {2 * int(fields.get('batch_size', 0))}"]
    sent = device != "cpu" or fields.get("parallel.reduction") == "torch"  # not in shared memory
    if sent and fields.get("parallel.compression") == "none":
        found.append("send half the bytes with --parallel.compression bf16")
    return ", or ".join([*found, "use fewer workers or a faster network"])


def _for_checkpoints(fields: Mapping[str, Any], fewer: int) -> str:
    found = []
    if steps := fields.get("checkpoint.every_steps"):
        found.append(f"write fewer of them with --checkpoint.every_steps {steps * fewer}")
    if minutes := fields.get("checkpoint.every_minutes"):
        found.append(f"write fewer of them with --checkpoint.every_minutes {minutes * fewer:g}")
    if not found and (steps := fields.get("validate_every_steps")):
        found.append(f"each validation has one: --validate_every_steps {steps * fewer}")
    return ", or ".join([*found, "write them to faster storage (--out)"])


def _for_validation(fields: Mapping[str, Any], fewer: int) -> str:
    if steps := fields.get("validate_every_steps"):
        return f"validate less often with --validate_every_steps {steps * fewer}"
    found = ["validate fewer samples"]
    if "data.val_fraction" in fields:  # it has no effect on data that brings a split, which the record does not tell
        found[0] += " (a smaller --data.val_fraction, unless the data has a split of its own)"
    return ", or ".join([*found, "make epochs longer with --sampler.count"])


def section(rows: Sequence[Mapping[str, Any]], value: Experiment, device: str) -> str:
    """Return the content of the section: the bottleneck, a bar and a row of a table for each epoch; empty for a run of
    an older version.

    Args:
        rows: those of validations; the last one of each epoch counts.
    """
    last = {row.get("epoch"): seconds for row in rows if (seconds := read(row))}
    if not last:
        return ""
    total: dict[str, float] = {}
    for seconds in last.values():
        total = added(total, seconds)
    found = bottleneck(total, value, device)
    every = math.ceil(len(last) / _MOST_BARS)
    shown = [*last.items()][::every]
    names = [name for name in PHASES if name in total]
    lines = [
        (epoch, math.fsum(spent.values()), *(spent.get(name) for name in names))
        for epoch, spent in [*shown, ("all", total)]
    ]
    caption = "Seconds of each phase" + (f" (one epoch of {every})" if every > 1 else "")
    said = f"<p>{safe(found.line[:1].upper() + found.line[1:])}.</p>" if found else ""
    note = (
        "<p class='muted'>Seconds of the worker that the others wait for. On a GPU the exchange is a part of compute."
    )
    note += " A checkpoint after an epoch counts in the next one.</p>"
    heads = ("epoch", "sum", *names)
    return said + _bars(shown, names) + table(caption, heads, lines) + note


def _bars(epochs: Sequence[tuple[Any, Mapping[str, float]]], names: Iterable[str]) -> str:
    """Return a bar for each epoch, of which each phase has a part."""
    names, most = list(names), max(math.fsum(spent.values()) for _, spent in epochs) or 1.0
    drawn, height = [], (_BAR + 4) * len(epochs) + 4
    for place, (epoch, spent) in enumerate(epochs):
        left, top = float(_LEFT), 4 + place * (_BAR + 4)
        drawn.append(f'<text x="{_LEFT - 6}" y="{top + _BAR - 2}" text-anchor="end">{safe(epoch)}</text>')
        for name in names:
            width = spent.get(name, 0.0) / most * (_WIDTH - _LEFT)
            title = f"<title>epoch {safe(epoch)}, {PHASES[name]}: {spent.get(name, 0.0):.2f} s</title>"
            box = f'x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}"'
            drawn.append(f"<rect {_filled(name)} {box}>{title}</rect>")
            left += width
    legend = "".join(
        f'<li><svg viewBox="0 0 32 12" aria-hidden="true"><rect {_filled(name)} width="32" height="12"/></svg>'
        f"{PHASES[name]}</li>"
        for name in names
    )
    label = "Seconds of each phase in each epoch; the table below has the numbers"
    svg = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'
    figure = f'<figure><h3>Seconds in each epoch</h3>{svg}<ul class="legend">{legend}</ul></figure>'
    return f'<div class="charts">{figure}</div>'


def _filled(name: str) -> str:
    return f'class="d{_COLOURS[name]}"' if name in _COLOURS else 'style="fill:var(--muted)"'
