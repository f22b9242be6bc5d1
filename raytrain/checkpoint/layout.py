"""A checkpoint's folder on disk: its names, its verification and its state. Without torch."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from raytrain import errors
from raytrain.files import digest, read_bytes

MODEL, OPTIMIZER, STATE, MANIFEST = "model.safetensors", "optimizer.pt", "state.json", "manifest.json"
PARTS = (MODEL, OPTIMIZER, STATE)
"""A checkpoint's files but for the manifest."""

_LARGEST = {MANIFEST: 1 << 16, STATE: 1 << 26}
"""The largest sizes in bytes of the files that are read whole: raytrain writes no larger ones."""


def name_of(step: int) -> str:
    """Return the folder of a step's checkpoint."""
    return f"step_{step:08d}"


def step_of(name: str) -> int | None:
    """Return the inverse of `name_of`; None for other names."""
    found = re.fullmatch(r"step_(\d{8,18})", name, re.ASCII)
    return int(found[1]) if found and name_of(int(found[1])) == name else None


def verify(path: Path) -> None:
    """Check a checkpoint against its manifest.

    Raises:
        UserError: it is not committed, or a file is missing, of another size or of another content.
        OSError: storage cannot be read, which says nothing about the checkpoint.
    """
    if path.is_symlink():
        raise broken(path, "it is a link")
    try:
        manifest = json.loads(_read(path, MANIFEST))
        expected = {name: (entry["size"], entry["sha256"]) for name, entry in manifest["files"].items()}
        step = manifest["step"]
    except (FileNotFoundError, NotADirectoryError):
        raise broken(path, "it has no manifest") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise broken(path, f"its manifest is damaged ({short(error)})") from None
    if set(expected) != set(PARTS):
        raise broken(path, "its manifest is damaged (it names other files)")
    if type(step) is not int or step != step_of(path.name):
        raise broken(path, "its manifest is damaged (it is that of another step)")
    for name, (size, wanted) in expected.items():
        try:
            status = os.lstat(path / name)
        except FileNotFoundError:
            raise broken(path, f"{name} is missing") from None
        if not stat.S_ISREG(status.st_mode):
            raise broken(path, f"{name} is missing")
        if status.st_size != size:
            raise broken(path, f"{name} has {status.st_size} bytes instead of {size}")
        if digest(path / name) != wanted:
            raise broken(path, f"{name} has another sha256")


def verified(folder: Path) -> Iterator[Path]:
    """Yield the checkpoints that verify, the newest first. The folder is listed; no pointer is trusted.

    Raises:
        OSError: storage cannot be read: who went back to an older one for that would remove the newer ones.
    """
    for name in reversed(names_in(folder)):
        with contextlib.suppress(errors.UserError):
            verify(folder / name)
            yield folder / name


def newest(folder: Path) -> Path | None:
    """Return the newest checkpoint that verifies."""
    return next(verified(folder), None)


def load_state(path: Path) -> dict[str, Any]:
    """Return the third argument of `save`.

    Raises:
        UserError: the file is no JSON object, or has numbers that are none.
    """
    try:
        found = json.loads(_read(path, STATE), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise broken(path, f"{STATE} cannot be read ({short(error)})") from None
    if not isinstance(found, dict):
        raise broken(path, f"{STATE} holds no object")
    return found


def committed(folder: Path) -> list[str]:
    """Return the names of the checkpoints that have a manifest, the oldest first."""
    return [name for name in names_in(folder) if os.path.isfile(f"{folder}/{name}/{MANIFEST}")]


def names_in(folder: Path) -> list[str]:
    """Return the names of all checkpoints, the oldest first."""
    try:
        found = [(step, name) for name in os.listdir(folder) if (step := step_of(name)) is not None]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for _, name in sorted(found)]


def size_of(path: str) -> int:
    """Return the bytes of a checkpoint's files."""
    return sum(os.lstat(f"{path}/{name}").st_size for name in os.listdir(path))


def remove(path: str) -> None:
    """Remove a checkpoint, its manifest first: from then on it is no checkpoint, even after a crash."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return os.unlink(path)
    except FileNotFoundError:
        return
    for name in sorted(os.listdir(path), key=lambda name: name != MANIFEST):
        try:
            os.unlink(f"{path}/{name}")
        except IsADirectoryError:  # raytrain writes no such file
            shutil.rmtree(f"{path}/{name}")
    os.rmdir(path)


def _read(path: Path, name: str) -> bytes:
    """Return a small file of a checkpoint.

    Raises:
        ValueError: it is a link, no regular file, or too large.
        OSError: there is none, or storage cannot be read.
    """
    if stat.S_ISLNK(os.lstat(path / name).st_mode):
        raise ValueError(f"{name} is a link")
    return read_bytes(path / name, _LARGEST[name])


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def short(error: BaseException) -> str:
    """Return an error's class and the first line of its text."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__


def weights_sha256(path: Path) -> str:
    """Return the sha256 of a checkpoint's weights, which its manifest has; the checkpoint verifies."""
    return json.loads(_read(path, MANIFEST))["files"][MODEL]["sha256"]


def broken(path: Path | str, reason: str) -> errors.UserError:
    """Return the error for a checkpoint that does not verify."""
    return errors.UserError(
        f"the checkpoint does not verify: {reason}",
        path,
        "remove that folder and try again: the newest that verifies is taken",
    )
