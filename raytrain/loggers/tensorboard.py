"""TensorBoard's event files."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytrain import errors
from raytrain.files import sync
from raytrain.loggers.base import Held, Logger, RunInfo
from raytrain.loggers.rows import KINDS, check_folder, is_held, lost, picture, scalars

_AROUND = 16
"""Bytes of a record besides its data: the length (8), the checksum of the length (4), and that of the data (4)."""


@dataclass(frozen=True)
class TensorBoard(Logger):
    """Writes the metrics as scalars over the steps for TensorBoard, and the experiment's values as a text and as
    hyperparameters.

    Each command begins an event file. It cuts the earlier ones back to the rows that count, so that each is there once.
    """

    folder: str = "logs/tensorboard"
    """Folder of the event files, inside the run's directory."""

    def __post_init__(self) -> None:
        check_folder(self.folder, "TensorBoard")

    def writes_to(self) -> str:
        """Return the folder."""
        return os.path.normpath(self.folder)

    def check(self) -> None:
        """Check that tensorboardX is installed."""
        if importlib.util.find_spec("tensorboardX") is None:
            raise errors.extra_missing("TensorBoard", "tensorboardX", "tensorboard")

    def start(self, run: RunInfo, held: Held) -> None:
        """Cut the event files back, and begin a new one."""
        self.state["run"], folder = run.path, run.path / self.folder
        folder.mkdir(parents=True, exist_ok=True)
        there: set[tuple[str, int]] = set()
        for file in _files(folder):
            there |= _cut(file, held)
        if again := lost(run, held, there):
            for file in _files(folder):
                file.unlink()
        text = "" if list(_files(folder)) else json.dumps(run.values, indent=4, default=str)
        self.state["file"] = file = _free(folder)
        self.state["writer"] = importlib.import_module("tensorboardX.record_writer").RecordWriter(str(file))
        self._write(file_version="brain.Event:2")
        if text:
            indented = "".join(f"    {line}\n" for line in text.splitlines())  # Markdown's form of code
            self._write(summary=importlib.import_module("tensorboardX.summary").text("experiment", indented))
            self._hparams(run)
        if held.step and not again:  # tells a TensorBoard that is open to forget what was cut off
            log = importlib.import_module("tensorboardX.proto.event_pb2").SessionLog
            self._write(step=held.step + 1, session_log=log(status=log.START))
        self.log(again)
        sync(folder)

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write an event for each row."""
        summaries = importlib.import_module("tensorboardX.proto.summary_pb2").Summary
        for row in rows:
            if row["kind"] in KINDS:
                values = [summaries.Value(tag=tag, simple_value=value) for tag, value in scalars(row).items()]
                values += [summaries.Value(tag="samples", image=one) for one in self._pictures(row)]
                self._write(step=row["step"], summary=summaries(value=values))
        self.state["writer"].flush()  # to the disk

    def finish(self, run: RunInfo, summary: Mapping[str, Any]) -> None:
        """Write that the session of the hyperparameters has ended; the next command removes that."""
        self._hparams(None)

    def close(self) -> None:
        """Close the event file."""
        if writer := self.state.pop("writer", None):
            writer.close()

    def _pictures(self, row: Mapping[str, Any]) -> list[Any]:
        """Return the picture of samples of a row's epoch, if there is one."""
        if (file := picture(self.state["run"], row)) is None:
            return []
        raw = file.read_bytes()
        width, height = (int.from_bytes(raw[at : at + 4], "big") for at in (16, 20))  # of the header, IHDR
        image = importlib.import_module("tensorboardX.proto.summary_pb2").Summary.Image
        return [image(width=width, height=height, colorspace=3, encoded_image_string=raw)]

    def _hparams(self, run: RunInfo | None) -> None:
        """Write the beginning of the session that TensorBoard's table of hyperparameters has for the run, or its end.
        TensorBoard finds the metrics itself: they are the scalars."""
        values = run.values if run else {}
        plain = {name: one if isinstance(one, bool | int | float | str) else str(one) for name, one in values.items()}
        _, start, end = importlib.import_module("tensorboardX.summary").hparams(plain, {})
        self._write(summary=start if run else end)

    def _write(self, **content: Any) -> None:
        event = importlib.import_module("tensorboardX.proto.event_pb2").Event
        self.state["writer"].write(event(wall_time=time.time(), **content).SerializeToString())


def _files(folder: Path) -> list[Path]:
    """Return the event files, the oldest first."""
    return sorted(folder.glob("events.out.tfevents.*.raytrain"))


def _free(folder: Path) -> Path:
    """Return a new name behind those that are there: TensorBoard reads files in the order of their names."""
    last = [int(file.name.split(".")[3]) for file in _files(folder)[-1:]]
    return folder / f"events.out.tfevents.{max([int(time.time()), *(one + 1 for one in last)]):010d}.raytrain"


def _cut(file: Path, held: Held) -> set[tuple[str, int]]:
    """Cut a file off before its first row that is not held, or is not whole. A file without rows is removed.

    Returns:
        The rows that stay: kind and number.
    """
    there: set[tuple[str, int]] = set()
    event, end = importlib.import_module("tensorboardX.proto.event_pb2").Event, 0
    for data, after in _records(file.read_bytes()):
        found = event.FromString(data)
        values = {value.tag: value.simple_value for value in found.summary.value}
        kind = next(iter(values), "").partition("/")[0]
        if kind in KINDS:
            number = int(values["epoch/epoch"]) if kind == "epoch" else found.step
            if not is_held(held, kind, number):
                break
            there.add((kind, number))
        end = after
    if not there:
        file.unlink()
    elif end < file.stat().st_size:
        os.truncate(file, end)
    return there


def _records(raw: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the data of each whole record, and where the record ends."""
    checksum = importlib.import_module("tensorboardX.record_writer").masked_crc32c
    position = 0
    while position + _AROUND <= len(raw):
        length = int.from_bytes(raw[position : position + 8], "little")
        end = position + _AROUND + length
        data = raw[position + 12 : end - 4]
        if end > len(raw) or checksum(data) != int.from_bytes(raw[end - 4 : end], "little"):
            return
        yield data, end
        position = end
