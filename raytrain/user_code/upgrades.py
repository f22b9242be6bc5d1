"""Conversion of experiments that older versions have saved."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")


def upgrade(values: Any) -> Any:
    """Return the JSON values of an experiment, or of what holds experiments, with the names of this version."""
    if isinstance(values, list):
        return [upgrade(item) for item in values]
    if not isinstance(values, dict):
        return values
    values = {name: upgrade(value) for name, value in values.items()}
    if isinstance(values.get("deterministic"), bool) and "parallel" in values:  # 0.1: a field beside DDP
        if values.pop("deterministic"):
            reduction = values["parallel"].get("reduction", "auto")
            values["parallel"] = {"class": "raytrain:Deterministic", "reduction": reduction}
    return values


class _Old(property):
    """A field of an older version, as a property of the class that had it."""


def is_old_argument(kind: type, name: str) -> bool:
    """Return whether a class accepts this argument of an older version."""
    return isinstance(inspect.getattr_static(kind, name, None), _Old)


def old_argument(
    name: str, convert: Callable[[Any, dict[str, Any]], None], read: Callable[[T], Any]
) -> Callable[[type[T]], type[T]]:
    """Return a decorator that lets a class accept an argument of an older version, also in `dataclasses.replace`, and
    gives it a property of that name. Files that runs keep, and that every worker imports again, may still pass it, and
    sweeps may have it as an axis.

    Args:
        convert: changes the other arguments, given the old argument's value and them by name.
        read: returns the old argument's value for a value of the class.
    """

    def decorate(kind: type[T]) -> type[T]:
        init: Callable[..., None] = kind.__init__
        names = list(inspect.signature(kind).parameters)

        @wraps(init)
        def accept(self: T, *args: Any, **arguments: Any) -> None:
            if name in arguments:
                value = arguments.pop(name)
                args, arguments = (), dict(zip(names, args, strict=False)) | arguments
                convert(value, arguments)
            init(self, *args, **arguments)

        kind.__init__ = accept
        setattr(kind, name, _Old(read))
        return kind

    return decorate


def old_order(names: tuple[str, ...], is_old: Callable[[tuple[Any, ...]], bool]) -> Callable[[type[T]], type[T]]:
    """Return a decorator that lets a class accept positional arguments in the order of an older version, which copies
    of experiment files in runs may have.

    Args:
        names: the arguments' names in that order.
        is_old: whether positional arguments are in that order; the present one must not be mistaken for it.
    """

    def decorate(kind: type[T]) -> type[T]:
        init: Callable[..., None] = kind.__init__

        @wraps(init)
        def accept(self: T, *args: Any, **arguments: Any) -> None:
            if is_old(args) and len(args) <= len(names) and not arguments.keys() & set(names[: len(args)]):
                args, arguments = (), dict(zip(names, args, strict=False)) | arguments
            init(self, *args, **arguments)

        kind.__init__ = accept
        return kind

    return decorate
