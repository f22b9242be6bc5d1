"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with the real data: `mnist` in torchvision's layout and `hymenoptera`."""
    default = Path(__file__).parents[2] / "shared" / "data"
    root = Path(os.environ.get("RAYTRAIN_TEST_DATA", default)).absolute()
    if not root.is_dir():
        pytest.skip(f"the real data is not at {root}: set RAYTRAIN_TEST_DATA to a folder with mnist and hymenoptera")
    return root
