"""The files that the tools write, and the checks made before any work is done for them."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from raytrain import errors
from raytrain.files import reason, write_atomically

PREDICTIONS = (".csv", ".jsonl", ".parquet")
"""The suffixes that `predict` writes."""
FEATURES = (".parquet",)
"""The suffixes that `predict --features` writes: a vector is one value there."""
WEIGHTS = (".pth", ".safetensors", ".pt2", ".onnx")
"""The suffixes that `export` writes."""
PLOTS = (".png", ".svg", ".pdf")
"""The suffixes of plots that `lr` writes."""


def check_output(file: Path, known: tuple[str, ...]) -> None:
    """Check that a file can be written.

    Raises:
        UserError: its suffix is not one of the known ones, or its folder does not exist or is not writable.
    """
    if file.suffix not in known:
        raise errors.UserError("unknown file type", file, f"end its name in {errors.listed(known)}")
    if not os.path.isdir(file.parent):
        raise errors.cannot_write(file, f"there is no folder {file.parent}")
    if os.path.isdir(file) or not os.access(file.parent, os.W_OK | os.X_OK):
        raise errors.cannot_write(file, "it is a folder" if os.path.isdir(file) else "permission denied")


def check_onnx() -> None:
    """Check that what writes and runs .onnx files is installed.

    Raises:
        UserError: a package is missing.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise errors.extra_missing("an .onnx file", package, "onnx")


def write_file(file: Path, content: bytes | memoryview) -> None:
    """Replace a file that the user asked for; on failure, the old one stays.

    Raises:
        UserError: the place cannot be written.
    """
    try:
        write_atomically(file, content)
    except OSError as error:
        raise errors.cannot_write(file, reason(error)) from None
