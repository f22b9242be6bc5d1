"""The values of a YAML file with their lines, also of a hostile file.

`yaml.safe_load` drops lines, silently takes the last of two equal keys, and lets aliases expand a kilobyte to
gigabytes. This module walks the nodes, and counts them.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from raytrain import errors

LARGEST_BYTES = 256 * 1024
"""The largest cluster file in bytes; such files have a few kilobytes."""
_MOST_VALUES = 20_000
_DEEPEST = 60
_LONGEST = 4_000
_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True)
class Finding:
    """A problem at a line, and its remedy."""

    line: int
    level: Literal["error", "warning"]
    what: str
    how: str

    def __str__(self) -> str:
        return f"{self.line}: {self.level}: {self.what}; {self.how}"


@dataclass(frozen=True)
class Place:
    """A value and its line. A missing value is a `Place` too, with the value None and its parent's line.

    Args:
        value: the scalar; a dict or a list of `Place` for a mapping or a sequence.
        line: counted from 1; that of the key, for a value of a mapping.
        name: the last key of its path, or "" at the top.
        there: whether the file has it.
    """

    value: Any
    line: int
    name: str = ""
    there: bool = True

    def __getitem__(self, key: str) -> Place:
        found = self.value.get(key) if isinstance(self.value, dict) else None
        return found if found is not None else Place(None, self.line, key, there=False)

    def __iter__(self) -> Iterator[Place]:
        """The values of a mapping or a sequence; empty for a scalar."""
        return iter(self.value.values() if isinstance(self.value, dict) else self.items)

    def at(self, *keys: object) -> Place:
        """Return the place that keys and indices lead to: the last that exists."""
        place = self
        for key in keys:
            inside = place.value
            if isinstance(inside, dict) and key in inside:
                place = inside[key]
            elif isinstance(inside, list) and isinstance(key, int) and 0 <= key < len(inside):
                place = inside[key]
        return place

    @property
    def items(self) -> list[Place]:
        """The elements of a sequence; empty for other values."""
        return self.value if isinstance(self.value, list) else []

    @property
    def fields(self) -> dict[str, Place]:
        """The values of a mapping by their keys; empty for other values."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def text(self) -> str:
        """The value of a scalar as text, up to the length that rules read; empty for other values."""
        return "" if self.value is None or isinstance(self.value, dict | list) else str(self.value)[:_LONGEST]

    @property
    def number(self) -> int | None:
        """A whole number, or None."""
        return self.value if isinstance(self.value, int) and not isinstance(self.value, bool) else None

    @property
    def empty(self) -> bool:
        """Whether the value is absent, null, or empty."""
        return self.value is None or self.value in ({}, [], "")

    def scalars(self) -> Iterator[Place]:
        """All scalars in it."""
        if isinstance(self.value, dict | list):
            for place in self:
                yield from place.scalars()
        else:
            yield self

    def plain(self) -> Any:
        """Return the value as `yaml.safe_load` would give it."""
        if isinstance(self.value, dict):
            return {key: place.plain() for key, place in self.value.items()}
        return [place.plain() for place in self.value] if isinstance(self.value, list) else self.value

    def error(self, what: str, how: str) -> Finding:
        """Return a finding here: it fails, does not do what the file says, or lets strangers in."""
        return Finding(self.line, "error", what, how)

    def warning(self, what: str, how: str) -> Finding:
        """Return a warning at this place: the value works, but costs something or is bad practice."""
        return Finding(self.line, "warning", what, how)

    def unknown(self, known: Iterable[str], of: str) -> Iterator[Finding]:
        """Yield a finding for each unknown field, with the nearest known name."""
        known = list(known)
        for key, place in self.fields.items():
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
                lower = {name.lower(): name for name in known}
                nearest = lower.get(key.lower()) or (close[0] if close else None)
                yield place.error(
                    f"{of} has no field {key!r}", f"write {nearest!r}" if nearest else f"use one of {_listed(known)}"
                )


def _listed(names: list[str]) -> str:
    return ", ".join(sorted(names)[:8]) + (", ..." if len(names) > 8 else "")


def load(path: Path) -> bytes:
    """Return a file's bytes.

    Raises:
        UserError: it cannot be read, or is too large.
    """
    if not path.is_file():
        raise errors.no_such_file(path, "cluster file")
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise _not_a_cluster_file(path, None, error.strerror or "it cannot be read") from None
    if len(data) > LARGEST_BYTES:
        raise _not_a_cluster_file(path, None, f"it is larger than {LARGEST_BYTES // 1024} KiB")
    return data


def read(path: Path) -> tuple[list[Place], list[Finding]]:
    """Return the documents of a YAML file, and its errors as YAML.

    Raises:
        UserError: it cannot be read, is too large, no YAML, nests too deeply, or means more than it holds.
    """
    data, reader = load(path), _Reader(path)
    try:
        return reader.documents(data), reader.findings
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        raise _not_a_cluster_file(path, line, f"no YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise _not_a_cluster_file(path, None, f"no YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise _not_a_cluster_file(path, None, "it nests too deeply") from None


class _Reader:
    """Turns nodes into places."""

    def __init__(self, path: Path):
        self.path = path
        self.findings: list[Finding] = []
        self.values = 0
        self.above: list[yaml.Node] = []

    def documents(self, data: bytes) -> list[Place]:
        self.loader = loader = yaml.SafeLoader(data)
        try:
            found: list[Place] = []
            while loader.check_node():
                node = loader.get_node()
                found.append(self.place(node, node.start_mark.line + 1 if node else 1))
            return [place for place in found if place.value is not None]
        finally:
            with contextlib.suppress(Exception):
                loader.dispose()

    def place(self, node: Any, line: int, name: str = "") -> Place:
        self.values += 1
        if node in self.above:
            raise _not_a_cluster_file(self.path, line, "an alias stands inside what it names")
        if self.values > _MOST_VALUES:
            raise _not_a_cluster_file(self.path, line, f"with its aliases it has more than {_MOST_VALUES:,} values")
        if len(self.above) > _DEEPEST:
            raise _not_a_cluster_file(self.path, line, "it nests too deeply")
        self.above.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return Place(self.mapping(node), line, name)
            if isinstance(node, yaml.SequenceNode):
                return Place([self.place(item, item.start_mark.line + 1, name) for item in node.value], line, name)
            return Place(self.scalar(node, line), line, name)
        finally:
            self.above.pop()

    def mapping(self, node: yaml.MappingNode) -> dict[str, Place]:
        merged: dict[str, Place] = {}
        own: dict[str, Place] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE:  # of several, the first counts
                for source in self.merged(value_node, line):
                    merged = {**source, **merged}
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise _not_a_cluster_file(self.path, line, "a key is not text")
            key = str(key_node.value)
            place = self.place(value_node, line, key)
            if key in own:
                self.findings.append(
                    place.error(
                        f"{key!r} occurs twice, also in line {own[key].line}, and the first value is ignored",
                        "keep one of them",
                    )
                )
            own[key] = place
        return {**merged, **own}

    def merged(self, node: yaml.Node, line: int) -> list[dict[str, Place]]:
        places = self.place(node, line)
        return [place.fields for place in (places.items or [places])]

    def scalar(self, node: Any, line: int) -> Any:
        self.values += len(node.value) // 64
        try:
            return self.loader.construct_object(node)
        except yaml.constructor.ConstructorError as error:
            raise _not_a_cluster_file(self.path, line, f"no plain value: {error.problem}") from None
        except (ValueError, OverflowError) as error:
            raise _not_a_cluster_file(self.path, line, f"no value: {error}") from None


def _not_a_cluster_file(path: Path, line: int | None, why: str) -> errors.UserError:
    return errors.UserError(
        f"not a cluster file: {why}",
        f"{path}:{line}" if line else path,
        "give a YAML file for `ray up`, or one of KubeRay's; `raytrain cluster init KIND` writes one",
    )
