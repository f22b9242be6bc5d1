"""Integration tests: real Ray on the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def experiments() -> Path:
    return ROOT / "experiments"
