"""Checks of the parts of an experiment: each must be a part of raytrain, and each class of the user's a dataclass with
all that it declares."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from raytrain import errors
from raytrain.user_code.places import place
from raytrain.user_code.wrappers import Wrapper, by_function

_BASES = ("Images", "Supervised")
"""Public classes that are of use only as the base of others."""
_SAME = {
    "crossentropyloss": "Classification",
    "cross_entropy": "Classification",
    "constantlr": "Constant",
    "cosineannealinglr": "Cosine",
    "cosineannealingwarmrestarts": "CosineRestarts",
    "onecyclelr": "OneCycle",
    "reducelronplateau": "Plateau",
    "distributeddataparallel": "DDP",
    "fullyshardeddataparallel": "FSDP",
    "datasetfolder": "ImageFolder",
    "basicvariantgenerator": "RandomSearch",
    "ashascheduler": "ASHA",
    "asynchyperbandscheduler": "ASHA",
    "hyperbandscheduler": "HyperBand",
    "medianstoppingrule": "MedianStopping",
    "populationbasedtraining": "PBT",
    "fifoscheduler": "Complete",
}
"""raytrain's class for one of torch's or of Ray Tune's, by the lower-case name of the latter, if the names differ."""
_NEEDS = {
    "Model": "`def build(self, sample, classes): return {call}`",
    "Data": "`def index(self)`, which returns a dict of Index, and `def read(self, index, samples)`, which returns "
    "arrays of samples",
    "Sampler": "`def samples(self, index, seed, epoch, positions)`, which returns the sample at each position, int64",
    "Task": "`def loss(self, model, batch): return {call}, len(batch)`, the loss being the sum over the batch",
    "Optimizer": "`def build(self, parameters): return {call}`",
    "Hook": "`def after_step(self, trainer)`, which may return columns for metrics.jsonl",
    "Logger": "`def log(self, rows)`, which takes rows of metrics.jsonl",
    "Schedule": "`def factor(self, step, steps_per_epoch, epochs)`, which returns the factor on optimizer.lr",
}
"""The methods that a class of the user's needs."""
_LONGEST = 60
"""Characters of a value in a message."""


def check_part(field: str, value: object, wanted: type, parts: Mapping[str, type]) -> None:
    """Check a part of an experiment, such as its model, and the classes of all that is in it.

    Args:
        field: its name in the experiment; `name[]` for one of a tuple.
        wanted: the base class that it needs.
        parts: the base classes of all parts, by their fields.

    Raises:
        UserError: it is something else, or one of its classes is not a complete dataclass.
    """
    check_kind(field, value, wanted, parts)
    for kind in _classes(value):
        check_class(kind)


def check_kind(field: str, value: object, wanted: type, parts: Mapping[str, type], owner: str = "Experiment") -> None:
    """Check the class of a part alone; see `check_part`.

    Args:
        owner: the class that has the field.
    """
    if not isinstance(value, wanted):
        named = f"each of {field.removesuffix('[]')}" if field.endswith("[]") else field
        what = f"{named} must be {errors.with_article(wanted.__name__)} of raytrain, got {_described(value)}"
        raise errors.UserError(what, f"in {owner}", _remedy(field, value, wanted, parts))


def check_kinds(value: Any, parts: Mapping[str, type]) -> None:
    """Check the classes of the parts of a dataclass, before its types: for a message that says what to write. A field
    that is no tuple where it should be one is left to the types.

    Args:
        parts: the base classes of all parts, by their fields; `name[]` for a tuple of them.
    """
    for field, wanted in parts.items():
        found = getattr(value, field.removesuffix("[]"))
        several = found if isinstance(found, tuple) else ()
        for one in several if field.endswith("[]") else (found,):
            check_kind(field, one, wanted, parts, type(value).__name__)


def check_parts(field: str, values: object, wanted: type, parts: Mapping[str, type]) -> None:
    """Check a field that holds a tuple of parts; see `check_part`."""
    if not isinstance(values, tuple):
        what = f"{field} must be a tuple, got {_described(values)}"
        how = for_tuple(field, values, wanted) or f"write {field}=(My{wanted.__name__}(...),)"
        raise errors.UserError(what, "in Experiment", how)
    for value in values:
        check_part(f"{field}[]", value, wanted, parts)
        check_methods(type(value), wanted)


def for_tuple(field: str, values: object, base: type) -> str:
    """Return what to write for a field that holds a tuple of parts, and was given something else; nothing if no part
    is like it.

    Args:
        base: the class of the parts.
    """
    given = values if isinstance(values, tuple | list) else (values,)
    value = next((one for one in given if not isinstance(one, base)), given[0] if given else None)
    kind = value if isinstance(value, type) else type(value)
    if issubclass(kind, base):
        return f"write {_set(f'{field}[]', f'{kind.__name__}(...)')}"
    if not (wrapped := _wrapped(value, base)):
        return ""
    return f"write `from raytrain import {wrapped.partition('(')[0]}` and {_set(f'{field}[]', wrapped)}"


def check_called(given: Mapping[type, Iterable[object]]) -> None:
    """Check that each part has a method that is called. A plan does, and no `Experiment`: runs that were trained with
    another one can still be loaded.

    Args:
        given: parts by their base: hooks and loggers.

    Raises:
        UserError: one has none.
    """
    for base, kind in ((base, type(value)) for base, values in given.items() for value in values):
        if kind is not base and all(getattr(kind, name) is vars(base)[name] for name in _public(base)):
            close = next((found for name in _public(kind) if (found := errors.nearest(name, _public(base)))), "")
            what = f"{kind.__name__} has no method of {errors.with_article(base.__name__)}, so that nothing calls it"
            raise errors.UserError(what, f"in {place(kind)}", f"{close}write {_NEEDS[base.__name__]}")


def _public(kind: type) -> list[str]:
    """Return the names of a class's own public methods."""
    return [name for name, one in vars(kind).items() if inspect.isfunction(one) and not name.startswith("_")]


@cache
def check_methods(kind: type, base: type) -> None:
    """Check that the public methods of a class can be called as those of its base.

    Raises:
        UserError: one takes other arguments.
    """
    for name in _public(base):
        method, given = getattr(kind, name), [*inspect.signature(vars(base)[name]).parameters]
        try:
            inspect.signature(method).bind(*given)
        except TypeError:
            what = f"{kind.__name__}.{name} takes other arguments than ({', '.join(given)})"
            how = f"define it as {name}({', '.join(given)})"
            raise errors.UserError(what, f"in {place(method)}", how) from None


@cache
def check_class(kind: type) -> None:
    """Check that a dataclass of the user's has all that it declares as fields.

    Raises:
        UserError: the decorator is missing, it has an `__init__` of its own, or a default without its type.
    """
    for each in kind.__mro__:
        if each.__module__.startswith("raytrain.") or not dataclasses.is_dataclass(each):
            continue
        name, where = each.__name__, f"in {place(each)}"
        own = {field: str(hint) for field, hint in inspect.get_annotations(each).items()}
        fields = {field.name: field for field in dataclasses.fields(each)}
        lost = [field for field, hint in own.items() if not field.startswith("_") and "ClassVar" not in hint]
        if lost and "__dataclass_fields__" not in vars(each):
            what = f"class {name} is not a dataclass, so {', '.join(lost)} cannot be set, saved or swept"
            raise errors.UserError(what, where, f"write `@dataclass(frozen=True)` in the line above `class {name}`")
        made = getattr(vars(each).get("__init__"), "__code__", None)
        if made is not None and made.co_filename != "<string>" and not _takes(each, fields):
            what = f"class {name} has an __init__ with other arguments than its fields"
            how = "declare each argument as a field, such as `width: int`, and write `@dataclass(frozen=True)` in the "
            raise errors.UserError(what, where, f"{how}line above `class {name}` in place of __init__")
        for field in fields:
            # A method may have a field's name: `metrics` of tasks, in raytrain 0.1.
            if field in vars(each) and field not in own and not inspect.isfunction(vars(each)[field]):
                what = f"{field} of class {name} has no type, so that a dataclass ignores its value"
                raise errors.UserError(what, where, f"write `{field}: {type(getattr(each, field)).__name__} = ...`")


def _takes(kind: type, fields: Mapping[str, dataclasses.Field[Any]]) -> bool:
    """Return whether a class accepts its fields as arguments and nothing else."""
    signature = inspect.signature(kind)
    named = {one.name for one in signature.parameters.values() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}
    try:
        signature.bind(**{name: None for name, field in fields.items() if field.init})
    except TypeError:
        return False
    return named <= fields.keys()


def _remedy(field: str, value: Any, wanted: type, parts: Mapping[str, type]) -> str:
    """Return what to write instead of a value."""
    kind, base = value if isinstance(value, type) else type(value), wanted.__name__
    name = value if isinstance(value, str) else getattr(value, "__name__", kind.__name__)
    if isinstance(value, type) and issubclass(value, wanted):
        return f"write {_set(field, f'{name}(...)')}"
    for other, part in parts.items():
        if issubclass(kind, part):
            return f"did you mean {other}={kind.__name__}(...)?"
    known = {one.__name__.lower(): one.__name__ for one in usable(wanted) if not isinstance(one, Wrapper)}
    same = known.get(_SAME.get(name.lower(), name).lower())
    if same:
        rate = getattr(value, "defaults", {}).get("lr") if base == "Optimizer" else None
        return f"write `from raytrain import {same}` and {field}={same}({'...' if rate is None else f'lr={rate:g}'})"
    if base == "Model" and (isinstance(value, str) or _module(value).startswith("torchvision.models")):
        model = name if isinstance(value, str) or inspect.isfunction(value) else "resnet18"
        return f'write `from raytrain import Torchvision` and {field}=Torchvision(name="{model}")'
    if base == "Data" and isinstance(value, str | os.PathLike):
        return f'write `from raytrain import ImageFolder` and {field}=ImageFolder(root="{value}")'
    if wrapped := _wrapped(value, wanted):
        return f"write `from raytrain import {wrapped.partition('(')[0]}` and {_set(field, wrapped)}"
    if base not in _NEEDS:
        return f"write {_set(field, _any_of(known.values() or [base]))}"
    adapted = name.isidentifier() and (base == "Optimizer" or (base in ("Model", "Task") and callable(value)))
    own = f"My{name[0].upper()}{name[1:]}" if adapted else f"My{base}"
    needs = _NEEDS[base].format(call=_call(base, value, name))
    others = f"use {_any_of(known.values())}, or " if known and base != "Model" else ""
    above = f"above it `@dataclass(frozen=True)`, `class {own}({base})`, {needs}"
    return f"{others}write {_set(field, f'{own}()')}, and {above}"


def _wrapped(value: Any, wanted: type) -> str:
    """Return the value that wraps a plain class, function or object of PyTorch's kind; nothing if none can."""
    wrapper: Any = next((one for one in (wanted, *_below(wanted)) if isinstance(one, Wrapper)), None)
    target = value if isinstance(value, type) or inspect.isfunction(value) else type(value)
    if wrapper is None or target.__module__ == "builtins":
        return ""
    try:
        Wrapper.check(wrapper, target)  # some wrappers have a method of that name
        needed = Wrapper.needed(wrapper, target)
    except errors.UserError:
        return ""
    name, rate = target.__name__, getattr(value, "defaults", {}).get("lr")
    tunes = _module(target).startswith("ray.")  # of which files import classes by name
    path = name if tunes or "(" in _full_name(target) else _full_name(target)
    if function := by_function(wrapper.__name__, name):
        return function
    given = [f"lr={rate:g}"] if isinstance(rate, int | float) else []
    return f"{wrapper.__name__}({', '.join([path, *given, *(f'{one}=...' for one in needed)])})"


def _set(field: str, value: str) -> str:
    """Return how a field is given a value in an experiment file."""
    return f"{field.removesuffix('[]')}=({value},)" if field.endswith("[]") else f"{field}={value}"


def _call(base: str, value: Any, name: str) -> str:
    """Return an expression that adapts an object of torch's, or a function or class of the user's."""
    if base == "Optimizer":
        torchs = _module(value).startswith("torch.optim")
        return f"{_full_name(value) if torchs else 'torch.optim.RMSprop'}(parameters, lr=self.lr)"
    if not callable(value):
        return "nn.Sequential(...)" if base == "Model" else "a loss"
    if _module(value).startswith("torch.nn"):
        name = _full_name(value).removeprefix("torch.")
    if base == "Model":
        return f"{name}(...)"
    function = name if inspect.isroutine(value) else f'{name}(reduction="sum")'
    return f"{function}(model(batch.images), batch.labels)"


def _described(value: Any) -> str:
    """Return the description of a value for a message, with file and line of the user's code."""
    if isinstance(value, type):
        return f"the class {_full_name(value)}"
    if inspect.isroutine(value):
        return f"the function {_full_name(value)}"
    if type(value).__module__ == "builtins" or dataclasses.is_dataclass(value):
        text = repr(value)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    return f"an object of class {_full_name(value)}"


def _full_name(value: Any) -> str:
    """Return the shortest dotted name of one of a library's classes or functions, or of an object's class; of the
    user's own, its name with file and line."""
    thing = value if isinstance(value, type) or inspect.isroutine(value) else type(value)
    named = place(thing)
    if named != thing.__qualname__ and "site-packages" not in named:
        return named
    module, name = _module(thing).split("."), thing.__qualname__
    for count in range(1, len(module) + 1):
        path = ".".join(module[:count])
        if getattr(sys.modules.get(path), name, None) is thing:
            return f"{path}.{name}"
    return name


def _module(value: Any) -> str:
    thing = value if isinstance(value, type) or inspect.isroutine(value) else type(value)
    return str(thing.__module__)


def usable(base: type) -> list[type]:
    """Return raytrain's public classes below one, but for those that are only bases of others."""
    public = vars(sys.modules["raytrain"])
    return [one for one in _below(base) if public.get(one.__name__) is one and one.__name__ not in _BASES]


def _below(base: type) -> Iterator[type]:
    """Yield the classes derived from one, with those derived from them."""
    for one in base.__subclasses__():
        yield one
        yield from _below(one)


def _any_of(names: Iterable[str]) -> str:
    return " or ".join(f"{name}(...)" for name in names)


def _classes(value: Any) -> Iterator[type]:
    """Yield the classes of a dataclass and of those in its fields."""
    yield type(value)
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name, None)
        for one in inner if isinstance(inner, tuple) else (inner,):
            if dataclasses.is_dataclass(one) and not isinstance(one, type):
                yield from _classes(one)
