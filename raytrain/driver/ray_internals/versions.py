"""The version of Ray whose private names are used."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from importlib import metadata
from typing import Any

VERSION = "2.60"
"""The version of Ray whose private names are used here."""


def known() -> bool:
    """Return whether Ray is the version whose private names are used."""
    return metadata.version("ray").rpartition(".")[0] == VERSION


def private(module: str, *names: str) -> Any:
    """Import one of Ray's private modules, or a module that uses them.

    Args:
        names: the names that the caller uses.

    Returns:
        The module; None where Ray is another version or lacks one of the names.
    """
    if known():
        with contextlib.suppress(ImportError, AttributeError):
            found = importlib.import_module(module)
            return found if all(hasattr(found, name) for name in names) else None
    return None


def replace(module: str, owner: str, method: str, made: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method of one of Ray's classes by one that is made from it; once, and where Ray has it."""
    known_class = getattr(private(module, owner), owner, None)
    before = getattr(known_class, method, None)
    if before is not None and before.__module__ != (after := made(before)).__module__:
        setattr(known_class, method, after)


def nothing(*_: object, **__: object) -> None:
    """Do nothing, in place of a method of Ray."""
