"""A trace of some steps on each rank, and what they spend their time on."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from raytrain.files import write_atomically
from raytrain.hooks import Hook
from raytrain.training.phases import Clock
from raytrain.watchdog import doing

WARM_UP = 10
"""Steps before the trace: they compile, allocate and fill queues."""
FOLDER, FIGURES = "profile", "logs/profile.json"
"""In the run's directory: the folder of traces, `rankN.json.gz`, and what they say."""
_MOST_OPERATORS = 15
_EXCHANGES = ("nccl", "gloo", "c10d::")


@dataclass(frozen=True)
class Profiling(Hook):
    """Trace steps with torch.profiler after a warm-up, or up to the run's end. Whoever drives the trainer adds this
    hook: it is no part of the experiment, returns no columns and has no state in checkpoints.

    Each rank writes a trace for chrome://tracing or Perfetto; rank 0 writes the figures of all ranks.
    """

    steps: int
    """Steps to trace."""

    def start(self, trainer: Any) -> None:
        """Count steps from here on."""
        self.state.update({"left": WARM_UP, "tracing": None})

    def after_step(self, trainer: Any) -> None:
        """Start or end the trace where it is due."""
        self.state["left"] -= 1
        if self.state["left"]:
            return
        with _uncounted():
            if self.state["tracing"]:
                self._end(trainer, self.steps)
            else:
                self._begin(trainer)

    def after_validation(self, trainer: Any, row: Mapping[str, Any]) -> None:
        """End the trace with the run."""
        if trainer.over and self.state["tracing"]:
            with _uncounted():
                self._end(trainer, self.steps - self.state["left"])

    def after_epoch(self, trainer: Any, row: Mapping[str, Any]) -> None:
        """End the trace with the run."""
        self.after_validation(trainer, row)

    def _begin(self, trainer: Any) -> None:
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it complains of a missing GPU
        on_gpu = trainer.ranks.device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        self.state.update({"left": self.steps, "tracing": profile(activities=activities)})
        self.state["tracing"].start()
        trainer.strategy.all_reduce(torch.zeros(1, dtype=torch.float64, device=trainer.ranks.device))  # start together
        self.state["clock"] = Clock()

    def _end(self, trainer: Any, steps: int) -> None:
        """Write the trace and the figures. A collective."""
        activities, tracing, ranks = self.state["clock"].activities(), self.state["tracing"], trainer.ranks
        self.state.update({"tracing": None, "left": -1})
        tracing.stop()
        on_gpu = ranks.device.type == "cuda"
        own = {
            "rank": ranks.rank,
            "steps": steps,
            "activities": activities,
            "operators": _operators(tracing, on_gpu),
            "device": device_seconds(_spans(tracing)) if on_gpu else None,
        }
        with contextlib.suppress(OSError):  # storage that refuses a trace ends no run
            self._write_trace(trainer, tracing)
        every: list[Any] = [own]
        if ranks.world > 1:
            every *= ranks.world
            dist.all_gather_object(every, own)
        if ranks.rank == 0:
            found = {"first": trainer.progress.step - steps + 1, "ranks": every, "device": ranks.device.type}
            text = json.dumps(found | {"steps_per_epoch": trainer.steps_per_epoch})
            with contextlib.suppress(OSError):
                (trainer.run.path / FIGURES).parent.mkdir(exist_ok=True)
                write_atomically(trainer.run.path / FIGURES, text)
                if trainer.storage:
                    trainer.storage.write(FIGURES, text.encode())

    def _write_trace(self, trainer: Any, tracing: Any) -> None:
        file = trainer.run.path / FOLDER / f"rank{trainer.ranks.rank}.json.gz"
        file.parent.mkdir(exist_ok=True)
        tracing.export_chrome_trace(str(file))
        if trainer.storage:
            trainer.storage.write(f"{FOLDER}/{file.name}", file)


@contextlib.contextmanager
def _uncounted() -> Iterator[None]:
    """The context in which the profiler's own work is no time of the run."""
    before = doing.what
    doing.at("profiling")
    yield
    doing.at(before)


def _operators(tracing: Any, on_gpu: bool) -> list[dict[str, Any]]:
    """Return the operators with the longest own time, on the device where there is one, in seconds."""
    found = []
    for one in tracing.key_averages():
        own = one.self_device_time_total if on_gpu else one.self_cpu_time_total
        if own and not (on_gpu and one.is_user_annotation):
            found.append({"name": one.key, "calls": one.count, "seconds": own / 1e6})
    return sorted(found, key=lambda one: -one["seconds"])[:_MOST_OPERATORS]


class Span(NamedTuple):
    """Work of a device: a kernel or a copy, from `start` to `end`, in microseconds."""

    name: str
    start: float
    end: float


def _spans(tracing: Any) -> list[Span]:
    return [
        Span(one.name, one.time_range.start, one.time_range.end)
        for one in tracing.events()
        if one.device_type.name == "CUDA" and not one.is_user_annotation  # which spans idle time too
    ]


def device_seconds(spans: Sequence[Span]) -> dict[str, float]:
    """Return the seconds of a GPU's work: `compute`, and what is not hidden behind it, `exchange` and then `copies`;
    and `idle` between the first and the last span."""
    exchanges = [span for span in spans if any(mark in span.name.lower() for mark in _EXCHANGES)]
    copies = [span for span in spans if span.name.startswith(("Memcpy HtoD", "Memcpy DtoH"))]
    others = {*exchanges, *copies}
    kernels = [span for span in spans if span not in others]
    computes, exchanged, all_ = _length(kernels), _length([*kernels, *exchanges]), _length(spans)
    whole = max(span.end for span in spans) - min(span.start for span in spans) if spans else 0.0
    found = {"compute": computes, "exchange": exchanged - computes, "copies": all_ - exchanged, "idle": whole - all_}
    return {name: value / 1e6 for name, value in found.items()}


def _length(spans: Iterable[Span]) -> float:
    """Return the length of the union of spans."""
    total, until = 0.0, float("-inf")
    for _, start, end in sorted(spans, key=lambda span: span.start):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
