"""Values with the user's classes, sent to other processes together with their source files."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, TypeVar

from raytrain.user_code import sources

T = TypeVar("T")


class Shipped(Generic[T]):
    """An experiment, or a part of one, whose pickle carries the source files of its classes: the process that unpickles
    it imports them under their names. cloudpickle sends a script's own classes by value.

    Args:
        value: a frozen dataclass.
    """

    def __init__(self, value: T):
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        # The sources come first: unpickling goes in order, and looks up the classes after the sources are active.
        return _unpacked, (sources.use(self.value), fresh(self.value))


def fresh(value: Any) -> Any:
    """Return a dataclass without what it has cached beside its fields, such as an open file."""
    if isinstance(value, tuple):
        return tuple(map(fresh, value))
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = [field.name for field in dataclasses.fields(value) if field.init]
    return dataclasses.replace(value, **{name: fresh(getattr(value, name)) for name in fields})


def _unpacked(_: object, value: T) -> Shipped[T]:
    return Shipped(value)
