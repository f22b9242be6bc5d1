"""The line for an unexpected exception: its class, its origin, and the file of its traceback."""

from __future__ import annotations

import errno
import os
import sys
import sysconfig
import tempfile
import traceback
from pathlib import Path

from raytrain import errors

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
_MEMORY = "free memory, or raise the limit of address space (`ulimit -v`)"
_REMEDIES = {
    errno.ENOSPC: "free disk space",
    errno.EDQUOT: "free disk space, or raise the quota",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.ENFILE: "raise the system's limit of open files",
    errno.EAGAIN: "raise the limit of processes and threads (`ulimit -u`)",
    errno.ENOMEM: _MEMORY,
    errno.EACCES: "change the permissions, or run as another user",
    errno.EPERM: "change the permissions, or run as another user",
    errno.EROFS: "name a place that can be written",
}
"""What helps against a refusal of the system, by its number."""


def line(error: BaseException, verbose: bool) -> str:
    """Return `error: what, where; how` for an unexpected exception, and keep its traceback.

    Args:
        verbose: write the traceback to standard error; otherwise it goes to a file in the temporary folder.
    """
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    place = _place(error)
    defect = "this is a defect of raytrain: report it" if place.startswith(_PACKAGE) else "correct that line"
    text = str(errors.UserError(what, f"at {place}", remedy(error) or defect))
    where = "above" if verbose else _keep(error)
    if verbose:
        traceback.print_exception(error)
    return f"error: {text}" + (f" (the traceback is {where})" if where else " (--verbose shows the traceback)")


def remedy(error: BaseException) -> str | None:
    """Return what helps against a refusal of the system, such as a full disk; None where it refused nothing."""
    if isinstance(error, MemoryError):
        return _MEMORY
    text = str(error)
    if "failed to map segment" in text or "cannot allocate memory" in text.lower():  # ImportError, RuntimeError
        return _MEMORY
    if "can't start new thread" in text:
        return _REMEDIES[errno.EAGAIN]
    return _REMEDIES.get(error.errno or 0) if isinstance(error, OSError) else None


def _place(error: BaseException) -> str:
    """Return the file and line of the innermost frame that is raytrain's or the user's, not a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename.startswith(_PACKAGE) or not f.filename.startswith((*_LIBRARIES, "<"))]
    found = (own or frames)[-1] if frames else None
    return f"{found.filename}:{found.lineno}" if found else "an unknown place"


def _keep(error: BaseException) -> str:
    """Write the traceback to a file; return where, or nothing if no place can be written."""
    try:
        descriptor, name = tempfile.mkstemp(prefix="raytrain-", suffix=".log")
        with os.fdopen(descriptor, "w", errors="backslashreplace") as file:
            file.write(" ".join(sys.argv) + "\n")
            file.write("".join(traceback.format_exception(error)))
        return f"in {name}"
    except OSError:
        return ""
