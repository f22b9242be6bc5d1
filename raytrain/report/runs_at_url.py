"""The runs and sweeps below a URL, for the table of `runs`: their small files are read, and their sizes listed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from raytrain.checkpoint import location
from raytrain.checkpoint.storage import Storage, answered
from raytrain.data import byte_files
from raytrain.files import known_json
from raytrain.report import runs
from raytrain.run.lock import held

_RECORDS = ("experiment.json", "summary.json", "best.json", "sweep.json", "folds.json")
_ROWS = "metrics.jsonl"


def find(url: str) -> list[runs.Found]:
    """Return the runs and sweeps below a URL, itself included. Of what another machine trains nothing tells that it
    runs: it is `unfinished`.

    Raises:
        UserError: storage refuses it, or does not answer in time.
    """
    storage = answered(url, lambda: Storage(url))
    try:
        there = {one.path: one for one in byte_files.listed(url, recursive=True)}
    except OSError as error:
        raise byte_files.refused(url, error) from None
    tops = _tops(there)
    with tempfile.TemporaryDirectory() as kept:
        root = Path(kept)

        def copy(name: str) -> None:
            location.replace_file(root / name, storage.read(name))
            os.utime(root / name, ns=(there[name].time, there[name].time))

        def copy_all(names: Iterable[str]) -> None:
            wanted = [name for name in names if name in there]
            answered(url, lambda: [*byte_files.at_once(copy, wanted)])

        copy_all(os.path.join(top, name) for top in tops for name in _RECORDS)
        going = (top for top in tops if "steps" not in known_json(root / top / "summary.json"))
        copy_all(os.path.join(top, _ROWS) for top in going)
        found, own = [], url.partition("?")[0].rstrip("/").rpartition("/")[2]
        for top in tops:
            one = runs.of_folder(root / top, top or own)
            size = sum(file.size or 0 for path, file in there.items() if not top or path.startswith(f"{top}/"))
            here = held(location.mirror(location.join(url, top) if top else url))
            found.append(replace(one, bytes=size, status="running" if here else one.status))
    return found


def _tops(names: Iterable[str]) -> list[str]:
    """Return the folders of runs and sweeps that are not within one of another."""
    found: list[str] = []
    for folder in sorted({os.path.dirname(name) for name in names if os.path.basename(name) in _RECORDS[::3]}):
        if not any(top == "" or folder.startswith(f"{top}/") for top in found):
            found.append(folder)
    return found
