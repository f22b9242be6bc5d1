"""The arguments of a class or a function, with the types and defaults that JSON can hold."""

from __future__ import annotations

import dataclasses
import inspect
from functools import cache
from typing import Any, NamedTuple

from raytrain import errors
from raytrain.user_code.json_types import as_json_type, is_json, tuples, type_of, wants_list
from raytrain.user_code.places import place


class Argument(NamedTuple):
    """An argument that is given by name.

    Attributes:
        hint: its type, of those that JSON can hold; None if that is unknown.
        default: with tuples for lists; dataclasses.MISSING if it is required.
        listed: whether a list is expected where the experiment has a tuple.
        json: whether the default is a JSON value.
    """

    hint: Any
    default: Any
    listed: bool
    json: bool

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.default is dataclasses.MISSING


class Signature(NamedTuple):
    """The arguments that are given by name, and whether any others are accepted too (`**kwargs`)."""

    arguments: dict[str, Argument]
    open: bool


@cache
def signature(target: Any, first: int) -> Signature:
    """Return the arguments of a class or a function, without the `first` ones.

    Raises:
        UserError: it does not declare its arguments, or must be given one by position.
    """
    how = f"write a function of your own that calls {target.__name__}, and wrap that"
    try:
        found = inspect.signature(target, eval_str=True)
    except (NameError, AttributeError, SyntaxError, TypeError):  # a type that exists for type checkers alone
        found = inspect.signature(target)
    except ValueError:
        raise errors.UserError(f"{target.__name__} does not declare its arguments", "", how) from None
    kinds, arguments = inspect.Parameter, {}
    for parameter in [*found.parameters.values()][first:]:
        required = parameter.default is kinds.empty
        if parameter.kind is kinds.POSITIONAL_ONLY and required:
            what = f"{target.__name__} takes {parameter.name!r} by position alone"
            raise errors.UserError(what, f"in {place(target)}", how)
        if parameter.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD, kinds.POSITIONAL_ONLY):
            continue
        default = dataclasses.MISSING if required else tuples(parameter.default)
        json = not required and is_json(default)
        hint = None if parameter.annotation is kinds.empty else as_json_type(parameter.annotation)
        if hint is None and json and default is not None:
            hint = type_of(default)
        listed = isinstance(parameter.default, list) or wants_list(parameter.annotation)
        arguments[parameter.name] = Argument(hint, default, listed, json)
    return Signature(arguments, any(one.kind is kinds.VAR_KEYWORD for one in found.parameters.values()))
