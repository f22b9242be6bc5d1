"""The bytes of files, on this machine or at a URL that `pyarrow.fs` opens, such as s3://bucket/images.

Credentials are those of the environment. Storage may accept a connection and never answer, and a request cannot be
cancelled: each has its own thread, is given up without progress, and is made again with exponential back-off. One that
storage refuses for its credentials is not made again.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs

from raytrain import errors
from raytrain.data import patterns
from raytrain.files import check_no_secret, is_url
from raytrain.watchdog import doing

T = TypeVar("T")

THREADS = 16
"""Requests that a process makes at once."""
FIRST_SECONDS, SECONDS = 3.0, 60.0
"""Seconds for the first answer of a URL, which the user waits for, and without any progress of a later request."""
TRIES, _PAUSE = 6, 0.5
"""Attempts of a request, and the seconds after the first failure; each further pause is twice as long."""
_CHUNK = 8 << 20
_REFUSED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN|AccessDenied|InvalidAccessKeyId"
    r"|SignatureDoesNotMatch|ExpiredToken|InvalidToken|PERMISSION_DENIED|UNAUTHENTICATED|Permission denied"
    r"|HTTP status 40[13]|Azure Error: \[\w*\] 40[13]"
)
"""What the errors of S3, Google's and Azure's storage and HDFS say where the credentials are wrong."""


class File(NamedTuple):
    """A file at a URL.

    Attributes:
        path: below the listed folder.
        size: bytes; None for a folder.
        time: when it was last changed, in ns.
    """

    path: str
    size: int | None
    time: int


def joined(base: str, name: str) -> str:
    """Return the path or URL of a file below a folder; an absolute path and a URL stay as they are."""
    if is_url(name) or not is_url(base):
        return name if is_url(name) else os.path.join(base, name)
    path, mark, options = base.partition("?")
    return f"{path.rstrip('/')}/{quote(name)}{mark}{options}"


def shown(root: str) -> str:
    """Return a path, or a URL without its options."""
    return root.partition("?")[0].rstrip("/") if is_url(root) else root


def located(url: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a URL, and the path there. A process opens each only once for the same credentials.

    Raises:
        UserError: the URL holds a password or another secret.
        OSError, ValueError: it cannot be opened.
    """
    parts = urlsplit(url.partition("?")[0].replace("#", "%23"))
    options = url.partition("?")[2]
    check_no_secret(url, "data.root")
    given = frozenset(one for one in os.environ.items() if one[0].startswith(("AWS_", "GOOGLE_", "AZURE_")))
    place = f"{parts.scheme}://{parts.netloc}/" + (f"?{options}" if options else "")
    system, base = _system(place, os.getpid(), given)
    return system, (base.rstrip("/") + "/" + unquote(parts.path).strip("/")).rstrip("/")


@lru_cache(maxsize=64)
def _system(url: str, process: int, given: frozenset[tuple[str, str]]) -> tuple[fs.FileSystem, str]:
    return fs.FileSystem.from_uri(url)


def refused(url: str, error: BaseException) -> errors.UserError:
    """Return the error for a URL that cannot be read."""
    how = errors.storage_remedy(url, error)
    if isinstance(error, FileNotFoundError):
        return errors.UserError("nothing is there", shown(url), how)
    return errors.UserError(
        f"the URL cannot be read: {errors.one_line(errors.storage_reason(error), 300)}", shown(url), how
    )


def listed(url: str, recursive: bool = False, first: bool = False) -> list[File]:
    """Return the files below a folder at a URL, in the order of their names; without `recursive` also its folders.

    Args:
        first: whether the user waits for it: one attempt of a few seconds.

    Raises:
        OSError: the URL cannot be read.
    """

    def work(_: Callable[[], None]) -> list[File]:
        system, root = located(url)
        found = []
        for info in system.get_file_info(fs.FileSelector(root, recursive=recursive)):
            name = info.path[len(root) :].lstrip("/")
            if info.type == fs.FileType.File:
                found.append(File(name, info.size, info.mtime_ns or 0))
            elif info.type == fs.FileType.Directory and not recursive:
                found.append(File(name, None, 0))
        return sorted(found)

    return retried(work, FIRST_SECONDS, 1) if first else retried(work)


def files(root: str, suffixes: tuple[str, ...]) -> list[File]:
    """Return files with their paths or URLs, in the order of these.

    Args:
        root: a file, a folder whose files with some suffixes are taken, with those of linked folders, or a pattern: `*`
            for any characters of a name, {a,b} for either and {000..010} for numbers. What is there under the name of
            the pattern itself is taken as it is.

    Raises:
        FileNotFoundError: there is none, or one that the braces name is missing.
        OSError: it cannot be read.
    """
    path, mark, options = root.partition("?") if is_url(root) else (os.path.expanduser(root), "", "")
    folder, pattern = ("", path) if is_url(path) else patterns.parted(path)
    first, *others = (patterns.below(folder, one) for one in dict.fromkeys(patterns.expanded(pattern)))
    found = _matching(first, mark + options, suffixes, first=True)
    for some in at_once(lambda one: _matching(one, mark + options, suffixes), others):
        found += some
    if not found:
        raise FileNotFoundError(shown(root))
    return sorted(found)


def _matching(path: str, options: str, suffixes: tuple[str, ...], first: bool = False) -> list[File]:
    """Return the files that a path, or a pattern without braces, names. `first` is as for `listed`."""
    folder, _, name = path.rpartition("/")
    if is_url(path):
        if "*" in name:
            there = [one for one in listed(folder + options, first=first) if one.size is not None]
            there = [one for one in there if fnmatch.fnmatchcase(one.path, patterns.escaped(name))]
        else:
            one = _information(path + options, first)
            if one.size is not None:
                return [one._replace(path=path + options)]
            folder = path.rstrip("/")
            there = [one for one in listed(path + options, recursive=True) if one.path.lower().endswith(suffixes)]
        return [one._replace(path=joined(folder + options, one.path)) for one in there]
    names = patterns.files_below(path, suffixes) if os.path.isdir(path) else patterns.matching(path)
    return [File(one, (status := os.stat(one)).st_size, status.st_ctime_ns) for one in names]


def _information(url: str, first: bool) -> File:
    """Return a file's size and time; the size None for a folder. `first` is as for `listed`.

    Raises:
        FileNotFoundError: there is nothing.
        OSError: the URL cannot be read.
    """

    def work(_: Callable[[], None]) -> File:
        system, path = located(url)
        (info,) = system.get_file_info([path])
        if info.type == fs.FileType.NotFound:
            raise FileNotFoundError(shown(url))
        return File(path, info.size if info.type == fs.FileType.File else None, info.mtime_ns or 0)

    return retried(work, FIRST_SECONDS, 1) if first else retried(work)


def opened(path: str) -> Any:
    """Return what Arrow's readers open: a path on this machine as it is, of a URL the open file.

    Raises:
        OSError: it cannot be read.
    """
    if not is_url(path):
        return path

    def work(_: Callable[[], None]) -> Any:
        system, name = located(path)
        return system.open_input_file(name)

    return retried(work, FIRST_SECONDS, 1)


def content(path: str, limit: int | None = None, first: bool = False) -> bytes:
    """Return the bytes of a file, on this machine or at a URL.

    Args:
        limit: bytes above which the file is refused.
        first: as for `listed`.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger than the limit.
    """

    def work(sign: Callable[[], None]) -> bytes:
        system, name = located(path)
        with system.open_input_file(name) as file:
            size = file.size()
            if limit is not None and size > limit:
                raise ValueError(f"{size:,} bytes are more than {limit:,}")
            pieces = []
            while piece := file.read(_CHUNK):
                pieces.append(piece)
                sign()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    if not is_url(path):
        with open(path, "rb") as file:
            return file.read()
    return retried(work, FIRST_SECONDS, 1) if first else retried(work)


@contextlib.contextmanager
def stream(path: str) -> Iterator[Any]:
    """A file that is open for reading, in a `with` statement; one at a URL is read from its beginning.

    Raises:
        OSError: it cannot be read.
    """
    if not is_url(path):
        with open(path, "rb") as file:
            yield file
        return
    system, name = located(path)
    with system.open_input_stream(name, buffer_size=_CHUNK) as file:
        yield file


def part(path: str, offset: int, length: int) -> bytes:
    """Return bytes of a file, on this machine or at a URL; fewer at its end.

    Raises:
        OSError: it cannot be read.
    """

    def work(_: Callable[[], None]) -> bytes:
        system, name = located(path)
        with system.open_input_file(name) as file:
            return file.read_at(length, offset)

    if is_url(path):
        return retried(work)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, length, offset)
    finally:
        os.close(descriptor)


def at_once(work: Callable[[Any], T], items: list[Any]) -> Iterator[T]:
    """Yield the results of requests, several of which are made at once, in order."""
    if len(items) < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(min(THREADS, len(items))) as pool:
        found = [pool.submit(work, item) for item in items]
        try:
            for number, one in enumerate(found):
                yield one.result()
                found[number] = None  # type: ignore[call-overload]  # its bytes are freed
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def retried(work: Callable[[Callable[[], None]], T], seconds: float = SECONDS, tries: int = TRIES) -> T:
    """Return the result of a request, which is made again after a failure or after `seconds` without progress.

    Args:
        work: the request; it calls its argument whenever it makes progress.

    Raises:
        OSError: it has failed each time; at once where there is no file, or the credentials are refused.
    """
    for number in range(tries):
        try:
            return _limited(work, seconds)
        except FileNotFoundError:
            raise
        except pa.ArrowException as error:  # those that are no OSError
            raise OSError(str(error)) from error
        except OSError as error:
            if number == tries - 1 or _is_refusal(error):
                raise
            doing.tick()
            time.sleep(_PAUSE * 2**number * random.uniform(0.75, 1.25))
    raise AssertionError


def _is_refusal(error: OSError) -> bool:
    """Return whether storage has refused the credentials, which it would do each time."""
    names_left_out = re.sub(r"'[^']*'", "", str(error))
    return isinstance(error, PermissionError) or bool(_REFUSED.search(names_left_out))


def _limited(work: Callable[[Callable[[], None]], T], seconds: float) -> T:
    """Run a request in its own thread, since it cannot be cancelled, and give it up without progress."""
    found: list[T] = []
    failed: list[BaseException] = []
    done, waited = threading.Event(), 0.0

    def sign() -> None:
        nonlocal waited
        waited = 0.0

    def run() -> None:
        try:
            found.append(work(sign))
        except BaseException as error:
            failed.append(error)
        finally:
            done.set()

    threading.Thread(target=run, daemon=True, name="data-request").start()
    while not done.wait(0.05):
        waited += 0.05
        if waited > seconds:
            raise TimeoutError(f"no answer for {seconds:.0f} s")
    if failed:
        raise failed[0]
    return found[0]
