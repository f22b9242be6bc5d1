"""The user's own source code: where in it a message points."""

from __future__ import annotations

import contextlib
import inspect
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from raytrain import errors

_LONGEST = 400
"""Characters of an exception's text in an error of one line."""
_PACKAGE = Path(__file__).parent
_ENVIRONMENT = tuple({f"{Path(sysconfig.get_path(name))}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def place(thing: type | Callable[..., Any]) -> str:
    """Return the name of a class or a function for a message, with file and line where it is not raytrain's own:
    `Net (exp.py:12)`."""
    name, module = getattr(thing, "__qualname__", str(thing)), str(getattr(thing, "__module__", ""))
    if module.startswith("raytrain."):
        return name
    try:
        code = getattr(inspect.unwrap(thing), "__code__", None)
        line = code.co_firstlineno if code else inspect.getsourcelines(thing)[1]
        return f"{name} ({code.co_filename if code else inspect.getsourcefile(thing)}:{line})"
    except (OSError, TypeError):  # a notebook's class, or one that is not written in Python
        return name


def line_of(error: BaseException) -> str:
    """Return `file:line` of the innermost frame of an error in the user's own code; an empty string where there is
    none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_own(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def is_own(file: str) -> bool:
    """Return whether a source file is the user's: neither raytrain's, nor Python's, nor an installed package's."""
    environment = file.startswith((f"{_PACKAGE}/", *_ENVIRONMENT)) or "/site-packages/" in file
    return not environment and not (file.startswith("<") and not file.startswith("<ipython"))


@contextlib.contextmanager
def calling(what: str) -> Iterator[None]:
    """Turn an exception of the user's code into one that names its line; `UserError` and `BadSample` pass.

    Args:
        what: what is called, such as `Net.build`.

    Raises:
        UserError: the code raised anything else.
    """
    try:
        yield
    except (errors.UserError, errors.BadSample):
        raise
    except Exception as error:
        raise failed(what, error) from None


def failed(what: str, error: BaseException) -> errors.UserError:
    """Return the error for an exception that the user's code raised when `what` was called."""
    if isinstance(error, NotImplementedError) and not line_of(error):  # a base class's own
        return errors.UserError(str(error), "in the experiment", "write that method")
    said = " ".join(str(error).split())
    said = said if len(said) <= _LONGEST else f"{said[:_LONGEST]} ..."
    reason = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return errors.UserError(
        f"{what} fails: {reason}", line_of(error) or "in the experiment", "correct it and try again"
    )
