"""Packs that tests write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raytrain import Data
from raytrain.tools import pack as packing
from raytrain.tools.pack_settings import Settings


def packed(data: Data, dest: Path | str, **settings: Any) -> str:
    """What `raytrain pack` says, without its progress."""
    return packing.pack(data, str(dest), Settings(**settings), lambda total, done: None, lambda count: None)
