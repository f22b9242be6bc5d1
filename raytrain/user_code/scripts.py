"""Scripts and notebooks that call `raytrain.train(...)`: other processes must be able to read their classes."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from raytrain import errors
from raytrain.user_code import sources


def file_of(value: Any) -> Path | None:
    """Return the user's file that an experiment comes from, found by its classes.

    Raises:
        UserError: it is a script that trains as soon as it is imported.
    """
    found = sources.use(value)
    if found is None:
        return None
    if found.experiment and found.foreign:
        _check_guarded(Path(found.experiment.origin))
    return Path((found.experiment or next(iter(found.modules.values()))).origin)


def _check_guarded(script: Path) -> None:
    """Check that the call of `train` or `sweep`, in the main module, is below an `if`: trials, and commands such as
    `raytrain resume`, import the copy of a script for its classes."""
    frame: FrameType | None = sys._getframe()
    lines: list[int] = []
    while frame is not None:
        if frame.f_globals is vars(sys.modules["__main__"]) and frame.f_code.co_name == "<module>":
            lines.append(frame.f_lineno)
        frame = frame.f_back
    for statement in ast.parse(script.read_bytes()).body if lines else ():
        here = statement.lineno <= lines[-1] <= (statement.end_lineno or statement.lineno)
        if here and not isinstance(statement, ast.If):
            what = "the script trains as soon as it is read, and trials and later commands read it for its classes"
            how = "put that under `if __name__ == '__main__':`"
            raise errors.UserError(what, f"{script}:{lines[-1]}", how)


def check_in_files(value: Any) -> None:
    """Check that the classes and functions in a sweep's experiment and axes are in files, which trials read.

    Raises:
        UserError: one is of a notebook or of standard input.
    """
    if Path(getattr(sys.modules["__main__"], "__file__", None) or "").is_file():
        return
    for one in sources.classes(value):
        if one.__module__ == "__main__":
            what = f"{one.__qualname__} is defined in no file, and a sweep's trials read it from one"
            raise errors.UserError(what, "in this notebook or standard input", "import it from a .py file")
