"""The modules of this folder that need torch, Pillow or pyarrow, for those that must be imported without them."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple


class Modules(NamedTuple):
    """Modules that need torch."""

    colour: ModuleType
    decode_torch: ModuleType
    geometry: ModuleType
    policies: ModuleType


def with_torch() -> Modules:
    """Return the modules that need torch, imported late: it takes a process a second to import, and neither `--help`
    nor a PNG of the right size needs it."""
    from raytrain.data import colour, decode_torch, geometry, policies

    return Modules(colour, decode_torch, geometry, policies)


def with_pillow() -> ModuleType:
    """Return `image_files`, imported late: Pillow and pyarrow would slow down `--help`."""
    from raytrain.data import image_files

    return image_files
