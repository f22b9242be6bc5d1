"""Files of Weights & Biases."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import socket
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raytrain import errors
from raytrain.files import is_url, sync
from raytrain.loggers.base import Held, Logger, RunInfo
from raytrain.loggers.rows import KINDS, check_folder, is_held, lost, scalars

_BLOCK, _HEAD = 32768, 7
"""LevelDB's log format, https://github.com/google/leveldb/blob/main/doc/log_format.md: bytes of a block, and those
before a part of a record: its checksum (4), its length (2) and its kind (1). W&B's checksum is zlib's CRC-32."""
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
"""Kinds of parts."""
_BEGIN = b":W&B\xe1\xbe\x00"
"""The first bytes of the file: a mark and the version of the format."""
_READABLE_BY = "0.70.0"
"""The oldest W&B that can read the file, as W&B itself writes it there."""


@dataclass(frozen=True)
class WandB(Logger):
    """Writes the metrics and the experiment's values into a file of Weights & Biases, as its offline mode does; `wandb
    sync` uploads it. No process and no connection belong to it. With WANDB_MODE=disabled nothing is written."""

    project: str = ""
    """W&B's project; by default WANDB_PROJECT, and without that `raytrain`."""
    folder: str = "logs/wandb"
    """Folder of the file, inside the run's directory."""

    def __post_init__(self) -> None:
        check_folder(self.folder, "WandB")

    def writes_to(self) -> str:
        """Return the folder."""
        return os.path.normpath(self.folder)

    def check(self) -> None:
        """Check that W&B is installed."""
        if importlib.util.find_spec("wandb") is None:
            raise errors.extra_missing("WandB", "wandb", "wandb")

    def start(self, run: RunInfo, held: Held) -> None:
        """Cut the file back to the rows in `held`, or begin it."""
        if os.environ.get("WANDB_MODE") == "disabled":
            return
        file = _file(run, run.path / self.folder)
        self.state["file"], self.state["id"] = file, file.stem.removeprefix("run-")
        there = self._cut(held) if file.is_file() else set()
        if (again := lost(run, held, there)) or not there:
            self._begin(run)
        else:
            self._write({"config": _config(run)})  # a resume may have changed it
        self.log(again)

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a record for each step. Where the last one's step has further rows, it is replaced: W&B has one record
        of a step."""
        if "file" not in self.state:
            return
        step, values, position = self.state["last"]
        new: dict[int, dict[str, float]] = {}
        for row in rows:
            if row["kind"] in KINDS:
                before = values if row["step"] == step else {}
                new.setdefault(row["step"], dict(before)).update(scalars(row))
        if not new:
            return
        if step in new:
            self.state["end"] = position
        latest = {name: value for some in new.values() for name, value in some.items()}
        self._write({"summary": {"update": _items(latest)}}, *(self._history(*one) for one in new.items()))

    def finish(self, run: RunInfo, summary: Mapping[str, Any]) -> None:
        """Write that the run has ended; the next command removes that."""
        self._exit(0)

    def close(self) -> None:
        """Write that the run has failed, unless `finish` was called."""
        self._exit(1)

    def _exit(self, code: int) -> None:
        if "end" in self.state:
            self._write({"exit": {"exit_code": code, "runtime": int(time.time() - self.state["began"])}})
        self.state.clear()

    def _begin(self, run: RunInfo) -> None:
        """Write the file's beginning: its format, and the run."""
        began = time.time()
        self.state.update(end=0, count=0, last=(0, {}, 0), began=began)
        folder = self.state["file"].parent
        folder.mkdir(parents=True, exist_ok=True)
        described = {
            "run_id": self.state["id"],
            "project": self.project or os.environ.get("WANDB_PROJECT") or "raytrain",
            "display_name": f"{run.sweep}/{run.path.name}" if run.sweep else run.path.name,
            "run_group": run.sweep,
            "config": _config(run),
            "host": socket.gethostname(),
            "start_time": {"seconds": int(began)},
        }
        version = {"producer": importlib.import_module("wandb").__version__, "min_consumer": _READABLE_BY}
        self._write({"header": {"version_info": version}}, {"run": described})
        sync(folder)

    def _history(self, step: int, values: Mapping[str, float]) -> dict[str, Any]:
        now = time.time()
        own = {"_step": step, "_timestamp": now, "_runtime": now - self.state["began"]}
        return {"history": {"item": _items({**values, **own}), "step": {"num": step}}}

    def _write(self, *contents: Mapping[str, Any]) -> None:
        """Write records behind the last one, in place of what is there, to the disk."""
        state, raw, position = self.state, b"", self.state["end"]
        last, count = state["last"], state["count"]
        for content in contents:
            if "history" in content:
                last = *_of_history(content := _record(**content).history), position + len(raw)
                content = {"history": content}
            count += 1
            one = _record(num=count, _info={"stream_id": state["id"]}, **content)
            raw += _framed(one.SerializeToString(), position + len(raw))
        with open(os.open(state["file"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b") as file:
            file.truncate(position)
            file.seek(position)
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        state |= {"end": position + len(raw), "last": last, "count": count}

    def _cut(self, held: Held) -> set[tuple[str, int]]:
        """Find where the rows that are held end: the next record is written there. A step of which only some rows are
        held is written again with those.

        Returns:
            The rows that stay: kind and number.
        """
        state, there = self.state, set[tuple[str, int]]()
        state |= {"end": 0, "count": 0, "last": (0, {}, 0), "began": time.time()}
        for data, begin, after in _records(state["file"].read_bytes()):
            found = _record().FromString(data)
            if found.HasField("run"):
                state["began"] = found.run.start_time.seconds
            if not found.HasField("history"):
                continue
            step, values = _of_history(found.history)
            rows = {name.partition("/")[0]: step for name in values}
            rows |= {"epoch": int(values["epoch/epoch"])} if "epoch" in rows else {}
            mine = {kind for kind, one in rows.items() if is_held(held, kind, one)}
            there |= {(kind, rows[kind]) for kind in mine}
            if mine != rows.keys():
                if mine:
                    state["end"] = begin
                    kept = {name: value for name, value in values.items() if name.partition("/")[0] in mine}
                    self._write(self._history(step, kept))
                break
            state |= {"end": after, "count": found.num, "last": (step, values, begin)}
        return there


def _file(run: RunInfo, folder: Path) -> Path:
    """Return the run's file, or a new name. The id of a run at a URL is the same on each machine."""
    for file in sorted(folder.glob("offline-run-*/run-*.wandb")):
        return file
    identity = uuid.uuid5(uuid.NAMESPACE_URL, run.where) if is_url(run.where) else uuid.uuid4()
    key = identity.hex[:12]
    return folder / f"offline-run-{time.strftime('%Y%m%d_%H%M%S')}-{key}" / f"run-{key}.wandb"


def _record(**content: Any) -> Any:
    return importlib.import_module("wandb.proto.wandb_internal_pb2").Record(**content)


def _config(run: RunInfo) -> dict[str, Any]:
    values = {name: json.dumps(value, default=str) for name, value in run.values.items()}
    return {"update": [{"nested_key": name.split("."), "value_json": value} for name, value in values.items()]}


def _items(values: Mapping[str, float]) -> list[dict[str, Any]]:
    return [{"nested_key": [name], "value_json": json.dumps(value)} for name, value in values.items()]


def _of_history(history: Any) -> tuple[int, dict[str, float]]:
    """Return a record's step and its metrics."""
    values = {item.nested_key[0]: json.loads(item.value_json) for item in history.item}
    return history.step.num, {name: value for name, value in values.items() if not name.startswith("_")}


def _framed(data: bytes, position: int) -> bytes:
    """Return a record as it is in the file from a position on: in parts, none of which spans two blocks."""
    raw, kind = b"" if position else _BEGIN, _FIRST
    while True:
        room = _BLOCK - (position + len(raw)) % _BLOCK
        if room < _HEAD:
            raw, room = raw + bytes(room), _BLOCK
        part, data = data[: room - _HEAD], data[room - _HEAD :]
        if not data:
            kind = _WHOLE if kind == _FIRST else _LAST
        body = bytes([kind]) + part
        raw += zlib.crc32(body).to_bytes(4, "little") + len(part).to_bytes(2, "little") + body
        if not data:
            return raw
        kind = _MIDDLE


def _records(raw: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield the data of each whole record, and where the record begins and ends."""
    position, data, begin = len(_BEGIN), b"", 0
    while raw.startswith(_BEGIN):
        room = _BLOCK - position % _BLOCK
        if room < _HEAD:
            position, room = position + room, _BLOCK
        end = position + _HEAD + int.from_bytes(raw[position + 4 : position + 6], "little")
        body = raw[position + 6 : end]
        if (
            end > len(raw)
            or len(body) < 1
            or zlib.crc32(body) != int.from_bytes(raw[position : position + 4], "little")
        ):
            return
        begin = position if body[0] in (_WHOLE, _FIRST) else begin
        data, position = data + body[1:], end
        if body[0] in (_WHOLE, _LAST):
            yield data, begin, end
            data = b""
