"""The versions of Ray whose private names are used."""

from __future__ import annotations

VERSION = "2.60"
"""The version of Ray whose private names are used here."""


def known() -> bool:
    """Return whether Ray is the version whose private names are used."""
    import ray

    return ray.__version__.rpartition(".")[0] == VERSION


def nothing(*_: object, **__: object) -> None:
    """Do nothing, in place of a method of Ray."""
