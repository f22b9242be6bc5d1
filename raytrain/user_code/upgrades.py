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


def old_argument(name: str, convert: Callable[[Any, dict[str, Any]], None]) -> Callable[[type[T]], type[T]]:
    """Return a decorator that lets a class accept an argument of an older version. Experiment files that runs keep, and
    that every worker imports again, may still pass it.

    Args:
        convert: changes the other arguments, given the old argument's value and them by name.
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
        return kind

    return decorate
