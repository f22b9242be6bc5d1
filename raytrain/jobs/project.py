"""The project that is sent to a cluster with a job: its files, what stays behind, and where the run is kept."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from raytrain import errors
from raytrain.driver.credentials import token_file
from raytrain.driver.ray_internals import project_files
from raytrain.files import check_no_secret, is_url

_LIMIT = 100 * 2**20
"""The dashboard takes no larger request (`ray_constants.DASHBOARD_CLIENT_MAX_SIZE`); images and weights do not shrink
in the .zip file that Ray sends."""
SEND_LESS = "keep data and weights on storage that all nodes share, or name them in a .rayignore"
_MOST_FILES = 20_000
_WALK_SECONDS = 8.0
"""If listing the files takes longer, the project has too many."""
_LEFT_OUT = (
    *(".git", ".venv", "venv", "__pycache__", ".pytest_cache", ".ruff_cache", ".cache", "/runs"),
    *(".ray", ".ssh", ".aws", ".netrc", ".env", "auth_token"),
)
_OF_A_RUN = ("/checkpoints", "/trials", "/pool", "/logs")


@dataclass(frozen=True)
class Project:
    """The project that is sent.

    Attributes:
        folder: the job's working directory is a copy of this folder.
        experiment: the experiment's file, relative to the folder.
        excludes: patterns of the files that are not sent, in .gitignore syntax.
        files, size: the number of files and of bytes that are sent.
    """

    folder: Path
    experiment: str
    excludes: tuple[str, ...]
    files: int
    size: int


def check_storage(out: str) -> None:
    """Check that the files that a job writes outlive the job.

    Raises:
        UserError: they would not, or the URL holds a secret.
    """
    if is_url(out):
        check_no_secret(out, "--out")
    elif not Path(out).is_absolute():
        raise errors.UserError(
            f"--out {f'{out} is relative' if out else 'is not given'}, and a job runs in a "
            "temporary copy of the project: its results would be lost",
            "",
            "give a folder that all nodes share (--out /shared/runs), or a URL (--out s3://bucket/runs)",
        )


def project(path: Path, out: str, root: str = "") -> Project:
    """Return the project of an experiment file.

    It is the working directory if the file is below it and it is not a home directory, or else the file's folder.

    Args:
        root: where the experiment's data are, if they must be there.

    Raises:
        UserError: the project is too large, or does not send the file, or data that are at a relative path.
    """
    file, here, home = path.resolve(), Path.cwd().resolve(), Path.home().resolve()
    inside = here in file.parents and here / "runs" not in file.parents and here not in (home, *home.parents)
    folder = here if inside else file.parent
    excludes = [*_LEFT_OUT, *(_OF_A_RUN if folder == file.parent and file.suffix == ".json" else ())]
    for kept in (Path(out), token_file()):
        if folder in kept.resolve().parents and not is_url(str(kept)):
            excludes.append("/" + re.sub(r"([\\*?\[\]!# ])", r"\\\1", kept.resolve().relative_to(folder).as_posix()))
    sizes = _sizes(folder, excludes)
    name = file.relative_to(folder).as_posix()
    if name not in sizes:
        raise errors.UserError(
            "this file would not be sent: it is left out of the project",
            path,
            f"correct {folder}/.gitignore or .rayignore, or put it elsewhere",
        )
    if _left_behind(folder, root, sizes):
        raise errors.UserError(
            f"data.root = {root!r} is relative to the project, and these data would not be sent with it",
            folder / root,
            "give a path that all nodes have (--data.root /shared/data), or a URL; "
            "small data may be in the project, if no .gitignore or .rayignore names them",
        )
    return Project(folder, name, tuple(excludes), len(sizes), sum(sizes.values()))


def _left_behind(folder: Path, root: str, sent: Iterable[str]) -> bool:
    """Return whether data are at a path below the folder, or relative to it, none of whose files is sent."""
    if not root or is_url(root) or Path(root).expanduser().is_absolute() or not (folder / root).exists():
        return False
    place = Path(os.path.normpath(root))
    return not any(place in (path := Path(name), *path.parents) for name in sent)


def _sizes(folder: Path, excludes: Sequence[str]) -> dict[str, int]:
    """Return the files that are sent, with their sizes in bytes."""
    sizes: dict[str, int] = {}
    stops = 0.0

    def found(path: Path) -> None:
        nonlocal stops
        stops = stops or time.monotonic() + _WALK_SECONDS
        if path.is_file():
            sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
        if len(sizes) > _MOST_FILES or time.monotonic() > stops:
            raise _Enough

    enough = False
    try:
        project_files.packed(folder, excludes, found)
    except _Enough:
        enough = True
    except OSError as error:
        raise errors.UserError(
            f"the project cannot be sent: {error.filename}: {error.strerror}",
            folder,
            "correct that, or name it in a .rayignore",
        ) from None
    size = sum(sizes.values())
    if size > _LIMIT:
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
        raise _project_too_large(folder, size, _LIMIT, largest)
    if enough:
        raise errors.UserError(
            f"the project has too many files, {len(sizes):,} or more",
            folder,
            "submit from the experiment's own folder, or add a .rayignore",
        )
    return sizes


class _Enough(Exception):
    """The project has more files than may be sent."""


def _project_too_large(folder: Path, size: int, limit: int, largest: Sequence[tuple[str, int]]) -> errors.UserError:
    files = errors.listed(f"{name} ({bytes / 2**20:,.1f} MiB)" for name, bytes in largest)
    return errors.UserError(
        f"the project has {size / 2**20:,.0f} MiB or more and {limit / 2**20:,.0f} MiB may be sent; "
        f"the largest files are {files}",
        folder,
        SEND_LESS,
    )
