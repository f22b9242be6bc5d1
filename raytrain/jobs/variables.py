"""Environment variables of a job, as the flags of `submit` give them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from raytrain import errors
from raytrain.files import SECRET

_WHERE = "in --env"


def variables(given: Sequence[str]) -> dict[str, str]:
    """Return variables by name.

    Args:
        given: each NAME=VALUE.

    Raises:
        UserError: one has another form, is given twice, or has the name of a secret.
    """
    found: dict[str, str] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise errors.UserError(f"an environment variable must be NAME=VALUE, got {one!r}", _WHERE, "write A=1 B=2")
        if SECRET.search(name.lower()):
            what = f"{name} is the name of a secret, and all who see the job could read it"
            raise errors.UserError(what, _WHERE, "set it in the environment of the nodes")
        if name in found:
            raise errors.UserError(f"{name} is given twice", _WHERE, "leave one out")
        found[name] = value
    return found
