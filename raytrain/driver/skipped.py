"""skipped.json: the samples that a run or a sweep leaves out."""

from __future__ import annotations

import json
from pathlib import Path

from raytrain import errors
from raytrain.data.blocks import Bad
from raytrain.files import needed_json, write_atomically


def write_skipped(path: Path, skipped: dict[str, list[Bad]]) -> None:
    """Write `skipped.json` of a run or a sweep, if there is something to say: row, path and reason of each sample."""
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
    """Return the samples that a run has skipped so far; None if it has no checkpoint."""
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
