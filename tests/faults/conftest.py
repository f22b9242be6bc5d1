"""What the tests of killed sweeps share: sweeps that nothing disturbs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.faults.sweeps import COMMANDS, EIGHT, Pace, undisturbed
from harness.faults.writes import audited


@pytest.fixture(scope="session", autouse=True)
def none_forgotten() -> Iterator[None]:
    """Ends the commands of tests that failed."""
    yield
    for command in COMMANDS:
        command.abandon()


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Pace]:
    """The sweep's directory, and how long each phase took."""
    sweep = tmp_path_factory.mktemp("sweeps") / "whole"
    return sweep, undisturbed(sweep)


@pytest.fixture(scope="session")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with trials that end soon, where no kill must come while they train."""
    sweep = tmp_path_factory.mktemp("sweeps") / "short"
    undisturbed(sweep, EIGHT, "--epochs", "4")
    return sweep


@pytest.fixture(scope="module")
def every_write_told(cluster: None) -> Iterator[None]:
    """Tells `harness.faults.writes` of each write of this process."""
    with audited():
        yield
