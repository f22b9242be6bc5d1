"""Flags from dataclass values, read by tyro; every mistake in them is one line."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

import tyro

from raytrain import errors
from raytrain.cli.flags.arguments import take, wrapped
from raytrain.cli.flags.field_help import first_sentence, join_lines
from raytrain.driver.options import Options
from raytrain.experiment import Experiment, with_strategy
from raytrain.parallel import STRATEGIES, Parallel
from raytrain.user_code import hints
from raytrain.user_code.parts import usable

FLAT = tyro.conf.arg(name="")
"""Marks an argument of a command whose own fields are the flags."""
STRATEGY_HELP = (
    f"--parallel.strategy NAME is one of {', '.join(STRATEGIES)}, and decides which other --parallel flags exist."
)


_PROSE = re.compile(r"[^\x1b│╭╰|+ ]")


_KINDS = {"INT": "a whole number", "FLOAT": "a number", "STR": "a text"}
"""What is wanted where tyro's errors name a type, in words."""


AnyOptions = TypeVar("AnyOptions", bound=Options)


RUN = tyro.conf.arg(metavar="RUN", help="The run's directory.")


def take_strategy(value: Experiment, arguments: list[str]) -> tuple[Experiment, list[str]]:
    """Apply `--parallel.strategy NAME`, which decides the fields of `parallel`; return the arguments without it."""
    found, rest = take(arguments, "--parallel.strategy")
    return (with_strategy(value, found[-1]) if found else value), rest


def parse(command: Callable, arguments: list[str], usage: str, description: str | None = None) -> Any:
    """Parse arguments by tyro.

    Raises:
        UserError: tyro's message, in one line.
    """
    said = io.StringIO()
    wants_help = any(argument in ("-h", "--help") for argument in arguments)
    if wants_help:
        roots = [parameter.default for parameter in inspect.signature(command).parameters.values()]
        for kind in {type(part) for part in (*roots, *_parts(command).values()) if dataclasses.is_dataclass(part)}:
            join_lines(kind)
    try:
        with contextlib.redirect_stdout(_Folded(sys.stdout)) if wants_help else _complaints(said):
            parsed, unknown = tyro.cli(
                command,
                args=arguments,
                prog=usage,
                description=description,
                use_underscores=True,
                return_unknown_args=True,
            )
    except SystemExit as leaving:
        if leaving.code in (0, None):
            raise
        plain = _plain(said.getvalue())
        raise errors.bad_flag(_several(plain, command) or plain, usage) from None
    if unknown:
        raise _unknown(unknown, command, usage)
    return parsed


class _Folded:
    """Standard output that folds the description of tyro's help, where each paragraph is one line, and leaves one empty
    line where tyro writes several."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        width = shutil.get_terminal_size().columns
        lines = [wrapped(line) if len(line) > width and _PROSE.match(line) else line for line in text.split("\n")]
        return self._stream.write(re.sub(r"\n(?:[ \t]*\n){2,}", "\n\n", "\n".join(lines)))

    def flush(self) -> None:
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _complaints(said: io.StringIO) -> Iterator[None]:
    """Capture what tyro writes to standard error, in lines of 80 columns: tyro breaks words on a narrow terminal."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        with contextlib.redirect_stderr(said):
            yield
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before


def _unknown(unknown: list[str], command: Callable, usage: str) -> errors.UserError:
    """Return the error for unknown arguments, with a suggestion."""
    parts = _parts(command)
    known = [path for path, default in parts.items() if not dataclasses.is_dataclass(default)]
    flag, equals, value = unknown[0].partition("=")
    path = flag.lstrip("-").replace("-", "_")
    if not flag.startswith("-"):
        return errors.UserError(
            f"unexpected argument {unknown[0]!r}",
            "",
            f"{errors.did_you_mean([f'--{path} {value}'] if equals and path in known else [])}see `{usage} --help`",
        )
    if path in ("resume", "resume_from_checkpoint", "ckpt_path") and "raytrain resume" not in usage:
        return errors.UserError(f"unknown flag {flag}", "", "go on with a run by `raytrain resume RUN`")
    if path == "folds" and usage.startswith("raytrain train"):
        count = value or next(iter(unknown[1:2]), "5")
        how = f"{usage.replace(' train', ' folds', 1)} --folds {count}"
        return errors.UserError(f"unknown flag {flag}", "", f"did you mean `{how}`? It trains all folds")
    if path in parts:
        value = value or next((one for one in unknown[1:2] if not one.startswith("-")), "")
        return _no_value(path, value, parts, usage)
    if path in STRATEGIES:  # `--deterministic` was a flag in 0.1
        return _unknown_flag(flag, [f"--parallel.strategy {path}"], usage)
    field = path.removeprefix("parallel.").removeprefix("no_")
    others = [name for name, strategy in STRATEGIES.items() if hasattr(strategy, field)]
    if path.startswith("parallel.") and others:
        return errors.UserError(
            f"{flag} belongs to another parallel strategy",
            "",
            f"use it with --parallel.strategy {errors.listed(others)}",
        )
    return _unknown_flag(flag, [f"--{one}" for one in hints.flags(flag, known)], usage)


def _no_value(path: str, value: str, parts: dict[str, Any], usage: str) -> errors.UserError:
    """Return the error for a value given to a part of an experiment, as in `--optimizer Adam`. The file chooses the
    class; only the fields of a part have flags."""
    if isinstance(parts[path], tuple):
        how = f"write `{path}=(...,)` in the file; the fields of each have flags, --{path}.0.NAME"
        return errors.UserError(f"--{path} takes no value", "", how)
    kind, base = type(parts[path]), type(parts[path]).__mro__[-2]
    fields = [one for one in parts if one.startswith(f"{path}.")]
    what, flags = f"--{path} takes no value", ", ".join(f"--{one}" for one in fields[:4])
    chooser = f"{path}.strategy" if base is Parallel else f"{path}.name"
    if value and (base is Parallel or chooser in parts):
        return errors.UserError(what, "", f"did you mean --{chooser} {value}? `{usage} --help` lists the flags")
    classes = [one.__name__ for one in usable(base)]
    if len(classes) < 2:
        return errors.UserError(what, "", f"its fields have flags: {flags}")
    chosen = next((one for one in classes if one.lower() == value.lower()), None)
    others = "" if chosen else f" (or {', '.join(classes[1:])}, or a class of your own)"
    has = f"; {kind.__name__}'s fields have flags: {flags}" if fields else ""
    return errors.UserError(
        f"{what}: its class is chosen in the file",
        f"where it is {kind.__name__}",
        f"write `{path}={chosen or classes[0]}(...)` there{others}{has}",
    )


def _parts(command: Callable) -> dict[str, Any]:
    """Return the defaults of a command's flags, and of the dataclasses that hold them, by dotted path."""
    parts: dict[str, Any] = {}

    def visit(path: str, default: Any) -> None:
        if path:
            parts[path] = default
        if dataclasses.is_dataclass(default):
            for field in dataclasses.fields(default):
                visit(f"{path}.{field.name}".lstrip("."), getattr(default, field.name))
        for number, one in enumerate(default if isinstance(default, tuple) else ()):
            if dataclasses.is_dataclass(one):
                visit(f"{path}.{number}", one)

    types = get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        flat = FLAT in _marks(types, name)
        visit("" if flat else name, parameter.default)
    return parts


def _plain(text: str) -> str:
    """Return the sentence inside tyro's error box, which stands between a title and a rule."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip().strip("│").strip() for line in text.splitlines()]
    is_rule = [set(line) <= set("─-╰╯") for line in lines]
    first = 2 if is_rule[1:2] == [True] else 1
    body = lines[first : is_rule.index(True, first) if True in is_rule[first:] else None]
    if body and body[0].startswith("Missing from"):
        return f"{' and '.join(line for line in body[1:] if line.isupper()) or 'an argument'} must be given"
    said = " ".join(body) or "the arguments cannot be read"
    said = re.sub(r"Missing value for argument '(\S+)'\. Expected 1 values?\.?", r"\1 needs a value", said)
    choice = r"invalid choice '(.*)' for argument '(\S+)'\. Expected one of \((.*?),?\)"
    said = re.sub(choice, r"\2 must be one of \3, got '\1'", said)
    said = re.sub(r"(must be one of .*?)(?:, 'None'|'None', )", r"\1", said)  # nobody means the flag's own default
    for kind, reason in (
        ("INT", "invalid literal for int() with base 10:"),
        ("FLOAT", "could not convert string to float:"),
    ):
        said = re.sub(rf"Error parsing (\S+): {re.escape(reason)} (.*)", rf"\1 must be {_KINDS[kind]}, got \2", said)
    several = re.match(r"Error parsing (\S+): no type matching (\S+) could be instantiated from \[(.*?)\]\.", said)
    if several:
        kinds = several[2].replace("{", "").replace("}", "").replace("INT|FLOAT", "FLOAT").split("|")
        said = f"{several[1]} must be {' or '.join(_KINDS.get(kind, kind) for kind in kinds)}, got {several[3]}"
    return said


def _several(plain: str, command: Callable) -> str | None:
    """Return what to say of a flag whose several values do not fit its type; None for another error."""
    failed = re.match(r"Error parsing --(\S+): Could not find valid parse for arguments: \[(.*)\]", plain)
    if failed is None:
        return None
    parts, (path, name) = _parts(command), failed[1].rpartition(".")[::2]
    types = get_type_hints(command, include_extras=True)
    flat = [one.default for one in inspect.signature(command).parameters.values() if FLAT in _marks(types, one.name)]
    owner = next((type(one) for one in ([parts.get(path)] if path else flat) if hasattr(one, name)), None)
    each = get_args(get_type_hints(owner)[name])[:1] if owner else ()
    words = [_KINDS.get(one.__name__.upper(), "a value") for one in get_args(each[0]) or each] if each else []
    if owner is None or not words:
        return None
    got = errors.listed(re.findall(r"'([^']*)'", failed[2]), 4)
    wanted = f"takes pairs of {' and '.join(words)}" if len(words) > 1 else f"takes values that are {words[0]} each"
    about = first_sentence(owner, name)
    return f"--{failed[1]} {wanted}, got {got}" + (f" ({about[:1].lower()}{about[1:]})" if about else "")


def _marks(types: dict[str, Any], name: str) -> Sequence[Any]:
    return getattr(types.get(name), "__metadata__", ())


def describe(source: Path | None) -> str:
    """Return the docstring of an experiment file, or its name."""
    if source is None:
        return "The experiment of a run."
    with contextlib.suppress(OSError, SyntaxError):
        if said := ast.get_docstring(ast.parse(source.read_text())):
            return said
    return f"The experiment of {source.name}."


def _unknown_flag(flag: str, meant: Sequence[str], usage: str) -> errors.UserError:
    return errors.UserError(f"unknown flag {flag}", "", f"{errors.did_you_mean(meant)}`{usage} --help` lists the flags")
