"""Reading a run's data for its workers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytrain import errors
from raytrain.data import Data, Index
from raytrain.driver.room import why_no_block
from raytrain.files import needed_json, write_atomically
from raytrain.loggers import Logger

if TYPE_CHECKING:
    from raytrain.data.blocks import Bad


def read(
    data: Data,
    found: dict[str, Index],
    mode: str,
    before: dict[str, list[Bad]] | None = None,
    waits: Callable[[float], None] = lambda _: None,
) -> tuple[dict[str, Index], dict[str, Any], dict[str, list[Bad]]]:
    """Reads the images of training and validation into the object store, or checks them, for streaming.

    Args:
        before: the samples that a run that goes on has been without.
        waits: called with the seconds for which Ray Data has read nothing.

    Returns:
        The indices, the references to the images (none for streaming), and the samples that were skipped; by split.
    """
    import ray

    from raytrain.data import packing

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
    """Tell the user why Ray Data has returned nothing for some seconds."""
    observer.note(why_no_block(seconds, 1.0))


def write_skipped(path: Path, skipped: dict[str, list[Bad]]) -> None:
    """Writes `skipped.json` of a run or a sweep, if there is something to say: row, path and reason of each sample."""
    file = path / "skipped.json"
    if any(skipped.values()):
        report = {
            split: [{"row": one.row, "path": one.path, "reason": one.reason} for one in bad]
            for split, bad in skipped.items()
        }
        write_atomically(file, json.dumps(report, indent=2))
    else:
        file.unlink(missing_ok=True)


def skipped_before(path: Path) -> dict[str, list[Bad]] | None:
    """The samples that a run has been without so far; None where it has no checkpoint to go on from."""
    from raytrain.data.blocks import Bad

    if not any((path / "checkpoints").glob("step_*/manifest.json")):
        return None
    file = path / "skipped.json"
    if not file.exists():
        return {}
    how = "put it back from a copy: it says which samples the run is without"
    report = needed_json(file, how)
    try:
        return {
            split: [Bad(int(one["row"]), str(one["path"]), str(one["reason"]), lasting=True) for one in samples]
            for split, samples in report.items()
        }
    except (KeyError, TypeError, ValueError):
        raise errors.UserError("this file does not list samples", file, how) from None
