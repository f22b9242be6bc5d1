"""Types and values that JSON can hold, as the fields of experiments declare them: scalars, and tuples of them."""

from __future__ import annotations

import collections.abc
import types
import typing
from typing import Any

Scalar = int | float | bool | str | None
"""Any scalar, for an argument of which no more is known."""

_SEQUENCES = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)


def is_json(value: Any) -> bool:
    """Return whether a value is a scalar, or a tuple of such values."""
    return (
        value is None or type(value) in (bool, int, float, str) or (type(value) is tuple and all(map(is_json, value)))
    )


def tuples(value: Any) -> Any:
    """Return tuples for lists."""
    return tuple(map(tuples, value)) if isinstance(value, list | tuple) and type(value) in (list, tuple) else value


def type_of(value: Any) -> Any:
    """Return the type of a field whose declaration says no more than this value. A number may become any other."""
    if isinstance(value, list | tuple):
        kinds = [type_of(item) for item in value] or [Scalar]
        return tuple[_union(kinds), ...]  # type: ignore[misc]
    if type(value) in (int, float):
        return int | float
    return type(value) if type(value) in (bool, str) else Scalar


def as_json_type(hint: Any) -> Any:
    """Return the part of an annotation that JSON can hold, with tuples for lists; None where there is none."""
    if hint in (int, float, bool, str):
        return hint
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return hint if all(map(is_json, inner)) else None
    if origin in (typing.Union, types.UnionType):
        known = [one for one in map(as_json_type, inner) if one is not None]
        return _union([*known, *([None] if type(None) in inner else [])]) if known else None
    if origin in _SEQUENCES or (origin is tuple and inner[1:] == (Ellipsis,)):
        kind = as_json_type(inner[0]) if inner else None
        return None if kind is None else tuple[kind, ...]  # type: ignore[valid-type]
    if origin is tuple:
        kinds = [as_json_type(one) for one in inner]
        return None if None in kinds else tuple[tuple(kinds)]  # type: ignore[misc]
    return None


def wants_list(hint: Any) -> bool:
    """Return whether an annotation is of a list, perhaps among other types."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(map(wants_list, typing.get_args(hint)))
    return list in (hint, origin)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of a type, where a float may be a whole number, but no number a boolean."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, arg) for arg in args)
    if origin is typing.Literal:
        return any(value == arg and type(value) is type(arg) for arg in args)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(args) == 2 and args[1] is Ellipsis:
            return all(fits(item, args[0]) for item in value)
        return len(value) == len(args) and all(map(fits, value, args))
    if origin is dict:
        return isinstance(value, dict) and all(fits(key, args[0]) and fits(one, args[1]) for key, one in value.items())
    if hint is Any:
        return True
    if hint is type(None) or hint is None:
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _union(kinds: list[Any]) -> Any:
    return typing.Union[tuple(dict.fromkeys(kinds))]  # noqa: UP007  (`|` cannot take a list)
