"""The experiment that faults are injected into: every pass takes ten milliseconds and more, so that they come between
steps, and a worker does, once, what a file of orders says."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from raytrain import CNN, SGD, Augment, Batch, Checkpoint, Classification, Cosine, Digits, Experiment, Scaling


@dataclass(frozen=True)
class Paced(Classification):
    """Classification that looks for orders before each pass."""

    seconds: float = 0.01
    """Of sleep in each pass."""
    orders: str = ""
    """Folder of files such as `3.json`: {"kind": ..., "rank": ..., ...}."""

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        """The loss, after what was ordered."""
        time.sleep(self.seconds)
        loss, count = super().loss(model, batch)
        factor = 1.0
        if self.orders and model.training and dist.is_initialized():  # not in the plan
            if not _COUNTED and dist.get_rank() == 0:
                _count_steps(Path(self.orders) / "steps")
            for file in sorted(Path(self.orders).glob("*.json")):
                try:
                    order = json.loads(file.read_text())
                except FileNotFoundError:  # the other rank has taken it
                    continue
                if order["rank"] == dist.get_rank():
                    os.replace(file, file.with_suffix(".taken"))
                    factor *= _obey(order)
        return loss * factor, count


_COUNTED: list[int] = []


def _count_steps(file: Path) -> None:
    """Adds a byte for each step that is done, from now on, on a line with this time."""
    _COUNTED.append(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
    os.write(_COUNTED[0], f"\n{time.time()} ".encode())
    register_optimizer_step_post_hook(_count_step)


def _count_step(*_: Any) -> None:
    os.write(_COUNTED[0], b".")


def _obey(order: dict[str, Any]) -> float:
    kind = order["kind"]
    if kind == "exception":
        raise ValueError("injected")
    if kind == "nan":
        return math.nan
    if kind == "hang":
        threading.Event().wait()
    if kind == "memory":
        while memory()[1] < order["used"]:  # slowly enough for Ray's monitor to see it coming
            _HELD.append(bytearray(os.urandom(4096)) * (1 << 15))
            time.sleep(0.05)
        time.sleep(20)
    if kind == "clock":
        real = time.time
        time.time = lambda: real() + order["seconds"]
    if kind == "disk":
        _break_disk(order["call"], order["errno"], order["after"], order["times"])
    return 1.0


_HELD: list[bytearray] = []


def memory() -> tuple[int, int]:
    """This machine's memory, and what of it is in use, in bytes."""
    facts = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(facts[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    return total, total - free


def _break_disk(call: str, number: int, after: int, times: int) -> None:
    """Lets the calls of `os.<call>` on checkpoints' files fail, `times` of them after `after` good ones; with 0 for the
    errno the process ends there."""
    real, left = getattr(os, call), [after, times]

    def broken(what: Any, *rest: Any, **named: Any) -> Any:
        if "checkpoints" not in _name(what):
            return real(what, *rest, **named)
        left[0] -= 1
        if left[0] >= 0 or left[1] == 0:
            return real(what, *rest, **named)
        left[1] -= 1
        if number == 0:
            os.kill(os.getpid(), 9)
        raise OSError(number, os.strerror(number), _name(what))

    setattr(os, call, broken)


def _name(what: Any) -> str:
    return os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else str(what)


experiment = Experiment(
    model=CNN(channels=(8, 16), batch_norm=True, dropout=0.2),
    data=Digits(augment=Augment(crop="random_resized", scale=(0.6, 1.0), flip=0.5)),
    task=Paced(),
    optimizer=SGD(lr=0.05, momentum=0.9),
    schedule=Cosine(warmup_epochs=0.5),
    scaling=Scaling(workers=2, max_failures=10, resize_seconds=2.0),
    checkpoint=Checkpoint(every_steps=10),
    batch_size=64,
    epochs=24,
    ema_decay=0.99,
)
