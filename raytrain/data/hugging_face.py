"""What Hugging Face writes into its tables, and beside them."""

from __future__ import annotations

import fnmatch
import json
import os

import pyarrow as pa

from raytrain.data import byte_files, patterns
from raytrain.files import is_url

_CACHE = "cache-*.arrow"
"""Results of `map` and `filter`, which `datasets` keeps in the folder of a dataset."""


def class_names(found: pa.Schema, column: str) -> tuple[str, ...] | None:
    """Return the names of a column's classes by a table's metadata; None without it."""
    try:
        features = json.loads((found.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(str(name) for name in features[column]["names"])
    except (KeyError, TypeError, ValueError):
        return None


def data_files(root: str, files: list[str]) -> list[str]:
    """Return those of the files of a folder or pattern that hold data: of Arrow files beside a state.json, which
    `save_to_disk` writes, those that it names, and elsewhere all but `cache-*.arrow`.

    Raises:
        OSError: a state.json at a URL cannot be read.
    """
    arrow = [one for one in files if byte_files.shown(one).endswith(".arrow")]
    by_name = {root, *patterns.expanded(byte_files.shown(root))}
    if not arrow or by_name.issuperset(map(byte_files.shown, files)):
        return files
    folders = list(dict.fromkeys(map(_folder, arrow)))
    named = {one for some in byte_files.at_once(_named, folders) for one in some} & {*arrow}
    told = {_folder(one) for one in named}
    caches = {one for one in arrow if fnmatch.fnmatchcase(os.path.basename(byte_files.shown(one)), _CACHE)}
    left_out = {one for one in arrow if (one not in named if _folder(one) in told else one in caches)}
    return [one for one in files if one not in left_out] or files


def _folder(file: str) -> str:
    path, mark, options = file.partition("?") if is_url(file) else (file, "", "")
    return os.path.dirname(path) + mark + options


def _named(folder: str) -> list[str]:
    """Return the files that a folder's state.json names; none without it."""
    try:
        state = json.loads(byte_files.content(byte_files.joined(folder, "state.json"), first=True))
        return [byte_files.joined(folder, str(one["filename"])) for one in state["_data_files"]]
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return []
