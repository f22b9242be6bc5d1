"""Every system call of writing checkpoints, and what goes wrong at it: a kill, a full disk, a broken one.

`Disk` stands for `os` in the modules that write. It counts their calls and lets the one at a point fail; after a kill
all further ones raise too, as nothing of a dead process reaches the disk.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raytrain import Checkpoint, files
from raytrain.checkpoint import checkpoints, layout, retention, side_thread
from raytrain.run import begin, lock, metrics_log, run, writer
from raytrain.run.metrics_log import MetricsLog, read_metrics
from raytrain.run.writer import CheckpointWriter
from raytrain.training.progress import Progress

STEPS, EPOCH = 4, 2
SETTINGS = Checkpoint(keep=1, keep_every=2)
KINDS = ("kill", "torn", "power", "SIGKILL", "ENOSPC", "EIO", "short", "away")
"""torn: a kill in the middle of a write. power: a kill, and what was not synced is lost. away: all calls fail up to the
next checkpoint, those that clean up too."""

_CHANGING = ("mkdir", "write", "pwrite", "ftruncate", "fsync", "replace")
_CALLS = (*_CHANGING, "open", "close", "unlink", "rmdir", "listdir", "lstat", "fstat", "stat")


class Killed(BaseException):
    """Stands for the process's end."""


@dataclass
class Disk:
    """`os`, whose call number `at` goes wrong."""

    kind: str | None = None
    at: int = -1
    calls: list[str] = field(default_factory=list)
    dead: bool = False
    away: bool = False
    files: dict[int, str] = field(default_factory=dict)
    unsynced: dict[str, int] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return (lambda *a, **k: self._call(name, real, *a, **k)) if name in _CALLS else real

    @property
    def hit(self) -> bool:
        """Whether the point has been reached."""
        return len(self.calls) > self.at

    def applies(self, name: str) -> bool:
        """Whether that can go wrong with such a call."""
        if self.kind in ("short", "torn"):
            return name in ("write", "pwrite")
        return name in (*_CHANGING, "open", "close") if self.kind == "ENOSPC" else True

    def _call(self, name: str, real: Any, *arguments: Any, **more: Any) -> Any:
        if self.dead:
            if name == "close":
                real(*arguments)
            raise Killed
        here = len(self.calls) == self.at and self.kind is not None
        self.calls.append(name)
        if self.away or (here and self.kind == "away"):
            self.away = True
            if name == "close":
                real(*arguments)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(arguments[0]))
        if here and self.applies(name):
            if self.kind in ("kill", "torn", "power", "SIGKILL"):
                if self.kind == "torn":
                    self._half(real, *arguments)
                self.die()
            if self.kind == "short":
                return self._half(real, *arguments)
            if name == "close":
                real(*arguments)
            if name in ("write", "pwrite"):
                self._half(real, *arguments)
            raise OSError(getattr(errno, str(self.kind)), os.strerror(getattr(errno, str(self.kind))), "there")
        if name in ("write", "pwrite"):
            path = self.files[arguments[0]]
            self.unsynced.setdefault(path, os.path.getsize(path))
        found = real(*arguments, **more)
        if name == "open":
            self.files[found] = str(arguments[0])
            if arguments[1] & os.O_TRUNC:
                self.unsynced[str(arguments[0])] = 0
        elif name == "fsync":
            self.unsynced.pop(self.files[arguments[0]], None)
        elif name == "replace" and str(arguments[0]) in self.unsynced:
            self.unsynced[str(arguments[1])] = self.unsynced.pop(str(arguments[0]))
        return found

    def die(self) -> None:
        if self.kind == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        self.dead = True
        if self.kind == "power":
            for path, size in self.unsynced.items():
                if os.path.exists(path):
                    os.truncate(path, size)
        raise Killed

    @staticmethod
    def _half(real: Any, file: int, data: bytes, *at: int) -> int:
        return real(file, bytes(data[: (len(data) + 1) // 2]), *at)


@contextmanager
def standing_for_os(disk: Any) -> Iterator[None]:
    """Puts it into the modules that write a run."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (checkpoints, layout, retention, files, run, begin, lock, metrics_log, writer):
            patch.setattr(module, "os", disk)
        back = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: setattr(disk, "away", False))
        patch.setattr(side_thread, "time", back)
        yield


class _AtOnce:
    """A side thread that is none."""

    def start(self, write: Any) -> None:
        write()

    def wait(self) -> None:
        """All is written."""

    close = wait


def content(step: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """A model and an optimizer that are those of one step alone."""
    values = torch.arange(37, dtype=torch.float32) * 0.1 + step
    return {"w": values, "count": torch.tensor(step)}, {"optimizer": {"m": values * 3, "step": step}, "precision": {}}


def row(step: int) -> dict[str, Any]:
    return {"kind": "step", "step": step, "loss": 1 / (step + 1)}


def best(step: int) -> dict[str, Any]:
    """The first epoch is the best one until the third."""
    at = EPOCH if step < 3 * EPOCH else 3 * EPOCH
    return {"val_accuracy": 0.1 * at, "checkpoint": layout.name_of(at)} if step >= EPOCH else {}


def train(path: Path, disk: Disk, steps: int = STEPS, start: Any = None) -> None:
    """Writes rows and a checkpoint at each step, from the newest checkpoint on, as rank 0 does."""
    found = next(checkpoints.loadable(path / "checkpoints"), None)
    first = found.state["progress"]["step"] if found else 0
    retention.drop_after(path / "checkpoints", first)
    log = MetricsLog(path / "metrics.jsonl", found.state["metrics_bytes"] if found else 0)
    keeper = CheckpointWriter(path, log, SETTINGS, EPOCH)
    keeper.close()
    keeper.background = _AtOnce()  # type: ignore[assignment]
    if found:
        keeper.resume(found.path.name, first, found.state["progress"]["best"])
    for step in range(first + 1, steps + 1):
        disk.away = False
        log.write([row(step)])
        progress = Progress(step=step, epoch=step // EPOCH, best=best(step))
        state = {"progress": vars(progress), "metrics_bytes": log.size, "of": step}
        keeper.wait()
        if start:
            start(step)
        keeper.start(step, *content(step), state)
    disk.away = False
    keeper.finish({"status": "completed", "steps": steps})
    log.close()


def check(path: Path, at_least: int, at_most: int) -> int:
    """The newest checkpoint is of such a step, whole and bit-equal, and vouches for all rows before it; returns it."""
    found = next(checkpoints.loadable(path / "checkpoints"), None)
    step = found.state["progress"]["step"] if found else 0
    assert at_least <= step <= at_most, f"the newest is of step {step}"
    if found:
        model, optimizer = content(step)
        assert found.path.name == layout.name_of(step) and found.state["of"] == step
        assert found.model.keys() == model.keys() and all(torch.equal(found.model[n], model[n]) for n in model)
        assert torch.equal(found.optimizer["optimizer"]["m"], optimizer["optimizer"]["m"])
        rows = (path / "metrics.jsonl").read_bytes()[: found.state["metrics_bytes"]]
        assert [json.loads(line) for line in rows.splitlines()] == [row(n) for n in range(1, step + 1)]
    for name in layout.committed(path / "checkpoints"):
        layout.verify(path / "checkpoints" / name)
    for pointer in ("best.json", "last.json"):
        if (path / pointer).exists():
            json.loads((path / pointer).read_text())
    return step


def outcome(path: Path) -> dict[str, Any]:
    """All that a run leaves, but for what it said of storage."""
    left = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
    return {name: text for name, text in left.items() if not name.startswith("logs") and "/." not in f"/{name}"}


def rows_of(path: Path) -> list[int]:
    return [one["step"] for one in read_metrics(path / "metrics.jsonl")[0]]
