"""The help of flags, from the docstrings of dataclass fields."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from types import MappingProxyType


def join_lines(kind: type) -> None:
    """Set the docstrings of a dataclass's fields as their help, without the line breaks of the source.

    tyro takes help from a field's metadata first. From the source, it keeps the breaks of indented lines.
    """
    docs = _all_docstrings(kind)
    for field in dataclasses.fields(kind):
        if field.name in docs:
            field.metadata = MappingProxyType({"help": docs[field.name], **field.metadata})


def first_sentence(kind: type, name: str) -> str:
    """Return the first sentence of the docstring of a dataclass's field, without its full stop, or ""."""
    return re.split(r"\.(?:\s|$)", _all_docstrings(kind).get(name, ""))[0]


def _all_docstrings(kind: type) -> dict[str, str]:
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        docs |= _docstrings(base) if dataclasses.is_dataclass(base) else {}
    return docs


def _docstrings(kind: type) -> dict[str, str]:
    """Return the docstrings that follow a class's fields; none if its source cannot be read."""
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
                found[field.target.id] = re.sub(r"(?<=\S)[ \t]*\n[ \t]*(?=\S)", " ", text.value.value.strip())
    return found
