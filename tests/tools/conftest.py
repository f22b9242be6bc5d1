"""What tests of packs share."""

from __future__ import annotations

import pytest

from raytrain.tools import pack as packing


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let packs of few samples have several shards."""
    monkeypatch.setattr(packing, "SHARD_BYTES", 12_000)
