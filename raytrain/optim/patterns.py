"""Patterns of parameter names, as the shell's for files (`fnmatch`): `backbone.*`, `*.bias`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from raytrain import errors

T = TypeVar("T")

_WRAPPER = re.compile(r"\b_orig_mod\.")
"""What torch.compile puts into the names of a module that a model's `build` has compiled."""
_NUMBERED = re.compile(r"\d$")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether one of the patterns matches a name."""
    name = _WRAPPER.sub("", name)
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def first(name: str, rules: Iterable[tuple[str, T]], default: T) -> T:
    """Return the value of the first rule whose pattern matches a name."""
    return next((value for pattern, value in rules if matches(name, (pattern,))), default)


def check(patterns: Iterable[str], names: Sequence[str], field: str) -> None:
    """Check that each pattern matches one of the names.

    Raises:
        UserError: one does not; the error has the nearest names.
    """
    for pattern in patterns:
        if not any(matches(name, (pattern,)) for name in names):
            known = dict.fromkeys([*(f"{prefix}.*" for name in names for prefix in _prefixes(name)), *names])
            near = errors.did_you_mean(errors.close(pattern, known))
            how = near or f"the names begin with {errors.listed(dict.fromkeys(n.partition('.')[0] for n in names))}"
            raise errors.UserError(f"{pattern!r} matches no parameter of the model", f"in {field}", how.rstrip())


def block(name: str) -> str:
    """Return the block of a parameter: its name up to the first part that ends in a digit, or else its layer's name:
    `blocks.3` of `blocks.3.attn.qkv.weight`, `head` of `head.weight`."""
    parts = _WRAPPER.sub("", name).split(".")[:-1]
    end = next((number for number, part in enumerate(parts, 1) if _NUMBERED.search(part)), len(parts))
    return ".".join(parts[:end])


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]
