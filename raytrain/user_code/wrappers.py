"""Wrappers: plain classes and functions of PyTorch, of its libraries and of the user as values of an experiment.

`TorchModel(Net, width=32)` is a value of the frozen dataclass `TorchModel(Net)`, which this module makes from the
signature of `Net`: one field for each argument that JSON can hold. So its arguments have flags, are axes of sweeps, and
are saved like all other fields.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import sys
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple

from raytrain import errors
from raytrain.user_code import sources
from raytrain.user_code.json_types import Scalar, fits, is_json, tuples, type_of
from raytrain.user_code.places import place
from raytrain.user_code.python_files import is_own
from raytrain.user_code.signatures import signature


class Wraps(NamedTuple):
    """What a wrapper wraps.

    Attributes:
        wanted: its targets, for messages.
        example: one of them.
        plain: module and name of the class that a target's class derives from.
        functions: modules of libraries whose functions may be targets, each with a dot at its end.
        given: arguments, before all others, that raytrain itself gives.
        hidden: arguments that cannot be given, and what to do instead.
        derived: arguments that raytrain gives where the user does not; in the experiment they are None.
        shared: arguments that are also fields or methods of the wrapper.
        replaced: optional arguments that keep their defaults, since a field of the wrapper does the same.
    """

    wanted: str
    example: str
    plain: tuple[str, str]
    functions: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    hidden: tuple[tuple[str, str], ...] = ()
    derived: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()

    def derives(self, kind: type) -> bool:
        """Return whether a class derives from `plain`; if PyTorch is not imported, none does."""
        base = getattr(sys.modules.get(self.plain[0]), self.plain[1], None)
        return base is not None and issubclass(kind, base) and kind is not base

    def builds(self, target: Any) -> bool:
        """Return whether a target is one of `functions`."""
        return bool(self.functions) and f"{target.__module__}.".startswith(self.functions)


class Wrapper(type):
    """The metaclass of wrappers. Calling a wrapper with a target returns a value of the dataclass for that target."""

    def __call__(cls, *arguments: Any, **fields: Any) -> Any:
        """Return a value with the given arguments of the target, and fields of the wrapper's own.

        Raises:
            UserError: the target is not one that a saved run could name, or the arguments are not its arguments.
        """
        if target_of(cls) is not None:
            return super().__call__(*arguments, **fields)
        name, wraps = cls.__name__, _wraps(cls)
        if not arguments:
            how = f"write {name}({wraps.example}, ...)"
            raise errors.UserError(f"{name} needs {wraps.wanted} as its first argument", "", how)
        target, *rest = arguments
        Wrapper.check(cls, target)  # some wrapped classes have a method of that name
        where, title = f"in {name}({where_is(target)})", target.__name__
        if rest:
            named = next(iter(signature(target, len(wraps.given)).arguments), "name")
            how = f"write {name}({title}, {named}={rest[0]!r})"
            raise errors.UserError(f"{name} takes the arguments of {title} by name, got {rest[0]!r}", where, how)
        unset = [key for key in wraps.replaced if fields.get(key, "") is None]  # as in resnet18(weights=None)
        fields = {key: tuples(value) for key, value in fields.items() if key not in unset}
        kind = cls.of(target, fields)
        known = [field.name for field in dataclasses.fields(kind)]
        for key, value in fields.items():
            if key in dict(wraps.hidden):
                raise errors.UserError(f"{title} cannot be given {key}", where, dict(wraps.hidden)[key])
            if key not in known:
                listed = (
                    f"its arguments are {errors.listed(known, 20)}" if known else "leave it out: it takes no arguments"
                )
                how = f"{errors.nearest(key, known)}{listed}"
                raise errors.UserError(f"{title} has no argument {key!r}", where, how)
            if key in takes(kind) and not is_json(value):
                what = f"{key} = {errors.one_line(repr(value), 60)} of {title} is no number, string, boolean or tuple"
                raise errors.UserError(what, where, cls.remedy(target, key))
        if missing := [one for one in cls.needed(target) if one not in fields]:
            how = f"write {name}({title}, {', '.join(f'{one}=...' for one in missing)})"
            raise errors.UserError(f"{title} needs {errors.listed(missing)}", where, how)
        return kind(**fields)

    def of(cls, target: Any, fields: Mapping[str, Any]) -> type:
        """Return the dataclass for a target; equal targets and kinds of fields share one.

        Args:
            target: a class or a function that `check` has accepted.
            fields: the given values by name. An argument whose default is not a JSON value, or one of `**kwargs`, is a
                field if it is given; a type that the signature leaves open is that of its value.
        """
        found = signature(target, len(_wraps(cls).given))
        own = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        more = {}
        for name, value in fields.items():
            argument = found.arguments.get(name)
            if argument is None and (not found.open or name in own):
                continue
            if argument is None or not (argument.json or argument.required):
                more[name] = (argument and argument.hint) or type_of(value)
            elif argument.hint is None and isinstance(value, list | tuple):  # a scalar may become any other
                more[name] = type_of(value)
        return _dataclass(cls, target, frozenset(more.items()))

    def check(cls, target: Any) -> None:
        """Check that a target is a class or a function that saved JSON can name, and may.

        Raises:
            UserError: it is something else.
        """
        name, wraps = cls.__name__, _wraps(cls)
        how = f"write {name}({wraps.example}, ...)"
        if not isinstance(target, type | types.FunctionType):
            kind = type(target).__name__
            if made := by_function(name, kind) or (wraps.derives(type(target)) and f"{name}({kind}, ...)"):
                how = f"write {made}"
            raise errors.UserError(f"{name} takes {wraps.wanted}, got {_described(target)}", f"in {name}", how)
        where, title = f"in {name}({where_is(target)})", target.__qualname__
        if "<" in title:
            what = "is defined inside a function" if "<locals>" in title else "has no name"
            how = "write a function at the top level of a file, and wrap that"
            raise errors.UserError(f"{target.__name__} {what}, so that a saved run cannot name it", where, how)
        if isinstance(target, type) and not wraps.derives(target):
            raise errors.UserError(f"{name} takes {wraps.wanted}, got the class {title}", where, how)
        if not cls.allows(target):
            libraries = "".join(f" and of {module.rstrip('.')}" for module in wraps.functions)
            what = f"{name} takes functions of your own modules{libraries}, got {target.__module__}.{title}"
            raise errors.UserError(what, where, cls.remedy(target))
        cls._check(target)

    def allows(cls, target: Any) -> bool:
        """Return whether JSON may name a loaded object: calling it with values from a file must be harmless. Allowed
        are classes of PyTorch's kind, functions of the user's modules, and those of some libraries that build
        models."""
        if isinstance(target, type):
            return _wraps(cls).derives(target)
        if not isinstance(target, types.FunctionType):
            return False
        module = str(target.__module__)
        users = module == "__main__" or sources.own(module) or is_own(target.__code__.co_filename)
        return _wraps(cls).builds(target) or (users and not module.startswith("raytrain."))

    def needed(cls, target: Any) -> list[str]:
        """Return the arguments of a target that must be given."""
        wraps = _wraps(cls)
        arguments = signature(target, len(wraps.given)).arguments
        return [name for name, argument in arguments.items() if argument.required and name not in wraps.derived]

    def remedy(cls, target: Any, argument: str = "") -> str:
        """Return what to write for a target, or an argument of it, that saved JSON cannot hold."""
        name, given = target.__name__, _wraps(cls).given
        inside = ", ".join([*given, f"{argument}=..." if argument else "..."])
        return (
            f"write a function of your own, `def my_{name.lower()}({', '.join(given)}): return {name}({inside})`, "
            + ("and wrap that")
        )

    def _check(cls, target: Any) -> None:
        """Check what is special to one wrapper. No-op by default."""


class Wrapped(metaclass=Wrapper):
    """The base of wrappers: what their values share. A wrapper is a dataclass with `Wrapped` as its first base."""

    _wraps: ClassVar[Wraps]

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self)
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
        return _rebuilt, (_wrapper(kind), target_of(kind), fields)

    def __repr__(self) -> str:
        kind = type(self)
        changed = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(kind)  # type: ignore[arg-type]
            if field.default_factory is dataclasses.MISSING and getattr(self, field.name) != field.default
        ]
        return f"{_wrapper(kind).__name__}({', '.join([target_of(kind).__name__, *changed])})"

    def _called(self, *first: Any, **derived: Any) -> Any:
        """Return the result of the target.

        Args:
            first: the arguments before the fields.
            derived: values for arguments that are None here, by name; None leaves the target's default.
        """
        kind = type(self)
        values = {name: getattr(self, name) for name in takes(kind)}
        values |= {name: value for name, value in derived.items() if name in values and values[name] is None}
        values = {name: value for name, value in values.items() if value is not None or name not in self._wraps.derived}
        listed = vars(kind)["__lists__"]
        values = {name: _lists(value) if name in listed else value for name, value in values.items()}
        return target_of(kind)(*first, **values)

    def _made(self, word: str, **derived: Any) -> Any:
        """Return the result of the target, of the class that it wraps.

        Args:
            word: what the target makes.
            derived: as for `_called`.

        Raises:
            UserError: the target raises an error, or returns something else.
        """
        name, (module, base) = type(self).__name__, self._wraps.plain
        where = f"in {where_is(target_of(type(self)))}"
        try:
            found = self._called(**derived)
        except Exception as error:
            said = errors.one_line(f"{type(error).__name__}: {error}", 300).rstrip(".")
            raise errors.UserError(f"{name} cannot be made: {said}", where, "change its arguments") from None
        if not isinstance(found, getattr(importlib.import_module(module), base)):
            what = f"{name} must return a {module}.{base}, got {type(found).__name__}"
            raise errors.UserError(what, where, f"let it end in `return {word}`")
        return found


def target_of(kind: type) -> Any:
    """Return what a wrapper's dataclass calls; None for any other class."""
    return vars(kind).get("__target__")


def takes(kind: type) -> tuple[str, ...]:
    """Return the fields of a wrapper's dataclass that are arguments of its target."""
    return vars(kind)["__takes__"]


def name_of(kind: type) -> tuple[str, Any]:
    """Return the name of the wrapper that a dataclass was made by, and its target."""
    return _wrapper(kind).__name__, target_of(kind)


def by_function(wrapper: str, kind: str) -> str:
    """Return how to wrap a function in place of a class whose arguments are modules; nothing for any other class."""
    if kind not in ("Sequential", "ModuleList"):
        return ""
    return f"{wrapper}(net), with `def net(): return nn.{kind}(...)` above it"


def where_is(target: Any) -> str:
    """Return a target's name for a message, with file and line of the user's own."""
    named = place(target)
    return target.__qualname__ if "site-packages" in named else named


def shortest_module(target: Any) -> str:
    """Return the module that saved JSON names for a target: of an installed package, the shortest path that has it."""
    module = str(target.__module__)
    if module == "__main__" or sources.own(module) or is_own(getattr(sys.modules.get(module), "__file__", None) or ""):
        return module
    parts = module.split(".")
    paths = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return next((one for one in paths if getattr(sys.modules.get(one), target.__qualname__, None) is target), module)


def load_library(module: str) -> None:
    """Import the package of a module of PyTorch's, or a module of Ray Tune, which saved JSON may name without importing
    it."""
    package = module.partition(".")[0]
    if package in sources.LIBRARIES:
        with contextlib.suppress(ImportError):  # the error of a class that cannot be found comes later
            importlib.import_module(module if module.startswith("ray.tune.") else package)


@cache
def _dataclass(wrapper: Wrapper, target: Any, more: frozenset[tuple[str, Any]]) -> type:
    """Return the dataclass.

    Args:
        more: names and types of fields that are only there because a value is given; see `Wrapper.of`.
    """
    wraps = _wraps(wrapper)
    found, given = signature(target, len(wraps.given)), dict(more)
    hints: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for name, argument in found.arguments.items():
        if name in wraps.derived:
            hints[name], values[name] = (argument.hint or int) | None, None
        elif argument.json:
            hint = given.get(name) or argument.hint or Scalar
            hints[name] = hint if fits(argument.default, hint) else hint | type_of(argument.default)
            values[name] = argument.default
        elif argument.required or name in given:
            hints[name] = given.get(name) or argument.hint or Scalar
    hints |= {name: given[name] for name in sorted(given.keys() - hints.keys())}
    if found.open and wraps.builds(target):  # torchvision's and timm's functions hand it on
        for name in wraps.derived[:1]:
            hints[name], values[name] = int | None, None
    hints = {name: hint for name, hint in hints.items() if name not in dict(wraps.hidden)}
    required = {name for name, argument in found.arguments.items() if argument.required}
    hints = {name: hint for name, hint in hints.items() if name not in wraps.replaced or name in required}
    used = {name for kind in wrapper.__mro__ for name in (*vars(kind), *inspect.get_annotations(kind))}
    for name in sorted((used & hints.keys()) - {*wraps.shared}):
        what = f"the argument {name!r} of {target.__name__} has a name that {wrapper.__name__} uses itself"
        raise errors.UserError(what, f"in {where_is(target)}", wrapper.remedy(target, name))
    title = f"{wrapper.__name__}({target.__name__})"
    namespace = {
        **{name: dataclasses.field(default=values.get(name, dataclasses.MISSING), kw_only=True) for name in hints},
        "__annotations__": hints,
        "__module__": wrapper.__module__,
        "__qualname__": title,
        "__doc__": f"{title}: {(inspect.getdoc(target) or '').partition(chr(10))[0]}".rstrip(": "),
        "__target__": target,
        "__takes__": tuple(hints),
        "__lists__": frozenset(name for name in hints if name in found.arguments and found.arguments[name].listed),
    }
    return dataclasses.dataclass(frozen=True, repr=False)(Wrapper(title, (wrapper,), namespace))


def _rebuilt(wrapper: Wrapper, target: Any, fields: dict[str, Any]) -> Any:
    return wrapper.of(target, fields)(**fields)


def _wraps(wrapper: Any) -> Wraps:
    return wrapper._wraps


def _wrapper(kind: type) -> type:
    return kind.__mro__[1]


def _lists(value: Any) -> Any:
    return [_lists(item) for item in value] if isinstance(value, tuple) else value


def _described(value: Any) -> str:
    return repr(value) if isinstance(value, int | float | str) or value is None else f"a {type(value).__name__}"
