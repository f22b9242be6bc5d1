"""Write the reference pages of the site: every command's --help, and the docstrings of every public name."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import os
import re
from pathlib import Path
from unittest import mock

import raytrain
from raytrain import cli
from raytrain.cli.flags.field_help import join_lines

ROOT = Path(__file__).parents[1]

# The packages of raytrain that have a page of their own; all other names are on the page "python".
PAGES = {
    "data": "Data",
    "experiment": "Experiment",
    "hooks": "Hooks",
    "loggers": "Loggers",
    "models": "Models",
    "optim": "Optimizers and schedules",
    "parallel": "Strategies",
    "python": "Python",
    "sweep": "Sweeps",
    "tasks": "Tasks and metrics",
}
NOTE = "This page is generated from the docstrings of the code."
# Sections of a docstring whose entries are `name: text`.
SECTIONS = ("Args", "Attributes", "Raises", "Returns")


def pages() -> dict[str, str]:
    """Return the text of each reference page by its file's name."""
    found: dict[str, list[str]] = {name: [] for name in PAGES}
    for name in sorted(raytrain.__all__, key=str.lower):
        found[_page(getattr(raytrain, name))].append(name)
    texts = {
        f"{page}.md": "\n\n".join([f"# {PAGES[page]}", NOTE, *map(_entry, names)]) + "\n"
        for page, names in found.items()
    }
    return {"commands.md": commands(), **texts}


def _page(value: object) -> str:
    package = [*value.__module__.split("."), ""][1]
    return package if package in PAGES and value is not raytrain.sweep else "python"


def commands() -> str:
    """Return the page of the commands: what `raytrain --help` and each `raytrain COMMAND --help` print."""
    names = re.findall(r"^  ([a-z]+) +[A-Z]", printed("--help"), re.MULTILINE)
    parts = ["# Commands", "This page is generated from `--help`.", _block("raytrain --help", printed("--help"))]
    for name in names:
        parts += [f"## raytrain {name}", _block(f"raytrain {name} --help", printed(name, "--help"))]
    flags = "raytrain train experiments/digits.py --help"
    parts += ["## The flags of an experiment", "Each field is a flag; `--help` after a file lists those of its parts:"]
    return "\n\n".join([*parts, _block(flags, printed(*flags.split()[1:]))]) + "\n"


def printed(*arguments: str) -> str:
    """Return what the command line prints, at a width of 100 columns, from the folder of the project."""
    said = io.StringIO()
    folder = os.getcwd()
    try:
        os.chdir(ROOT)
        with mock.patch.dict(os.environ, COLUMNS="100", NO_COLOR="1"), contextlib.redirect_stdout(said):
            status = cli.run([*arguments])
    finally:
        os.chdir(folder)
    assert status == 0, f"raytrain {' '.join(arguments)} ends with {status}"
    return said.getvalue()


def _block(command: str, text: str) -> str:
    return f"```text\n$ {command}\n\n{text.strip()}\n```"


def _entry(name: str) -> str:
    """Return the section of one public name: its signature, docstring, fields and methods."""
    value = getattr(raytrain, name)
    parts = [f"## {name}", f"```python\n{_signature(name, value)}\n```", markdown(inspect.getdoc(value) or "")]
    if inspect.isclass(value):
        parts.append(_fields(value))
        inherited = {key for base in value.__mro__[1:] for key in vars(base)}  # what is overridden is said there
        own = [(key, member) for key, member in vars(value).items() if key not in inherited]
        parts += [_method(name, key, member) for key, member in own if _documented(key, member)]
    return "\n\n".join(part for part in parts if part)


def _signature(name: str, value: object) -> str:
    """Return a call of a function or a class, as the source has it, folded where it is long."""
    if inspect.isclass(value) and issubclass(value, Exception):
        return f"class {name}"
    arguments: list[str] = []
    for argument in inspect.signature(value).parameters.values():  # type: ignore[arg-type]
        if argument.kind is argument.KEYWORD_ONLY and not any(text.startswith("*") for text in arguments):
            arguments.append("*")
        arguments.append(_argument(argument))
    line = f"{name}({', '.join(arguments)})"
    return line if len(line) <= 88 else f"{name}(\n    " + ",\n    ".join(arguments) + ",\n)"


def _argument(argument: inspect.Parameter) -> str:
    """Return an argument as the source has it; `...` is a default that is made for each call."""
    stars = {argument.VAR_POSITIONAL: "*", argument.VAR_KEYWORD: "**"}.get(argument.kind, "")
    kind = "" if argument.annotation is argument.empty else f": {argument.annotation}"
    default = "..." if "<" in repr(argument.default) else repr(argument.default)
    return f"{stars}{argument.name}{kind}" + ("" if argument.default is argument.empty else f" = {default}")


def _fields(value: type) -> str:
    """Return a list of a dataclass's fields that have a docstring; nothing for another class."""
    if not dataclasses.is_dataclass(value):
        return ""
    join_lines(value)
    helps = {field.name: field.metadata.get("help", "") for field in dataclasses.fields(value)}
    return "\n".join(f"- `{name}`: {escaped(text)}" for name, text in helps.items() if text)


def _documented(key: str, member: object) -> bool:
    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    return not key.startswith("_") and (inspect.isfunction(function)) and bool(inspect.getdoc(function))


def _method(owner: str, key: str, member: object) -> str:
    if isinstance(member, property):
        call = key
    else:
        function = getattr(member, "__func__", member)
        names = [*inspect.signature(function).parameters]  # type: ignore[arg-type]
        call = f"{key}({', '.join(name for name in names if name not in ('self', 'cls'))})"
    return f"### {owner}.{key}\n\n`{call}`\n\n{markdown(inspect.getdoc(member) or '')}"


def markdown(docstring: str) -> str:
    """Turn a docstring with sections such as `Args:` into Markdown."""
    lines, section = [], ""
    for line in docstring.splitlines():
        heading = re.fullmatch(rf"({'|'.join(SECTIONS)}):", line)
        entry = re.fullmatch(r"    ([*\w. ]+): (.*)", line) if section and section != "Returns" else None
        if heading:
            section = heading[1]
            lines += [f"**{section}**", ""]
        elif entry:
            lines.append(f"- `{entry[1]}`: {escaped(entry[2])}")
        elif section and line.startswith("    "):
            lines.append(("  " if section != "Returns" else "") + escaped(line.strip()))
        elif line.startswith("    "):
            lines.append(line)  # code
        else:
            section = section if not line else ""
            lines.append(escaped(re.sub(r"::$", ":", line)))
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Return text in which only code spans are Markdown."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([<*_\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)
