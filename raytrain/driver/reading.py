"""Reading a run's data for its workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray

from raytrain.data import Data, Index, packing
from raytrain.data.blocks import Bad
from raytrain.driver.room import why_no_block
from raytrain.loggers import Logger


def read(
    data: Data,
    found: dict[str, Index],
    mode: str,
    before: dict[str, list[Bad]] | None = None,
    waits: Callable[[float], None] = lambda _: None,
) -> tuple[dict[str, Index], dict[str, Any], dict[str, list[Bad]]]:
    """Read the images of training and validation into the object store, or checks them, for streaming.

    Args:
        before: the samples that a run that goes on has been without.
        waits: called with the seconds for which Ray Data has read nothing.

    Returns:
        The indices, the references to the images (none for streaming), and the samples that were skipped; by split.
    """
    indices, images, skipped = {}, {}, {}
    for split in ("train", "val"):
        array, index, bad = None, found[split], []
        if mode == "resident" or data.on_bad_sample == "skip":
            known = None if before is None else before.get(split, [])
            array, index, bad = packing.pack(data, index, mode == "resident", known, waits)
        if array is not None:
            images[split] = ray.put(array)
            del array
        indices[split], skipped[split] = index, bad
    return indices, images, skipped


def wait_for_blocks(observer: Logger, seconds: float) -> None:
    """Tell the user why Ray Data has returned nothing, after 30 s, one minute, two, four and so on: other runs may hold
    its CPUs for hours.

    Args:
        seconds: a multiple of 30.
    """
    times = int(seconds // 30)
    if times & (times - 1) == 0:
        observer.note(why_no_block(seconds, 1.0))
