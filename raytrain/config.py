"""Experiments are values: frozen dataclasses of JSON scalars, tuples and further dataclasses.

The dotted path of a field is its flag, its sweep axis and its key in the saved JSON. The module uses the standard
library only, so that `--help` is fast.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import types
import typing
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from raytrain import errors
from raytrain.user_code import parts, sources, wrappers
from raytrain.user_code.json_types import fits
from raytrain.user_code.sources import EXPERIMENT_MODULE

T = TypeVar("T")
Rule = tuple[Callable[[Any], bool], str]

SHARE: Rule = (lambda value: 0 <= value <= 1, "in [0, 1]")
"""A rule for `check`: a probability, or a share of something, with 0 and 1."""
_LONGEST = 60
"""Characters of a tuple that a message proposes."""


def above(low: float) -> Rule:
    """Return a rule for `check`: greater than `low`."""
    return lambda value: low < value < math.inf, f"above {low}"


def at_least(low: float) -> Rule:
    """Return a rule for `check`: at least `low`."""
    return lambda value: low <= value < math.inf, f"of at least {low}"


def within(low: float, high: float) -> Rule:
    """Return a rule for `check`: in the half-open interval [low, high)."""
    return lambda value: low <= value < high, f"in [{low}, {high})"


def between(low: float, high: float) -> Rule:
    """Return a rule for `check`: in the open interval (low, high)."""
    return lambda value: low < value < high, f"between {low} and {high}"


def check(config: Any, **rules: Rule) -> None:
    """Check the types of a dataclass's fields and the given rules, in its `__post_init__`.

    A field that is None passes its rule; its type says whether None is allowed.

    Raises:
        UserError: a field has the wrong type or is out of range.
    """
    where = type(config).__name__
    hints = _hints(type(config))
    for field in dataclasses.fields(config):
        value, hint = getattr(config, field.name), hints[field.name]
        if not fits(value, hint):
            raise _wrong_type(field.name, value, _describe(hint), where, _written(field.name, value, hint))
        if field.name in rules and value is not None:
            holds, allowed = rules[field.name]
            if not holds(value):
                raise errors.out_of_range(field.name, value, allowed, where)


def replace(config: T, path: str, value: Any) -> T:
    """Return a copy in which the field at the dotted `path` has `value`; validation runs again.

    Raises:
        UserError: there is no such field (the error names the nearest), or the value is refused.
    """
    head, _, rest = path.partition(".")
    if isinstance(config, tuple):
        if head not in map(str, range(len(config))) or not rest:
            raise errors.unknown_field(path, paths(config), f"a tuple of {len(config)}")
        changed = replace(config[int(head)], rest, value)
        return tuple(changed if str(number) == head else one for number, one in enumerate(config))  # type: ignore[return-value]
    if not dataclasses.is_dataclass(config) or head not in {f.name for f in dataclasses.fields(config)}:
        raise errors.unknown_field(path, paths(config), type(config).__name__)
    return dataclasses.replace(config, **{head: replace(getattr(config, head), rest, value) if rest else value})  # type: ignore[type-var]


def get(config: Any, path: str) -> Any:
    """Return the value of the field at the dotted `path`, which must exist."""
    for name in path.split("."):
        config = config[int(name)] if isinstance(config, tuple) else getattr(config, name)
    return config


def is_below(path: str, *fields: str) -> bool:
    """Return whether a dotted path is one of some fields, or that of a value within one."""
    return any(path == field or path.startswith(f"{field}.") for field in fields)


def paths(config: Any, prefix: str = "") -> list[str]:
    """Return the dotted paths of all leaf fields, in order; `hooks.0.every` for a dataclass in a tuple."""
    if isinstance(config, tuple) and any(map(dataclasses.is_dataclass, config)):
        return [path for number, one in enumerate(config) for path in paths(one, f"{prefix}{number}.")]
    if not dataclasses.is_dataclass(config):
        return [prefix.rstrip(".")] if prefix else []
    return [p for f in dataclasses.fields(config) for p in paths(getattr(config, f.name), f"{prefix}{f.name}.")]


def changed(config: Any, default: Any = None) -> dict[str, tuple[Any, Any]]:
    """Return the fields of a dataclass that differ from their defaults, by name: (value, default).

    Args:
        default: the dataclass that `config` has the place of; one of another class counts as its class's defaults.
    """
    found = {}
    for field in dataclasses.fields(config):
        now = getattr(config, field.name)
        if type(default) is type(config):
            usual = getattr(default, field.name)
        elif field.default_factory is not dataclasses.MISSING:
            usual = field.default_factory()
        else:
            usual = field.default
        if now != usual:
            found[field.name] = now, usual
    return found


def leaves(config: Any) -> dict[str, Any]:
    """Return the values of all leaf fields by dotted path, and under `path.class` the class of each open field."""
    flat: dict[str, Any] = {}

    def visit(value: Any, path: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                visit(item, f"{path}.{key}" if path else key)
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            for number, item in enumerate(value):
                visit(item, f"{path}.{number}")
        else:
            flat[path] = value

    visit(to_dict(config), "")
    return flat


def to_dict(config: Any) -> dict[str, Any]:
    """Return the JSON values of a dataclass. A field with a subclass of its declared type names it under `class`."""
    result: dict[str, Any] = {}
    hints = _hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            named = {} if type(value) is hints[field.name] else {"class": _class_name(type(value))}
            value = named | to_dict(value)
        result[field.name] = plain(value)
    return result


def labels(values: tuple[Any, ...], older: str = "") -> tuple[Any, ...]:
    """Return labels of values for a table or JSON: the value itself, or the name of a dataclass, with the fields that
    tell it from others of the same name.

    Args:
        older: a label of an older version, which had all fields that there were: fields that it lacks are left out
            where they have their defaults.
    """
    return tuple(_label(value, values, older) if dataclasses.is_dataclass(value) else plain(value) for value in values)


def _label(value: Any, values: tuple[Any, ...], older: str) -> str:
    name = type(value).__name__
    others = [one for one in values if type(one).__name__ == name and one is not value]
    if not others:
        return name
    if older or any(type(one) is not type(value) for one in others):
        text = str(value).removeprefix(type(value).__module__ + ".")
        for field in dataclasses.fields(value) if older else ():
            if f"{field.name}=" not in older and getattr(value, field.name) == field.default:
                text = text.replace(f", {field.name}={field.default!r}", "", 1)
        return text
    fields = {field.name: repr(getattr(value, field.name)) for field in dataclasses.fields(value)}
    told = [field for field, text in fields.items() if any(repr(getattr(one, field)) != text for one in others)]
    return f"{name}({', '.join(f'{field}={fields[field]}' for field in told)})"


def from_dict(cls: type[T], values: Any, where: object, path: str = "") -> T:
    """Return the dataclass of JSON values: the inverse of `to_dict`. Classes come from loaded modules only, so that no
    text in a JSON file can import or call anything else.

    Raises:
        UserError: an unknown or missing field, an unknown class, or a value that its field refuses.
    """
    if not isinstance(values, dict):
        raise _wrong_type(path.rstrip(".") or "experiment", values, "a JSON object", where)
    values = dict(values)
    if "class" in values:
        cls = _find_class(values.pop("class"), cls, where, values)
    hints, fields = _hints(cls), {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    arguments = {}
    for key, value in values.items():
        if key not in fields:
            raise errors.unknown_field(path + key, [path + name for name in fields], where)
        declared = [hints[key], *typing.get_args(hints[key])]
        nested: list[type] = [hint for hint in declared if isinstance(hint, type) and dataclasses.is_dataclass(hint)]
        if nested and (isinstance(value, dict) or nested[0] is hints[key]):
            value = from_dict(nested[0], value, where, f"{path}{key}.")
        items = [arg for arg in typing.get_args(hints[key]) if isinstance(arg, type) and dataclasses.is_dataclass(arg)]
        arguments[key] = _tuples(value, items[0] if items else None, where, f"{path}{key}.")
    for name, field in fields.items():
        no_default = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if no_default and name not in arguments:
            raise errors.UserError(
                f"field {(path + name)!r} is missing", where, "add it, or start from a fresh experiment file"
            )
    return cls(**arguments)


def _class_name(cls: type) -> str:
    if wrappers.target_of(cls) is not None:
        name, target = wrappers.name_of(cls)
        return f"raytrain:{name}({_path(target, wrappers.shortest_module(target))})"
    if "<locals>" in cls.__qualname__:
        raise errors.UserError(
            f"class {cls.__name__} is defined inside a function, so that a saved run cannot name it",
            f"in {cls.__module__}",
            "move it to the top level of its file",
        )
    # Raytrain's own are named by the package: their modules may move within it.
    return _path(cls, "raytrain" if _public(cls.__module__, cls.__qualname__) is cls else cls.__module__)


def _path(thing: Any, module: str) -> str:
    """Return `module:name` of a class or a function."""
    return f"{'experiment' if module in (EXPERIMENT_MODULE, '__main__') else module}:{thing.__qualname__}"


def _public(module_name: str, qualname: str) -> Any:
    """Return the public class of raytrain with that name; None for a module of others."""
    own = re.fullmatch(r"raytrain(\.\w+)*", module_name)
    return vars(sys.modules["raytrain"]).get(qualname) if own else None


def modules_of(name: str) -> list[str]:
    """Return the modules that hold a class of saved JSON, and what it wraps, without raytrain's own and PyTorch's."""
    wrapped = _WRAPPED.fullmatch(name)
    modules = [path.partition(":")[0] for path in (wrapped.groups() if wrapped else [name])]
    return [module for module in modules if module.partition(".")[0] not in ("raytrain", *sources.LIBRARIES)]


_WRAPPED = re.compile(r"(raytrain:\w+)\(([^()]+:[^()]+)\)")
"""A dataclass made by one of raytrain's wrappers, and what it wraps."""


def _find_class(name: Any, base: type[T], where: object, values: dict[str, Any]) -> type[T]:
    if wrapped := _WRAPPED.fullmatch(str(name)):
        found, target = _find(wrapped[1]), _find(wrapped[2])
        fitting = isinstance(found, wrappers.Wrapper) and (base is _OneOfSeveral or issubclass(found, base))
        if not (fitting and found.allows(target)):
            raise _not_found(name, where)
        return cast(type[T], found.of(target, values))
    found = _find(str(name))
    own = isinstance(found, type) and (found.__module__.startswith("raytrain.") or sources.own(found.__module__))
    fits = own if base is _OneOfSeveral else isinstance(found, type) and issubclass(found, base)
    if not (fits and dataclasses.is_dataclass(found)):
        raise _not_found(name, where)
    return found  # type: ignore[return-value]


def _find(name: str) -> Any:
    """Return the object that saved JSON names `module:name`; None if no loaded module has it."""
    module_name, _, qualname = name.partition(":")
    # Runs of raytrain 0.1 name the module of a public class, which may have moved.
    public = _public(module_name, qualname)
    wrappers.load_library(module_name)
    # If the module is not loaded, look in the run's copy of the experiment file.
    loaded = None if module_name == "experiment" else sys.modules.get(module_name)
    found: Any = loaded or sys.modules.get(EXPERIMENT_MODULE)
    for part in qualname.split("."):
        found = vars(found).get(part) if isinstance(found, types.ModuleType | type) else None
    return public or found


def _not_found(name: Any, where: object) -> errors.UserError:
    what = f"{'class' if '(' not in str(name) else 'what is wrapped by'} {str(name)!r} cannot be found"
    how = "keep the experiment file's copy beside experiment.json, and its class names as they were"
    copy = where.with_name(sources.COPY) if isinstance(where, Path) else None
    if copy and "experiment" in modules_of(str(name)) and not copy.exists():
        how = f"write its definition, and the imports that it needs, into {copy}: the class of a notebook has no file"
    return errors.UserError(what, where, how)


def plain(value: Any) -> Any:
    """Return a field's value for JSON: lists for tuples, and objects with their class for dataclasses."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if dataclasses.is_dataclass(value):  # one of several: each names its class
        return {"class": _class_name(type(value))} | to_dict(value)
    return value


def _tuples(value: Any, item: type | None, where: object, path: str) -> Any:
    """Return tuples for JSON's lists. Objects with a class in them become dataclasses of the type `item`."""
    if isinstance(value, list):
        return tuple(_tuples(one, item, where, f"{path}{number}.") for number, one in enumerate(value))
    if isinstance(value, dict) and "class" in value:
        return from_dict(item or _OneOfSeveral, value, where, path)
    if isinstance(value, dict):
        return {name: _tuples(one, item, where, f"{path}{name}.") for name, one in value.items()}
    return value


class _OneOfSeveral:
    """Any dataclass of raytrain or of the experiment file, for a field whose type names no class."""


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _describe(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(arg) for arg in args)
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(arg) for arg in args)
    if origin is tuple:
        if not args or args[-1] is not Ellipsis:
            return f"a tuple of {len(args)} values"
        return "a tuple" if args[0] is Any else f"a tuple, each of its values {_describe(args[0])}"
    if hint in (int, float, str, bool):
        return {int: "a whole number", float: "a number", str: "a string", bool: "True or False"}[hint]
    if hint is type(None):
        return "None"
    if hint is Any:
        return "any value"
    return errors.with_article(str(getattr(hint, "__name__", hint)))


def _written(field: str, value: object, hint: Any) -> str:
    """Return what to write for a tuple: the values of a list, one value alone, or parts such as metrics; nothing for
    other fields, and where the values do not suit it."""
    if typing.get_origin(hint) is not tuple:
        return ""
    made = tuple(value) if isinstance(value, list) else (value,)
    part, *_ = typing.get_args(hint) or (None,)
    if dataclasses.is_dataclass(part) and made:
        return parts.for_tuple(field, value, cast(type, part))
    return f"write {field}={made!r}" if fits(made, hint) and len(repr(made)) <= _LONGEST else ""


def _wrong_type(field: str, value: object, expected: str, where: object, how: str = "") -> errors.UserError:
    return errors.UserError(f"{field} = {value!r} is of the wrong type", f"in {where}", how or f"give {expected}")
