"""The modules of this folder that need torch, Pillow or pyarrow, for those that must be imported without them."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple


class Pixels(NamedTuple):
    """Modules that need torch."""

    colour: ModuleType
    decode_torch: ModuleType
    geometry: ModuleType
    policies: ModuleType


class Files(NamedTuple):
    """Modules that need Pillow or pyarrow."""

    byte_files: ModuleType
    cache: ModuleType
    decode: ModuleType
    hugging_face: ModuleType
    image_files: ModuleType
    listing: ModuleType
    packs: ModuleType
    table_cells: ModuleType
    table_labels: ModuleType
    tables: ModuleType
    tars: ModuleType
    trees: ModuleType


def with_torch() -> Pixels:
    """Return the modules that need torch, imported late: it takes a process a second to import, and neither `--help`
    nor a PNG of the right size needs it."""
    from raytrain.data import colour, decode_torch, geometry, policies

    return Pixels(colour, decode_torch, geometry, policies)


def with_pillow() -> Files:
    """Return the modules that read files, imported late: Pillow and pyarrow would slow down `--help`."""
    from raytrain.data import (
        byte_files,
        cache,
        decode,
        hugging_face,
        image_files,
        listing,
        packs,
        table_cells,
        table_labels,
        tables,
        tars,
        trees,
    )

    of_images = (byte_files, cache, decode, hugging_face, image_files, listing, packs)
    return Files(*of_images, table_cells, table_labels, tables, tars, trees)
