"""The files of a large ImageFolder, kept from one start to the next, and how a later start notices what has changed.

Whoever adds, removes or renames a file changes the time of its folder. So the samples and their labels are those on the
disk if no folder has changed. A file that is written to in its place changes no folder: as many files as a few seconds
allow are looked at too, evenly spread.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raytrain.data import kept
from raytrain.data.source import Index
from raytrain.data.trees import LocalTree, UrlTree, stamp

VERSION = 2
"""Increase it with every change of which files are found: what is kept is named by it."""
FROM = 20_000
"""Files from which a listing is kept: fewer are found again in less than a second."""
SECONDS = 5.0
"""Seconds in which files are looked at for new contents."""
RECENT = 2.0
"""Seconds for which a folder's time may stay the same while files are added: some file systems count so coarsely."""
_SHARE, _THREADS = 1_000, 8


class Found(NamedTuple):
    """What was kept: the splits, and whether each file has been looked at."""

    splits: dict[str, Index]
    all_seen: bool


def load(folder: Path, tree: LocalTree | UrlTree, splits: dict[str, str], shape: tuple[int, int, int]) -> Found | None:
    """Return the files of each split as they were found before; None if they were not, or a folder or a file that was
    looked at has changed.

    Args:
        folder: of the cache.
        splits: the folder of each split.
        shape: of the samples.
    """
    if not isinstance(tree, LocalTree):
        return None
    batches = kept.load(_path(folder, tree))
    if batches is None:
        return None
    values = json.loads(batches[0].schema.metadata[b"raytrain"])
    if values["splits"] != splits or any(stamp(tree.root, name) != then for name, then in values["folders"].items()):
        return None
    found, all_seen, end = {}, True, time.monotonic() + SECONDS
    for split, batch in zip(splits, batches, strict=True):
        label, size, changed = (batch.column(name).to_numpy(zero_copy_only=True) for name in ("label", "size", "time"))
        same = _same(tree.root, batch.column("path"), size, changed, end)
        if same is False:
            return None
        all_seen &= same is not None
        classes, ignored = tuple(values["classes"][split]), tuple(values["ignored"][split])
        paths: pa.StringArray = batch.column("path")  # type: ignore[assignment]
        found[split] = Index(label, classes, shape, split, paths=paths, sizes=size, times=changed, ignored=ignored)
    return Found(found, all_seen)


def store(folder: Path, tree: LocalTree | UrlTree, splits: dict[str, str], found: dict[str, Index]) -> None:
    """Keep what was found, if there are many files and a later start can notice changes."""
    if not isinstance(tree, LocalTree) or sum(map(len, found.values())) < FROM:
        return
    seen = {name: one for name, one in tree.seen.items() if name or "" in splits.values()}
    latest = max(max(one[1:], default=0) for one in seen.values())
    links = (os.path.islink(tree.root / name) for index in found.values() for name in index.ignored)
    # A link that leads nowhere, or back, may lead to files later, and its folder does not change then.
    if latest > tree.began - RECENT * 1e9 or any(links) or any((index.times == 0).any() for index in found.values()):
        return
    values = {
        "splits": splits,
        "folders": seen,
        "classes": {split: index.classes for split, index in found.items()},
        "ignored": {split: index.ignored for split, index in found.items()},
    }
    types = {"path": pa.string(), "label": pa.int64(), "size": pa.int64(), "time": pa.int64()}
    schema = pa.schema(list(types.items()), {"raytrain": json.dumps(values)})
    arrays = ([index.paths, index.labels, index.sizes, index.times] for index in found.values())
    kept.store(_path(folder, tree), [pa.record_batch([pa.array(one) for one in each], schema) for each in arrays])


def _path(folder: Path, tree: LocalTree) -> Path:
    recipe = repr((VERSION, os.path.abspath(tree.root)))
    return folder / f"{hashlib.sha256(recipe.encode(errors='surrogateescape')).hexdigest()[:32]}.files"


def _same(root: Path, paths: pa.Array, sizes: np.ndarray, times: np.ndarray, end: float) -> bool | None:
    """Return whether files have these sizes and times; None if those are right that could be looked at in time."""
    shares = -(-len(paths) // _SHARE)

    def look(number: int) -> bool | None:
        if time.monotonic() > end:
            return None
        rows = np.arange(number, len(paths), shares)
        names, known = (
            paths.take(pa.array(rows)).to_pylist(),
            zip(sizes[rows].tolist(), times[rows].tolist(), strict=True),
        )
        for name, (size, changed) in zip(names, known, strict=True):
            try:
                status = os.stat(name, dir_fd=base)
            except OSError:
                return False
            if status.st_ctime_ns != changed or status.st_size != size:
                return False
        return True

    base = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with ThreadPoolExecutor(_THREADS) as pool:
            seen: bool | None = True
            for one in pool.map(look, range(shares)):
                if one is False:
                    pool.shutdown(cancel_futures=True)
                    return False
                seen = seen and one
        return seen
    finally:
        os.close(base)
