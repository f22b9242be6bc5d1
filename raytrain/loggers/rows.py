"""What loggers read of the rows of metrics.jsonl."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raytrain import errors
from raytrain.files import is_url
from raytrain.loggers.base import Held, RunInfo

KINDS = ("step", "epoch", "validation")
"""Kinds of rows that have metrics."""


def number(row: Mapping[str, Any]) -> tuple[str, int]:
    """Return a row's kind and its number, which no other row of the kind has: an epoch, or a step."""
    return row["kind"], row["epoch" if row["kind"] == "epoch" else "step"]


def is_held(held: Held, kind: str, number: int) -> bool:
    """Return whether a row is one of those that a logger holds."""
    return number <= getattr(held, kind)


def lost(run: RunInfo, held: Held, there: set[tuple[str, int]]) -> list[Mapping[str, Any]]:
    """Return all rows up to `held` if some of them are not there, such as on another machine; else none."""
    rows = [row for row in run.earlier if row["kind"] in KINDS and is_held(held, *number(row))]
    return rows if any(number(row) not in there for row in rows) else []


def scalars(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a row as `kind/name`, such as `epoch/val_loss`, without its step; an epoch's row has
    `epoch/epoch`."""
    left_out = ("step",) if row["kind"] == "epoch" else ("step", "epoch")
    return {
        f"{row['kind']}/{name}": float(value)
        for name, value in row.items()
        if name not in left_out and isinstance(value, int | float)
    }


def picture(run: Path, row: Mapping[str, Any]) -> Path | None:
    """Return the picture that the hook SampleImages made at the end of a row's epoch, if it did."""
    file = run / "samples" / f"epoch_{row['epoch']:04d}.png"
    return file if row["kind"] == "epoch" and file.is_file() else None


def check_folder(folder: str, where: str) -> None:
    """Check that a folder is inside the run's directory.

    Raises:
        UserError: it is not.
    """
    if not folder or Path(folder).is_absolute() or ".." in Path(folder).parts or is_url(folder):
        how = "give one like logs/metrics: each run has its own"
        raise errors.UserError(f"folder must be inside the run's directory, got {folder!r}", f"in {where}", how)
