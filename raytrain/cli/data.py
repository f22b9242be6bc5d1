"""The command data."""

from __future__ import annotations

from pathlib import Path

from raytrain import errors
from raytrain.data import Data
from raytrain.report import data as report
from raytrain.report.output import aside_where
from raytrain.tools.describe import describe, png
from raytrain.tools.output import write_file


def data(source: Data, samples: int, seconds: float, sheet: Path | None, as_json: bool) -> None:
    """Describe a data source."""
    with aside_where(as_json):
        found, pictures = describe(source, samples, seconds)
    if sheet is not None:
        if pictures is None:
            raise errors.UserError("a sheet shows images, and none can be shown", found.source, "leave --sheet out")
        write_file(sheet, png(pictures))
    if as_json:
        print(report.to_json(found))
    else:
        report.show(found)
        if sheet is not None:
            print(f"wrote {sheet}")
