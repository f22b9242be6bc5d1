"""Places in the user's code, for messages: file and line of a class, a function or an exception."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from raytrain import errors
from raytrain.user_code.python_files import is_own
from raytrain.user_code.sources import COPY, MODULES, Source, active, source_of

_LONGEST = 400
"""Characters of an exception's text in an error of one line."""


def place(thing: type | Callable[..., Any]) -> str:
    """Return the name of a class or a function for a message, with file and line unless it is raytrain's own:
    `Net (exp.py:12)`."""
    thing = vars(thing).get("__target__", thing) if isinstance(thing, type) else thing  # what a wrapper wraps
    name, module = getattr(thing, "__qualname__", str(thing)), str(getattr(thing, "__module__", ""))
    if module.startswith("raytrain."):
        return name
    code = getattr(inspect.unwrap(thing), "__code__", None)
    if code:
        return f"{name} ({code.co_filename}:{code.co_firstlineno})"
    source = source_of(module)
    try:
        if source is not None:
            return f"{name} ({source.file}:{_line_of_class(source.text, name)})"
        return f"{name} ({inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]})"
    except (OSError, TypeError):  # a notebook's class, or one that is not written in Python
        return name


def line_of(error: BaseException) -> str:
    """Return `file:line` of the innermost frame of an error in the user's own code; an empty string if the error has
    no such frame."""
    if isinstance(error, SyntaxError) and error.filename and is_own(error.filename):
        return f"{error.filename}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_own(frame.filename):
            return f"{frame.filename}:{frame.lineno}"
    return ""


def to_edit(place: str) -> str:
    """Return the user's own file that a place in the active sources comes from, with the line if that is known. Once
    the user's file has changed, the place names a line of the run's copy.

    Args:
        place: text with `file:line`, such as `Net (exp.py:12)`.

    Returns:
        `file:line` or a file; an empty string for a place outside the active sources.
    """
    _, source, line = _placed(place)
    return "" if source is None else f"{source.origin}:{line}" if source.file == source.origin else source.origin


def copy_of(place: str) -> str:
    """Return the path, below its directory, at which a run has the file of a place in the active sources; an empty
    string for a place outside them."""
    name, source, _ = _placed(place)
    return "" if source is None else f"{MODULES}/{name}" if name else COPY


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
    if isinstance(error, NotImplementedError) and not line_of(error):  # raised by a base class
        return errors.UserError(str(error), "in the experiment", "write that method")
    return errors.UserError(
        f"{what} fails: {reason(error)}", line_of(error) or "in the experiment", "correct it and try again"
    )


def reason(error: BaseException) -> str:
    """Return an exception's class and text in one line."""
    said = " ".join(str(error).partition("\n\nWhile executing %")[0].split())  # torch.fx adds the graph's line
    said = said if len(said) <= _LONGEST else f"{said[:_LONGEST]} ..."
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def _line_of_class(text: bytes, name: str) -> int:
    body: Any = ast.parse(text)
    for part in name.split("."):
        body = next((node for node in ast.walk(body) if isinstance(node, ast.ClassDef) and node.name == part), body)
    return getattr(body, "lineno", 1)


def _placed(place: str) -> tuple[str, Source | None, str]:
    """Return the name, the file and the line of a place in the active sources."""
    current = active()
    for name, source in current.named.items() if current else ():
        if found := re.search(rf"(?:^|[ (]){re.escape(source.file)}:(\d+)", place):
            return name, source, found[1]
    return "", None, ""
