"""The watchdog of a rank: it detects that the rank hangs, names what the rank was doing, and ends its process.

When one rank hangs, the others soon wait for it in a collective, and no rank makes progress. A rank without progress
writes its position to the process group's store. Once all ranks have done so, the rank with the earliest position
hangs, and the others wait for it. A rank that still makes progress, in a long validation or a slow checkpoint, keeps
the others waiting. Nothing is exchanged while the run makes progress.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Literal, NamedTuple, TypeVar, get_args

T = TypeVar("T")

Phase = Literal[
    "starting",
    "between two steps",
    "adding up losses",
    "validating",
    "adding up the validation's metrics",
    "writing a checkpoint",
    "preparing a batch",
    "exchanging gradients",
    "updating the weights",
    "ending the run",
]
"""What a rank does, in the order from one step's end to the next."""
PREPARING: Phase = "preparing a batch"
EXCHANGING: Phase = "exchanging gradients"
WAITING, FORWARD, BACKWARD = "waiting for data", "in a forward pass", "in a backward pass"
MOVING, MEETING, SETTLING, HOOK = (
    "moving a batch to its device",
    "exchanging losses",
    "waiting for a checkpoint",
    "in a hook",
)
"""Parts of phases."""

_ORDER = {phase: number for number, phase in enumerate(get_args(Phase))}
_SLOW = {"starting", "writing a checkpoint", "ending the run"}
"""Phases that take longer: they import libraries, or wait for data and large files."""
_ALLOWANCE = 3
"""The factor by which these phases, and all that is done for the first time, may take longer: that may compile."""
_LOOK_SECONDS = 1.0
_SILENCE_SECONDS = 60.0
"""Seconds for which the store may be silent before a rank without progress decides alone. Long before that, Ray ends a
rank that loses rank 0."""
_MEETING = ("/torch/distributed/", "/torch/autograd/graph.py", "/raytrain/parallel/shared.py")
"""Files whose code waits for other ranks."""
_STDLIB = os.path.dirname(os.__file__)


class Activity:
    """The current phase and position of this process's rank. The rank's threads write it, and the watchdog reads it.

    Attributes:
        what: for messages.
        position: (step, number of the phase, parts of the phase begun); the slower of two ranks has the smaller one.
        ticks: changes with every sign of progress.
        known: all activities that have ended.

    It also measures how long each activity takes, for `spent`, on the host's clock: what a GPU computes takes time
    where the host waits for it.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what was done."""
        self.what: str = "starting"
        self.position = (0, 0, 0)
        self.ticks = 0
        self.known: set[str] = set()
        self._spent: dict[str, dict[str, float]] = {}
        self._parts, self._since = self._spent.setdefault(self.what, {}), time.perf_counter()

    def begin(self, phase: Phase, step: int) -> None:
        """Begin a phase. All ranks do so in the same order.

        Args:
            step: optimizer steps done.
        """
        self._end()
        self.what, self.position = phase, (step, _ORDER[phase], 0)
        self._parts = self._spent.setdefault(phase, {})
        self.ticks += 1

    def at(self, what: str) -> None:
        """Begin a part of the phase, such as a forward pass."""
        self._end()
        step, phase, part = self.position
        self.what, self.position = what, (step, phase, part + 1)
        self.ticks += 1

    def tick(self) -> None:
        """Give a sign of progress within a part, such as a chunk of a file; from any thread."""
        self.ticks += 1

    def spent(self) -> dict[str, dict[str, float]]:
        """Return the seconds so far of each part of each phase: `[phase][part]`, where the part before the first one
        has the phase's name. Called by the thread that trains."""
        self._end()
        return {phase: dict(parts) for phase, parts in self._spent.items()}

    def _end(self) -> None:
        """Count the time of the activity that ends."""
        now, what = time.perf_counter(), self.what
        self.known.add(what)
        self._parts[what] = self._parts.get(what, 0.0) + now - self._since
        self._since = now


doing = Activity()
"""This process's activity."""


def awaited(batches: Iterable[T]) -> Iterator[T]:
    """Yield the items of an iterator, and note that the rank waits for data meanwhile."""
    iterator = iter(batches)
    while True:
        doing.at(WAITING)
        try:
            one = next(iterator)
        except StopIteration:
            return
        yield one


class Hung(BaseException):
    """Training made no progress. It is no Exception, so that no code catches it as an error."""


class Hang(NamedTuple):
    """The last activity of a rank that hangs.

    Attributes:
        error: for people, in a line.
        at: file, line and function.
        stack: those of all threads, the rank's own last, since a log is read from its end.
    """

    error: str
    at: str
    stack: str


class _State(NamedTuple):
    """A rank's message to the others: its position without progress, and whether it may only wait for other ranks."""

    position: list[float]
    waits: bool


class Watchdog:
    """Watches the thread that enters it, from a separate thread.

    Args:
        rank, world: of the process group.
        seconds: how long the rank may make no progress; what is done for the first time may take three times as long,
            and so may a checkpoint.
        store: of torch.distributed, shared by the ranks; None for one rank alone.
        hung: called once, in the watchdog's thread, if this rank hangs.
        activity: what to watch.

    Attributes:
        ended: set when the thread has left the `with` statement.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        seconds: float,
        store: Any,
        hung: Callable[[Hang], None],
        activity: Activity = doing,
    ):
        self.rank, self.world, self.seconds, self.store, self.hung = rank, world, seconds, store, hung
        self.activity, self.ended = activity, threading.Event()
        self._thread, self._heard = threading.get_ident(), 0.0

    def __enter__(self) -> Watchdog:
        self.activity.reset()
        threading.Thread(target=self._watch, daemon=True, name="watchdog").start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.ended.set()
        if kind is None:
            self._tell(_State([math.inf], True))  # other ranks no longer wait for this one

    def _watch(self) -> None:
        pause = min(_LOOK_SECONDS, self.seconds / 4)
        still, ticks, stopped, told = 0.0, -1, False, False
        while not self.ended.wait(pause):  # counts the seconds that pass while the process runs: a machine may sleep
            if self.activity.ticks != ticks:
                ticks, still, stopped = self.activity.ticks, 0.0, False
                if told:
                    told = not self._tell(None)
                continue
            still += pause
            frame = sys._current_frames().get(self._thread)
            if still < self.seconds * self._allowance() or frame is None or _debugged(frame):
                continue
            if not stopped:
                stopped, self._heard = True, time.monotonic()
            told = told or self._tell(_State([*self.activity.position], _waits(frame)))
            suspects = self._suspects()
            if self.rank in suspects and self.activity.ticks == ticks and not self.ended.is_set():
                return self.hung(self._hang(still, frame, suspects))

    def _allowance(self) -> int:
        what = self.activity.what
        return _ALLOWANCE if what in _SLOW or what not in self.activity.known else 1

    def _tell(self, state: _State | None) -> bool:
        """Tell the other ranks this rank's position without progress, or None after progress; return whether the store
        took it."""
        if self.store is not None:
            try:
                self.store.set(f"stopped/{self.rank}", json.dumps(state))
            except RuntimeError:  # rank 0 is out of reach, or has gone, which ends all ranks
                return False
        return True

    def _suspects(self) -> set[int]:
        """Return the ranks with the earliest position once no rank makes progress; before that, none."""
        if self.store is None:
            return {self.rank}
        try:
            keys = [f"stopped/{rank}" for rank in range(self.world)]
            told = [json.loads(value) for value in self.store.multi_get(keys)] if self.store.check(keys) else []
            self._heard = time.monotonic()
        except RuntimeError:
            return {self.rank} if self._cut_off() else set()
        states = [_State(*state) for state in told if state is not None]
        if len(states) < self.world:
            return set()
        least = min(state.position for state in states)
        behind = {rank for rank, state in enumerate(states) if state.position == least}
        return {rank for rank in behind if not states[rank].waits} or behind

    def _cut_off(self) -> bool:
        """Return whether no message passes between the hosts of rank 0 and of this rank."""
        return self.store is not None and time.monotonic() > self._heard + _SILENCE_SECONDS

    def _hang(self, still: float, frame: FrameType, suspects: set[int]) -> Hang:
        what, step = self.activity.what, self.activity.position[0]
        if self._cut_off():
            error = f"lost touch with rank 0 after step {step}: no progress for {still:.0f} s while {what}"
        elif what == WAITING:
            error = f"waited in vain for data for {still:.0f} s after step {step}"
        else:
            error = f"hung after step {step}: no progress for {still:.0f} s while {what}"
        if others := sorted(suspects - {self.rank}):
            error += f", as did rank {others[0]}" if len(others) == 1 else f", as did {len(others)} other ranks"
        return Hang(error, _place(frame), _stacks(self._thread))


def _stacks(thread: int) -> str:
    """Return the stacks of all of Python's threads, that of `thread` last."""
    frames, names = sys._current_frames(), {one.ident: one.name for one in threading.enumerate()}
    threads = [one for one in frames if one not in (thread, threading.get_ident())] + [thread]
    stacks = (f"Thread {names.get(one, one)}:\n{''.join(traceback.format_stack(frames[one]))}" for one in threads)
    return "".join(stacks)


def _waits(frame: FrameType) -> bool:
    """Return whether it is possible that a thread only waits for other ranks."""
    return any(part in frame.f_code.co_filename.replace(os.sep, "/") for part in _MEETING)


def _debugged(frame: FrameType) -> bool:
    """Return whether a debugger is attached to the process."""
    files = (one.f_code.co_filename for one, _ in traceback.walk_stack(frame))
    return "pydevd" in sys.modules or any(file.endswith("/bdb.py") for file in files)


def _place(frame: FrameType) -> str:
    """Return file, line and function of the innermost frame that is no library's, or else of the innermost one."""
    stack = list(traceback.walk_stack(frame))
    files = [one.f_code.co_filename for one, _ in stack]
    own = [not (file.startswith((_STDLIB, "<")) or "site-packages" in file) for file in files]
    found, line = stack[own.index(True) if any(own) else 0]
    return f"{found.f_code.co_filename}:{line}, in {found.f_code.co_name}"
