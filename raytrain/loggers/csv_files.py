"""Tables of the metrics as CSV files."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytrain.files import write_atomically
from raytrain.loggers.base import Held, Logger, RunInfo
from raytrain.loggers.rows import KINDS, check_folder, is_held, lost, number


@dataclass(frozen=True)
class CSVLogger(Logger):
    """Writes step.csv, epoch.csv and validation.csv. Columns that come later are added to the whole file; a row without
    a column has an empty cell there."""

    folder: str = "logs/csv"
    """Folder of the files, inside the run's directory."""

    def __post_init__(self) -> None:
        check_folder(self.folder, "CSVLogger")

    def writes_to(self) -> str:
        """Return the folder."""
        return os.path.normpath(self.folder)

    def start(self, run: RunInfo, held: Held) -> None:
        """Remove the rows after `held`."""
        self.state["folder"] = folder = run.path / self.folder
        folder.mkdir(parents=True, exist_ok=True)
        there = {kind: _read(folder / f"{kind}.csv", kind, held) for kind in KINDS}
        numbers = {(kind, _number(kind, row)) for kind, (_, rows) in there.items() for row in rows}
        again = lost(run, held, numbers)
        for kind, (columns, rows) in there.items():
            file = folder / f"{kind}.csv"
            kept = rows and not again
            self.state[kind] = columns if kept else ()
            if not kept:
                file.unlink(missing_ok=True)
            elif (text := _text(rows, columns, head=True)) != file.read_text():
                write_atomically(file, text)
        self.log(again)

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append the rows."""
        for kind in KINDS:
            if mine := [{k: v for k, v in row.items() if k != "kind"} for row in rows if row["kind"] == kind]:
                self._append(kind, mine)

    def _append(self, kind: str, rows: list[dict[str, Any]]) -> None:
        file, columns = self.state["folder"] / f"{kind}.csv", self.state[kind]
        if more := [name for name in dict.fromkeys(name for row in rows for name in row) if name not in columns]:
            earlier = _rows(file.read_text())[1] if columns else []
            self.state[kind] = columns = (*columns, *more)
            write_atomically(file, _text([*earlier, *rows], columns, head=True))
            return
        with open(file, "a", newline="") as stream:
            stream.write(_text(rows, columns))
            stream.flush()
            os.fsync(stream.fileno())


def _number(kind: str, row: Mapping[str, str]) -> int:
    return number({"kind": kind, "step": int(row["step"]), "epoch": int(row["epoch"])})[1]


def _read(file: Path, kind: str, held: Held) -> tuple[tuple[str, ...], list[dict[str, str]]]:
    """Return the columns, and the rows that are held. A kill may have left a part of the last line, after those."""
    columns, rows = _rows(file.read_text()) if file.is_file() else ((), [])
    return columns, [row for row in rows if is_held(held, kind, _number(kind, row))]


def _rows(text: str) -> tuple[tuple[str, ...], list[dict[str, str]]]:
    """Return the columns and the rows of a table, without a last line that is not whole."""
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    rows = list(reader)
    return tuple(reader.fieldnames or ()), rows


def _text(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], head: bool = False) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if head:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
