"""Two of the faults of `make data-faults`."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness.faults.data_runs import World, play


@pytest.mark.slow
def test_runs_whose_reads_are_cut_and_whose_cache_is_removed_are_bit_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "RAY_AUTH_MODE"):
        monkeypatch.setenv(name, "")  # taken back at the end
    world = World(tmp_path)
    try:
        assert play("connection cut", 0, 6, world).injected == 6
        assert play("cache evicted", 0, 4, world).injected >= 1
    finally:
        world.close()
