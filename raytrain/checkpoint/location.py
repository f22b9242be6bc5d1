"""URLs of runs, and their mirrors on this machine."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

from raytrain.data.cache import default_folder
from raytrain.files import is_url

URL = "url"


def join(out: str, name: str) -> str:
    """Join a place and a name below it; a URL keeps its options at the end."""
    if not is_url(out):
        return str(Path(out) / name)
    path, mark, options = out.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{options}"


def mirror(url: str, kind: str = "runs") -> Path:
    """Return the mirror on this machine of a run at a URL.

    Args:
        kind: `runs` for the driver's, `workers` for that of the ranks here.
    """
    path = url.partition("?")[0].rstrip("/")
    return default_folder() / kind / hashlib.sha256(url.encode()).hexdigest()[:16] / path.rpartition("/")[2]


def url_of(path: Path) -> str | None:
    """Return the URL that a directory is the driver's mirror of; None for a run's own directory."""
    try:
        return (path / URL).read_text()
    except (OSError, ValueError):
        return None


def read_known(file: Path) -> bytes:
    """Return a file's content; an empty value if it cannot be read."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


def note_url(path: Path, url: str) -> None:
    """Write down the URL of a mirror, readable by its owner only: the URL may contain keys."""
    (path / URL).touch(0o600)
    (path / URL).write_text(url)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file of a mirror. It is not synced, since storage has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    partial.write_bytes(content)
    os.replace(partial, path)
