"""Checkpoints that are written aside: how long training waits for one."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from raytrain import Checkpoint
from raytrain.checkpoint import checkpoints, layout
from raytrain.run import writer
from raytrain.run.metrics_log import MetricsLog
from raytrain.run.writer import CheckpointWriter

STATE = {"progress": {"best": {}}, "metrics_bytes": 0}


class Gate:
    """`checkpoint.save` that waits until it may."""

    def __init__(self) -> None:
        self.open, self.entered, self.save = threading.Event(), threading.Event(), checkpoints.save
        self.error: OSError | None = None

    def __call__(self, *arguments: Any) -> Path:
        self.entered.set()
        assert self.open.wait(30)
        if self.error:
            raise self.error
        return self.save(*arguments)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    made = Gate()
    monkeypatch.setattr(checkpoints, "save", made)
    return made


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[CheckpointWriter]:
    (tmp_path / "logs").mkdir()
    log = MetricsLog(tmp_path / "metrics.jsonl", 0)
    made = CheckpointWriter(tmp_path, log, Checkpoint(), 10)
    yield made
    made.close()
    log.close()


def hand_over(keeper: CheckpointWriter, step: int) -> None:
    keeper.wait()
    keeper.start(step, {"w": torch.ones(3)}, {"optimizer": {}}, STATE)


def test_training_waits_until_the_checkpoint_is_committed(
    keeper: CheckpointWriter, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_WAIT", 1e9)
    hand_over(keeper, 10)
    assert gate.entered.wait(30)
    threading.Timer(0.2, gate.open.set).start()
    keeper.settle()
    assert layout.committed(keeper.run / "checkpoints") == ["step_00000010"]
    assert layout.newest(keeper.run / "checkpoints") is not None


def test_weights_that_are_not_finite_come_into_no_checkpoint(keeper: CheckpointWriter) -> None:
    keeper.finite = ["w", "small"]
    weights = {"w": torch.ones(3), "small": torch.ones(2, dtype=torch.float8_e4m3fn), "mask": torch.tensor([-math.inf])}
    keeper.start(10, weights, {"optimizer": {}}, STATE)
    keeper.wait()
    for leave in (keeper.wait, lambda: keeper.finish({})):
        keeper.start(20, weights | {"w": torch.tensor([1.0, math.nan])}, {"optimizer": {}}, STATE)
        with pytest.raises(
            FloatingPointError, match=r"^w became .* by step 20, .*; the last checkpoint is step_00000010$"
        ):
            leave()
    assert layout.committed(keeper.run / "checkpoints") == ["step_00000010"]


def test_slow_storage_delays_training_by_a_bounded_share(
    keeper: CheckpointWriter, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[float] = []
    monkeypatch.setattr(keeper._written, "wait", lambda seconds: limits.append(seconds))
    for step, (seconds, waited) in enumerate(((0, 0), (200, 0), (200, 0.5), (200, 3), (10_000, 0)), 1):
        gate.open.clear()
        hand_over(keeper, step)
        keeper.began, keeper._waited = time.monotonic() - seconds, waited
        keeper.settle()
        keeper.settle()  # once a checkpoint
        assert f"step_{step:08d}" not in layout.committed(keeper.run / "checkpoints")
        gate.open.set()
        keeper.wait()
    assert limits == pytest.approx([0.0, 1.0, 0.5, 0.0, writer._LONGEST], abs=0.05)


def test_what_training_has_waited_counts(keeper: CheckpointWriter, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_WAIT", 0.5)
    hand_over(keeper, 10)
    keeper.began = time.monotonic() - 0.4
    keeper.settle()
    assert keeper._waited >= 0.2
    gate.open.set()


def test_a_checkpoint_that_is_refused_is_not_waited_for(
    keeper: CheckpointWriter, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_WAIT", 1e9)
    gate.error = OSError(28, "No space left on device")
    gate.open.set()
    hand_over(keeper, 10)
    keeper.settle()
    assert layout.committed(keeper.run / "checkpoints") == []
    keeper.wait()
    assert "No space left" in (keeper.run / "logs" / "checkpoints.log").read_text()
