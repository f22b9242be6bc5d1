"""Files at URLs, downloaded once into a folder of this machine and verified whenever they are used."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from raytrain import errors
from raytrain.checkpoint.storage import Storage, answered
from raytrain.data.cache import default_folder
from raytrain.models.base import SUFFIXES

_CHUNK = 1 << 20
_SILENT_SECONDS = 30
"""A server that sends nothing for so long is given up."""
_DIGEST = re.compile(r"sha256=([0-9a-f]{64})", re.IGNORECASE)


def is_file(url: str) -> bool:
    """Return whether a URL is that of a file of weights, not of a run."""
    path = url.partition("#")[0].partition("?")[0]
    return url.startswith(("http://", "https://")) or path.endswith(SUFFIXES)


def fetched(url: str) -> Path:
    """Return the file of this machine that a URL's content is in. `URL#sha256=HEX` demands that content.

    Its size must be the one that the server announced, and its hash stays the one that it was downloaded with: a
    damaged file is downloaded again.

    Raises:
        UserError: the download fails, or brings another content.
    """
    plain, _, fragment = url.partition("#")
    wanted = _DIGEST.fullmatch(fragment)
    if fragment and not wanted:
        how = "write #sha256= and 64 hexadecimal digits, or leave it out"
        raise errors.UserError("what follows # must be the file's sha256", url, how)
    name = plain.partition("?")[0].rstrip("/").rpartition("/")[2] or "weights"
    file = default_folder() / "weights" / hashlib.sha256(plain.encode()).hexdigest()[:16] / name
    digest = _kept(file)
    if digest is None or (wanted and digest != wanted[1].lower()):
        digest = _download(plain, file, wanted and wanted[1].lower())
    return file


def _kept(file: Path) -> str | None:
    """Return the hash of a file that was downloaded earlier; None if there is none, or it has changed."""
    with contextlib.suppress(OSError):
        known = _note(file).read_text()
        with open(file, "rb") as opened:
            return known if known == hashlib.file_digest(opened, "sha256").hexdigest() else None
    return None


def _note(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


def _download(url: str, file: Path, wanted: str | None) -> str:
    """Download a file, and return its hash."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    except OSError as error:
        how = "set XDG_CACHE_HOME to a folder that can be written"
        raise errors.UserError(f"cannot write the download: {error.strerror}", file.parent, how) from None
    try:
        digest = hashlib.sha256()
        with os.fdopen(descriptor, "wb") as target:
            for piece in _pieces(url):
                digest.update(piece)
                target.write(piece)
        found = digest.hexdigest()
        if wanted and found != wanted:
            raise errors.UserError(f"the file there has the sha256 {found}", f"{url}#sha256={wanted}", "correct either")
        os.replace(partial, file)
        _note(file).write_text(found)
        return found
    except errors.UserError:
        raise
    except Exception as error:
        reason = str(getattr(error, "reason", "") or error).strip() or type(error).__name__
        how = "check the address and the network, or download it by hand and give the file"
        raise errors.UserError(f"the download failed: {reason}", url, how) from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(partial)


def _pieces(url: str) -> Iterator[bytes]:
    """Yield a URL's content.

    Raises:
        OSError: the server refuses it, or sends less than it announced.
    """
    if not url.startswith(("http://", "https://")):
        path, mark, options = url.partition("?")
        folder, _, name = path.rpartition("/")
        yield answered(url, lambda: Storage(folder + mark + options).read(name))
        return
    request = urllib.request.Request(url, headers={"User-Agent": "raytrain", "Accept-Encoding": "identity"})
    with urllib.request.urlopen(request, timeout=_SILENT_SECONDS) as answer:
        announced, count = answer.headers.get("Content-Length"), 0
        while piece := answer.read(_CHUNK):
            count += len(piece)
            yield piece
    if announced is not None and count != int(announced):
        raise OSError(f"it broke off after {count} of {announced} bytes")
