"""The folder of this user alone, and the token that protects Ray's processes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from raytrain import errors
from raytrain.driver.session_folder import CHARACTERS

SOCKET_CHARACTERS = 107
"""The longest path of a socket on Linux."""


SESSION_CHARACTERS = CHARACTERS + len("/session_2026-11-23_04-30-41_782794_4194304/sockets/plasma_store")


def private_folder() -> Path:
    """Return the folder for the session of a local cluster: RAY_TMPDIR, or a private folder, which is created if
    needed.

    Ray lets everybody read and write its session (mode 0777: sockets, logs, spilled objects), so the folder above the
    session is one that only this user can enter.

    Raises:
        UserError: it cannot be made, or belongs to somebody else.
    """
    if os.environ.get("RAY_TMPDIR"):
        return Path(os.environ["RAY_TMPDIR"])
    folder = Path(os.environ.get("TMPDIR") or "/tmp", f"raytrain-{os.getuid()}")
    if len(str(folder)) + SESSION_CHARACTERS > SOCKET_CHARACTERS:
        folder = Path("/tmp", folder.name)
    remedy = "remove it, or set RAY_TMPDIR to a folder for Ray's files"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
            raise errors.UserError(
                "the folder for Ray's files must belong to you, and this one does not", str(folder), remedy
            )
        if found.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        what = f"Ray's files cannot be written: {error.strerror}"
        raise errors.UserError(what, str(folder), remedy) from None
    return folder


def token_file() -> Path:
    """Return where Ray looks for the cluster's token, unless it is in RAY_AUTH_TOKEN."""
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def token() -> tuple[str, str]:
    """Return the cluster's token, found as Ray finds it, and its origin; or no token, and the reason."""
    if os.environ.get("RAY_AUTH_MODE") == "disabled":
        return "", "RAY_AUTH_MODE is `disabled` here"
    if os.environ.get("RAY_AUTH_TOKEN"):
        found, where = os.environ["RAY_AUTH_TOKEN"].strip(), "RAY_AUTH_TOKEN"
    else:
        where = str(token_file())
        try:
            found = token_file().read_text().strip()
        except (OSError, ValueError) as error:
            return "", f"there is none here ({where}: {getattr(error, 'strerror', None) or 'it is not text'})"
    if not found or not found.isascii() or not found.isprintable() or " " in found:
        return "", f"{where} holds none"
    return found, where
