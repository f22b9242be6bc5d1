"""The command pack."""

from __future__ import annotations

from raytrain.data import Data
from raytrain.report.pack import Bar
from raytrain.tools import pack as packing
from raytrain.tools.pack_settings import Settings


def pack(data: Data, dest: str, settings: Settings) -> None:
    """Write the samples of a source to shards."""
    with Bar().shown() as bar:
        text = packing.pack(data, dest, settings, bar.started, bar.advance)
    print(text)
    print(f"train from it with data=Packed({dest!r})")
