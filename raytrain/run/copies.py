"""The copies of the user's source code in the directory of a run or a sweep."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from raytrain import errors
from raytrain.files import known_json, read_json, write_atomically
from raytrain.user_code.python_files import is_hidden, python_files
from raytrain.user_code.sources import COPY, MODULES, ORIGINS, REPLACED, REPLACING, Source, Sources, active, use


def read(folder: Path) -> Sources | None:
    """Return the sources in the directory of a run or a sweep; None if it has no experiment file and no modules.

    Raises:
        UserError: a command was replacing the code, and the file with the new code is damaged.
    """
    new = _replacing(folder)
    if new is None:
        origins, below = known_json(folder / ORIGINS), folder / MODULES
        copies = [COPY, *(f"{MODULES}/{name}" for name in (python_files(below, below) if below.is_dir() else ()))]
        texts = {name: (folder / name).read_bytes() for name in copies if (folder / name).is_file()}
        if os.path.lexists(folder / REPLACING):  # meanwhile another command has begun to replace these files
            return read(folder)
    else:
        origins = json.loads(new[ORIGINS])
        texts = {name: text for name, text in new.items() if name == COPY or name.startswith(f"{MODULES}/")}
    named = {name: "" if name == COPY else name.removeprefix(f"{MODULES}/") for name in texts}
    found = {named[name]: _copied(text, folder / name, origins.get(named[name])) for name, text in texts.items()}
    if not found:
        return None
    experiment = found.pop("", None)
    return Sources.known(experiment, found)


def files_of(sources: Sources) -> dict[str, bytes]:
    """Return the files that the directory of a run or a sweep has of some sources, by their path below it."""
    files = {f"{MODULES}/{name}" if name else COPY: source.text for name, source in sources.named.items()}
    origins = {name: source.origin for name, source in sources.named.items()}
    return files | {ORIGINS: (json.dumps(origins, indent=2) + "\n").encode()}


def keep(value: Any, source: Path | None, folder: Path) -> None:
    """Copy the sources of a value into the directory of a run or a sweep.

    Args:
        value: an experiment or a sweep.
        source: the file that it came from. It is copied even if the value has no class of it.
    """
    found, current = use(value), active()
    if found is None and source is not None:
        if current and current.experiment and current.experiment.origin == str(source.resolve()):
            found = current
        else:
            found = read(source.parent) if source.name == COPY else Sources.of_file(source)
    if found is not None:
        _write(folder, files_of(found))


def link(source: Path, folder: Path) -> None:
    """Link what `keep` has put into a sweep's directory into a trial's; copy it if the disk has no links."""
    names = [COPY, ORIGINS, *(f"{MODULES}/{name}" for name in python_files(source / MODULES, source / MODULES))]
    for name in names:
        if (source / name).is_file() and not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source / name, folder / name)
            except OSError:
                shutil.copyfile(source / name, folder / name)


def replace(folder: Path, files: dict[str, bytes]) -> None:
    """Replace a run's code atomically: write all new files as one file, which `settle` puts in place.

    Args:
        files: as `files_of` returns them, and `REPLACED`.

    Raises:
        OSError: storage refuses it; the old code stays.
    """
    texts = {name: text.decode(errors="surrogateescape") for name, text in files.items()}
    write_atomically(folder / REPLACING, json.dumps({"files": texts}))


def settle(folder: Path) -> None:
    """Put a run's new code in place after `replace`. `settled` ends the replacement.

    Raises:
        OSError: storage refuses it; the new code counts nevertheless.
        UserError: the file with the new code is damaged.
    """
    new = _replacing(folder)
    if new is not None:
        _write(folder, new)
        for name in python_files(folder / MODULES, folder / MODULES):
            if f"{MODULES}/{name}" not in new:
                (folder / MODULES / name).unlink()


def settled(folder: Path) -> None:
    """Remove the file with a run's new code, once all of it is in place.

    Raises:
        OSError: storage refuses it.
    """
    (folder / REPLACING).unlink(missing_ok=True)


def replaced(folder: Path) -> list[dict[str, Any]]:
    """Return the replacements of a run's code, the oldest first: `step`, the last step of the old code; `changed`, the
    names of the files; `file`, the path of the new experiment file."""
    try:
        new = _replacing(folder)
        found = known_json(folder / REPLACED) if new is None else json.loads(new.get(REPLACED, b"{}"))
        return [
            {"step": int(one["step"]), "changed": [str(name) for name in one["changed"]], "file": str(one["file"])}
            for one in found.get("replaced", [])
        ]
    except (KeyError, TypeError, ValueError, errors.UserError):  # nothing depends on it
        return []


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, text)


def _replacing(folder: Path) -> dict[str, bytes] | None:
    """Return the new code that `replace` has written; None if no replacement is under way.

    Raises:
        UserError: the file is damaged.
    """
    file, how = folder / REPLACING, "remove it, and go on with `raytrain resume RUN --experiment FILE`"
    try:
        texts = read_json(file)["files"]
        files = {name: text.encode(errors="surrogateescape") for name, text in texts.items()}
        json.loads(files[ORIGINS])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise errors.UserError(f"the run's new code cannot be read: {error}", file, how) from None
    modules = [name for name in files if name not in (COPY, ORIGINS, REPLACED)]
    if any(not name.startswith(f"{MODULES}/") or not name.endswith(".py") or is_hidden(name) for name in modules):
        raise errors.UserError("the run's new code has files with other names than a run's code has", file, how)
    return files


def _copied(text: bytes, path: Path, origin: Any) -> Source:
    """Return a run's copy of a file. Messages name the user's own file as long as it has the same text."""
    copy = str(path.resolve())
    if not isinstance(origin, str):
        return Source(text, copy, copy)
    same = False
    with contextlib.suppress(OSError, ValueError):
        same = os.path.isfile(origin) and Path(origin).read_bytes() == text
    return Source(text, origin if same else copy, origin)
