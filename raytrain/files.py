"""Small files of a run, a sweep or a job, replaced atomically and read with checks.

A writer may be killed, and a disk may fail, at each system call; a reader then finds the old or the new content.
Readers accept only regular files of bounded size: a pipe would block them, and a device would never end.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, urlsplit

from raytrain import errors
from raytrain.watchdog import doing

LARGEST = 1 << 26
"""The largest file in bytes that is read whole: raytrain writes no larger one."""
_CHUNK = 1 << 20
SECRET = re.compile(r"secret|passw|token|signature|credential(?!_kind)|key$|^sig$")
"""Names of a URL's options and of environment variables that hold secrets, in lower case; `sig` is that of Azure's
shared access signatures."""
_PASSWORD = re.compile(r"//[^/@]*:[^/@]*@")
"""A URL with a password, as the value of another URL's option."""


def is_url(place: Path | str) -> bool:
    """Return whether a place is a URL, not a path of this machine."""
    return "://" in str(place)


def check_no_secret(url: str, flag: str) -> None:
    """Check that a URL holds no password or other secret, since runs and jobs store and show URLs. The name of an HDFS
    user or of Azure's container is none.

    Args:
        flag: where the user has written it, for messages.

    Raises:
        UserError: it does.
    """
    parts, _, options = url.partition("?")
    given, s3 = urlsplit(parts.replace("#", "%23")), url.startswith("s3")
    secret = ""
    if given.password is not None or (s3 and ":" in given.netloc):  # S3's may hold a slash, which ends the host
        secret = "a password"
    elif s3 and given.username is not None:
        secret = "an access key"
    for name, value in parse_qsl(options.replace(";", "&"), keep_blank_values=True):
        if SECRET.search(name.lower()) or _PASSWORD.search(value):
            secret = secret or f"a secret ({name})"
    if secret:
        raise errors.secret_in_url(flag, secret)


def write_atomically(path: Path, content: str | bytes | memoryview) -> None:
    """Replace a file so that readers see the old or the new content, and a crash leaves one of them.

    Raises:
        OSError: storage refuses it; the old content is there, or the new one.
    """
    partial = f"{path.parent}/.{path.name}.{os.getpid()}.{threading.get_ident()}"
    try:
        with open_new(partial) as descriptor:
            _write_all(descriptor, content.encode() if isinstance(content, str) else content)
            os.fsync(descriptor)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    sync(path.parent)


def digest(path: Path) -> str:
    """Return the sha256 of a file that may be large: reading it tells the watchdog that work goes on."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            found.update(chunk)
            doing.tick()
    return found.hexdigest()


def append(path: Path, text: str) -> None:
    """Append lines to a log that people read. A crash may leave a part of the last line.

    Raises:
        OSError: storage refuses it, or the folder is not there: it is never made again.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        _write_all(descriptor, text.encode(errors="backslashreplace"))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def open_new(path: str) -> Any:
    """The descriptor of a file that is written from its beginning, in a `with` statement; a link is not followed.

    Raises:
        OSError: storage refuses it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync(folder: Path) -> None:
    """Sync a folder's entries to the disk.

    Raises:
        OSError: storage refuses it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with its content, if it exists.

    Raises:
        OSError: storage refuses it.
    """
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except FileNotFoundError:
        pass


def read_bytes(path: Path, largest: int = LARGEST) -> bytes:
    """Return the content of a regular file.

    Raises:
        FileNotFoundError, NotADirectoryError: there is none.
        ValueError: it is not a regular file, or larger than `largest` bytes.
        OSError: storage cannot be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > largest:
            raise ValueError(f"it has {size:,} bytes")
        return file.read()


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """A regular file that is open for reading, in a `with` statement.

    Raises:
        FileNotFoundError, NotADirectoryError: there is none.
        ValueError: it is something else.
        OSError: storage cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer would wait
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ELOOP):  # a socket; links in a circle
            raise ValueError("it is not a regular file") from None
        raise
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise ValueError("it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file")
        with open(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read_json(path: Path, largest: int = LARGEST, constants: Callable[[str], Any] | None = None) -> dict[str, Any]:
    """Return the JSON object that a file holds.

    Args:
        constants: called for NaN and infinities; by default they are read as floats.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no file.
        ValueError: it is not a regular file, too large, no JSON, or its JSON is no object.
        OSError: storage cannot be read.
    """
    try:
        found = json.loads(read_bytes(path, largest), parse_constant=constants)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not text") from None
    if not isinstance(found, dict):
        raise ValueError(f"its JSON must be an object, got {type(found).__name__}")
    return found


def known_json(path: Path) -> dict[str, Any]:
    """Return the JSON object of a file; an empty one if the file is missing or damaged."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return {}


def needed_json(path: Path, how: str) -> dict[str, Any]:
    """Return the JSON object of a file that a command needs.

    Args:
        how: what helps where the file is missing or damaged.

    Raises:
        UserError: it is.
    """
    try:
        return read_json(path)
    except (FileNotFoundError, NotADirectoryError):
        raise errors.UserError("this file is missing", path, how) from None
    except (OSError, ValueError) as error:
        raise errors.UserError(f"this file cannot be read: {reason(error)}", path, how) from None


def reason(error: OSError | ValueError) -> str:
    """Return the system's text of an error, without the file's name, which the message has already."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__


def _write_all(descriptor: int, content: bytes | memoryview) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def expanded(path: str | Path) -> Path:
    """Return a path with its ~ or ~NAME as a home directory.

    Raises:
        UserError: there is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise errors.UserError("no user has this home", path, "check the spelling") from None


def existing(path: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    path = expanded(path).absolute()
    while not os.path.exists(path):
        path = path.parent
    return path


def file_size(path: Path) -> int:
    """Return the bytes of a file; 0 if it is missing or out of reach."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def size(count: int) -> str:
    """Return a number of bytes as text, in the largest unit that makes it at least 1."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"
