"""Values with the user's classes on their way to other processes, which have no such modules."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, TypeVar

from raytrain.user_code import sources

T = TypeVar("T")


class Shipped(Generic[T]):
    """An experiment, or a part of one, whose pickle brings the source files of its classes: whoever unpickles it
    imports them under their names. A script's own classes travel by value, as cloudpickle has it.

    Args:
        value: a frozen dataclass.
    """

    def __init__(self, value: T):
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        # The sources come first: a pickle is read in its order, and they are there when the classes are looked up.
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
