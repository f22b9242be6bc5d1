"""The harness: starts sides, gives the turn to one after the other, and makes ratios of what they answer.

Sides alternate A B A B in persistent processes, so that a machine that grows slower or faster does so for all of them;
a ratio is taken in every round, and what counts is the median of those.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.side import Workload

ROOT = Path(__file__).parents[1]
TURN_SECONDS = 300
"""A turn that takes longer has failed."""


class SideFailed(Exception):
    """A side ended, or took too long; the message has the end of its output."""


@dataclass(frozen=True)
class Turn:
    """What a side's ranks answered in one turn."""

    rate: float
    """Samples per second, over all ranks."""
    loss: float | None
    """Mean loss of the turn's samples, where the side measures it."""
    memory: dict[str, int]
    """`pss`, `uss` and `private` of the rank that has most, in bytes."""
    more: dict[str, float]
    """Whatever else rank 0 answered."""


class Side(AbstractContextManager["Side"]):
    """A peer's processes, one a rank.

    Args:
        name: the module in benchmarks/sides.
        workload: what it trains.
    """

    def __init__(self, name: str, workload: Workload):
        self.name = name
        self.output = tempfile.TemporaryFile("w+")
        variables = environment(workload.ranks)
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-m", f"benchmarks.sides.{name}", workload.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.output,
                cwd=ROOT,
                env=variables | {"RANK": str(rank)},
                start_new_session=True,
            )
            for rank in range(workload.ranks)
        ]

    def turn(self) -> Turn:
        """Lets the side train one segment, and waits for it.

        Raises:
            SideFailed: it did not answer.
        """
        for process in self.ranks:
            assert process.stdin
            try:
                process.stdin.write(b"run\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise self._failed("ended") from None
        answers = [self._answer(process) for process in self.ranks]
        losses = [answer["loss"] for answer in answers if answer["loss"] is not None]
        return Turn(
            sum(answer["samples"] for answer in answers) / max(answer["seconds"] for answer in answers),
            statistics.mean(losses) if losses else None,
            {kind: max(answer[kind] for answer in answers) for kind in ("pss", "uss", "private")},
            {name: value for name, value in answers[0].items() if name not in ("loss", "pss", "uss", "private")},
        )

    def __exit__(self, *_: object) -> None:
        """Ends the side: by the end of its input, or else by force."""
        for process in self.ranks:
            assert process.stdin and process.stdout
            process.stdin.close()
            process.stdout.close()
        for process in self.ranks:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.output.close()

    def _answer(self, process: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert process.stdout
        if not select.select([process.stdout], [], [], TURN_SECONDS)[0]:
            raise self._failed(f"took longer than {TURN_SECONDS} s")
        line = process.stdout.readline()
        if not line:
            raise self._failed("ended")
        return json.loads(line)

    def _failed(self, what: str) -> SideFailed:
        self.output.seek(0)
        return SideFailed(f"{self.name} {what}:\n" + "".join(self.output.readlines()[-20:]))


def environment(ranks: int) -> dict[str, str]:
    """One thread a rank, no GPU, no cluster of others, bytecode as everybody has it."""
    others = ("RAY_ADDRESS", "PYTHONDONTWRITEBYTECODE")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {name: value for name, value in os.environ.items() if name not in others} | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    }


def alternate(sides: Sequence[Side], rounds: int) -> list[list[Turn]]:
    """The turns of each side: one to warm up, then `rounds` in which the sides take turns."""
    turns: list[list[Turn]] = [[] for _ in sides]
    for _ in range(1 + rounds):
        for side, taken in zip(sides, turns, strict=True):
            taken.append(side.turn())
    return turns


@dataclass(frozen=True)
class Measured:
    """What a row found."""

    ours: float
    theirs: float
    ratios: tuple[float, ...]
    """Ours by theirs, a round each."""
    unit: str = "samples/s"
    note: str = ""
    warning: str = ""
    """Why the comparison is not one of equals, if it is not."""
    more: dict[str, float] = field(default_factory=dict)
    """Medians of what else our side answered."""

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(self.ratios)


def compare(ours: Side, theirs: Side, rounds: int) -> Measured:
    """Samples per second of two sides that alternate, and whether they learnt the same."""
    return compare_each([ours], theirs, rounds)[0]


def compare_each(ours: Sequence[Side], theirs: Side, rounds: int) -> list[Measured]:
    """The same of several sides of ours against one that is theirs."""
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(side) for side in (*ours, theirs)]
        *mine, other = alternate(sides, rounds)
    return [measured(turns, other) for turns in mine]


def measured(mine: Sequence[Turn], other: Sequence[Turn]) -> Measured:
    """The ratios of all turns but the first, which warms up."""
    ratios = tuple(a.rate / b.rate for a, b in zip(mine[1:], other[1:], strict=True))
    note, warning = compare_losses(mine, other)
    return Measured(
        statistics.median(turn.rate for turn in mine[1:]),
        statistics.median(turn.rate for turn in other[1:]),
        ratios,
        note=note,
        warning=warning,
        more=medians(mine[1:]),
    )


def medians(turns: Sequence[Turn]) -> dict[str, float]:
    """Of whatever else a side answered."""
    return {name: statistics.median(turn.more[name] for turn in turns) for name in turns[0].more}


def compare_losses(ours: Sequence[Turn], theirs: Sequence[Turn]) -> tuple[str, str]:
    """(note, warning) on the mean losses after the same numbers of samples, from the very first turn on."""
    pairs = [(a.loss, b.loss) for a, b in zip(ours, theirs, strict=True) if a.loss is not None and b.loss is not None]
    if not pairs:
        return "", ""
    note = "losses " + ", ".join(f"{mine:.3f}/{other:.3f}" for mine, other in (pairs[0], pairs[-1]))
    # The sides see the samples in orders of their own: six orders gave 0.30 to 0.38 in the first epoch of the CNN.
    differ = any(abs(mine - other) > 0.25 * other + 0.02 for mine, other in pairs)
    return note, "losses differ" if differ else ""
