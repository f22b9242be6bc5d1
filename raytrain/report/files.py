"""Files of a report, written completely or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from raytrain import errors


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its place and move it there.

    Raises:
        UserError: the place cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise errors.cannot_write(path, error.strerror or str(error)) from None
