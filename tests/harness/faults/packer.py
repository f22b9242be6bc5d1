"""A packer of small shards, which takes a moment for each, as a process that can be killed."""

from __future__ import annotations

import sys
import time
from typing import Any

from raytrain import ImageFolder
from raytrain.errors import UserError
from raytrain.tools import pack as packing
from raytrain.tools.pack_settings import Settings


def pack(source: str, dest: str, seconds: float) -> None:
    """Pack images as raw arrays, eight to a shard; exit with 2 if that is refused."""
    real = packing.write_shard

    def slowly(*arguments: Any, **named: Any) -> Any:
        time.sleep(seconds)
        return real(*arguments, **named)

    packing.SHARD_BYTES, packing.write_shard = 8 * 8 * 8 * 3, slowly
    try:
        data = ImageFolder(source, size=8, cache="off")
        packing.pack(data, dest, Settings(codec="raw"), lambda total, done: None, lambda count: None)
    except UserError:
        sys.exit(2)
    finally:
        packing.write_shard = real
