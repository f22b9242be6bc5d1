"""Two of the faults of `make faults`, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.faults.runs import WAYS, play, undisturbed


@pytest.mark.slow
def test_run_with_two_killed_workers_is_bit_equal(tmp_path: Path) -> None:
    way = WAYS[0]
    story = play("worker killed", 0, tmp_path / "cut", 2, undisturbed(tmp_path, way))
    assert [fault.recovered and fault.equal for fault in story.faults] == [True, True]
    assert "lost: rank" in story.command.said and "starting 2 workers" in story.command.said
