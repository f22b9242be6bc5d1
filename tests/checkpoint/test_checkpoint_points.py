"""Whatever goes wrong at whichever call of writing checkpoints: what was committed stays, and no half of one counts."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.faults.points import STEPS, Disk, Killed, check, outcome, standing_for_os, train

COUNTS: dict[str, int] = {}


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder that is fast to sync."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def calls(memory: Path) -> tuple[list[str], dict[str, bytes]]:
    """The calls of a run that nothing disturbs, and what it leaves."""
    disk, path = Disk(), memory / "whole"
    path.mkdir()
    with standing_for_os(disk):
        train(path, disk)
    assert check(path, STEPS, STEPS) == STEPS and not (path / "logs").exists()
    return disk.calls, outcome(path)


def disturbed(path: Path, disk: Disk) -> None:
    """One run with its fault; what was committed before it is there right after it, and in the end all is."""
    path.mkdir()
    begun, whole = 0, 0

    def start(step: int) -> None:
        nonlocal begun, whole
        if not disk.hit:
            whole = step - 1  # the one before was written without a fault
        elif begun == step - 1 and not disk.dead:  # the fault came in the checkpoint before
            with standing_for_os(os):
                check(path, whole, step - 1)
        begun = step

    with standing_for_os(disk):
        try:
            train(path, disk, start=start)
            ended = True
        except Killed:
            ended = False
        except OSError:  # a run that cannot read where it stands, or write at all, does not begin
            ended = False
            assert begun == 0
    assert disk.hit and ended != (disk.dead or begun == 0)
    check(path, whole, begun)
    if not ended:
        train(path, Disk())


@pytest.mark.parametrize("kind", ["kill", "torn", "power", "ENOSPC", "EIO", "short", "away"])
def test_every_call_may_fail_and_nothing_committed_is_lost(
    memory: Path, calls: tuple[list[str], dict[str, bytes]], kind: str
) -> None:
    COUNTS[kind] = 0
    for at, name in enumerate(calls[0]):
        disk = Disk(kind, at)
        if not disk.applies(name):
            continue
        path = memory / f"{kind}-{at}"
        try:
            disturbed(path, disk)
            assert check(path, STEPS, STEPS) == STEPS
            if disk.dead or kind == "short":
                assert outcome(path) == calls[1]
            elif kind == "ENOSPC":
                assert not [*path.rglob(".*")]
        except BaseException as error:
            error.add_note(f"{kind} at call {at}, {name}: {disk.calls[max(0, at - 5) : at + 3]}")
            raise
        COUNTS[kind] += 1


def test_real_kill_leaves_what_a_simulated_one_does(tmp_path: Path, calls: tuple[list[str], dict[str, bytes]]) -> None:
    points = range(5, len(calls[0]), len(calls[0]) // 20)
    for at in points:
        path = tmp_path / str(at)
        path.mkdir()
        if not (child := os.fork()):
            with standing_for_os(disk := Disk("SIGKILL", at)):
                train(path, disk)
            os._exit(0)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        check(path, 0, STEPS)
        train(path, Disk())
        assert outcome(path) == calls[1]
    COUNTS["SIGKILL"] = len(points)


def test_there_are_at_least_a_thousand_points() -> None:
    print(COUNTS)
    assert sum(COUNTS.values()) >= 1000
