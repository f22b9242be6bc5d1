"""What the tests of killed sweeps share: one sweep that nothing disturbs."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweeps import Pace, undisturbed


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Pace]:
    """The sweep's directory, and how long each phase took."""
    sweep = tmp_path_factory.mktemp("sweeps") / "whole"
    return sweep, undisturbed(sweep)
