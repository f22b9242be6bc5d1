"""Checkpoints that are written aside: how long training waits for one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from raytrain import Checkpoint, checkpoint, writer
from raytrain.run import MetricsLog
from raytrain.writer import CheckpointWriter

STATE = {"progress": {"best": {}}, "metrics_bytes": 0}


class Gate:
    """`checkpoint.save` that waits until it may."""

    def __init__(self) -> None:
        self.open, self.entered, self.save = threading.Event(), threading.Event(), checkpoint.save
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
    monkeypatch.setattr(checkpoint, "save", made)
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
    assert checkpoint.committed(keeper.run / "checkpoints") == ["step_00000010"]
    assert checkpoint.newest(keeper.run / "checkpoints") is not None


def test_slow_storage_holds_training_up_once_and_for_a_share_of_the_time_between_two(
    keeper: CheckpointWriter, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float | None] = []
    hand_over(keeper, 10)
    gate.open.set()
    keeper.settle()
    time.sleep(0.3)
    gate.open.clear()
    gate.entered.clear()
    hand_over(keeper, 20)
    assert gate.entered.wait(30)
    wait = keeper._written.wait
    monkeypatch.setattr(keeper._written, "wait", lambda seconds=None: waited.append(seconds) or wait(seconds))
    keeper.settle()
    keeper.settle()
    assert len(waited) == 1 and 0.02 * 0.3 <= (waited[0] or 0) < 0.02 * 30
    assert checkpoint.committed(keeper.run / "checkpoints") == ["step_00000010"]
    gate.open.set()


def test_a_checkpoint_that_is_refused_is_not_waited_for(
    keeper: CheckpointWriter, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_WAIT", 1e9)
    gate.error = OSError(28, "No space left on device")
    gate.open.set()
    hand_over(keeper, 10)
    keeper.settle()
    assert checkpoint.committed(keeper.run / "checkpoints") == []
    keeper.wait()
    assert "No space left" in (keeper.run / "logs" / "checkpoints.log").read_text()
