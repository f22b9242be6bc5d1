"""What the tests of killed sweeps share: one sweep that nothing disturbs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sweeps import COMMANDS, Pace, undisturbed


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
