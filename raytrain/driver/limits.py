"""The system's limits for this user. A run that Ray could not start under them is refused in advance.

At these limits Ray's processes abort or deadlock.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import sys
import tempfile
from pathlib import Path

from raytrain import errors
from raytrain.driver.session_folder import CHARACTERS
from raytrain.files import existing, size
from raytrain.machine import host_memory

_FILES = 128
"""Open files that a process of Ray may need; 64 are too few for two workers."""
_ADDRESS_SPACE, _OBJECT_STORE = 8 << 30, 0.3
"""Bytes of address space that a process with torch and Ray needs, besides the object store: a share of the memory."""
_SOCKETS = 107 - CHARACTERS - len("/session_2000-01-01_00-00-00_000000_1234567/sockets/plasma_store")
"""Characters of RAY_TMPDIR: the path of a socket has at most 107."""


def check() -> None:
    """Check that Ray can start on this machine for this user.

    Raises:
        UserError: a limit is too low, a name on the command line is no text, or the folder for Ray's temporary files
            cannot be written.
    """
    for name in (*sys.argv, os.getcwd()):
        if not name.isascii() and name != name.encode(errors="replace").decode():
            raise errors.UserError("Ray takes only names that are UTF-8 text", name, "rename that file or folder")
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    needs = _ADDRESS_SPACE + int(_OBJECT_STORE * host_memory())
    if space != resource.RLIM_INFINITY and space < needs:
        raise errors.UserError(
            f"a process may have {size(space)} of address space and Ray needs {size(needs)}",
            "in `ulimit -v`",
            "raise it with `ulimit -v unlimited`",
        )
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # Ray raises the soft limit to the hard one
    if files != resource.RLIM_INFINITY and files < _FILES:
        raise errors.UserError(
            f"a process may have {files} open files and Ray needs {_FILES}", "in `ulimit -n`", "raise that limit"
        )
    needs, (left, where) = _tasks(len(os.sched_getaffinity(0))), _tasks_left()
    if left < needs:
        raise errors.UserError(
            f"{max(0, left)} more processes and threads are allowed and Ray needs about {needs}",
            f"in {where}",
            "raise that limit, or end other processes",
        )
    if not os.environ.get("RAY_TMPDIR"):
        return  # the session makes a private folder
    folder = Path(os.environ["RAY_TMPDIR"])
    if not _writable(folder):
        raise errors.UserError(
            "Ray cannot write its temporary files", folder, "name a folder that can be written in RAY_TMPDIR"
        )
    if len(os.fsencode(folder.absolute())) > _SOCKETS:
        raise errors.UserError(
            f"RAY_TMPDIR must have at most {_SOCKETS} characters, for the names of Ray's sockets",
            folder,
            "name a shorter folder",
        )


def settle_home() -> None:
    """Provide a home directory for libraries if the user has none.

    Ray and others fail where there is no name of a home directory, as in containers that run under any user id;
    matplotlib leaves a folder behind each time that it cannot write into it.
    """
    try:
        home = Path.home()
    except RuntimeError:
        home = Path(os.devnull)  # no user, not even root, can create a folder there
        os.environ["HOME"] = str(home)
    if not _writable(home):
        os.environ.setdefault("MPLCONFIGDIR", f"{tempfile.gettempdir()}/raytrain-matplotlib-{os.getuid()}")


def give_token() -> None:
    """Create the token of local clusters where there is none; one for this process alone if Ray cannot write into the
    home directory."""
    if os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH") or os.environ.get("RAY_AUTH_MODE"):
        return
    token = Path.home() / ".ray" / "auth_token"
    if not (_writable(token.parent) or os.access(token, os.R_OK)):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    elif not token.exists():
        _write_token(token)


def _write_token(token: Path) -> None:
    """Write a token in place of Ray, which does so in place: of two commands that start at once, one would have half of
    a token, or another one than its workers."""
    with contextlib.suppress(OSError):  # Ray writes it then
        token.parent.mkdir(parents=True, exist_ok=True)
        descriptor, new = tempfile.mkstemp(dir=token.parent)  # which nobody else can read
        try:
            os.write(descriptor, secrets.token_hex(32).encode())
            os.link(new, token)  # fails where another command was faster
        finally:
            os.close(descriptor)
            os.unlink(new)


def _writable(folder: Path) -> bool:
    """Return whether files can be made in a folder, or the folder itself can be made."""
    above = existing(folder)
    return above.is_dir() and os.access(above, os.W_OK | os.X_OK)


def _tasks(cpus: int) -> int:
    """Estimate the processes and threads of Ray and of a run on a number of CPUs."""
    return 150 + 50 * cpus


def _tasks_left() -> tuple[int, str]:
    """Return the processes and threads that this user may still start, and the limit that says so.

    The kernel applies RLIMIT_NPROC to all threads of a user, unless that is root; a container may have a limit too.
    """
    left: list[tuple[float, str]] = [(float("inf"), "")]
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if limit != resource.RLIM_INFINITY and os.geteuid() != 0:
        left.append((limit - _own_tasks(), "`ulimit -u`"))
    with contextlib.suppress(OSError, ValueError):
        most, now = (int(Path("/sys/fs/cgroup", name).read_text()) for name in ("pids.max", "pids.current"))
        left.append((most - now, "the container's limit of processes (pids.max)"))
    fewest, where = min(left)
    return (int(fewest) if where else 1 << 30), where


def _own_tasks() -> int:
    """Return the threads of all processes of this user that can be seen."""
    count, user = 0, os.getuid()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if process.stat().st_uid == user:
                count += len(os.listdir(process / "task"))
    return count
