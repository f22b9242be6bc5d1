"""Lines that fit the terminal. Words are never broken, so that paths and commands can be copied."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

_NEXT = "next:  "


def spinner(console: Console) -> str:
    """Return the name of the spinner of rich whose characters a terminal has."""
    return "line" if console.options.ascii_only else "dots"


def columns(console: Console) -> int | None:
    """Return the columns that a line may take: the terminal's, or COLUMNS; None for a file or a pipe, whose lines may
    have any length."""
    return console.width if console.is_terminal or os.environ.get("COLUMNS", "").isdigit() else None


def folded(before: str, text: str, width: int | None) -> list[str]:
    """Break `before` and a text at spaces into lines of at most `width` columns, of which all but the first are
    indented by the width of `before`; None gives a single line.

    A word that has no room behind the indentation, such as a path, has a line of its own that is not indented.
    """
    return [before + text] if width is None else _folded(before, re.findall(r"(\s*)(\S+)", text), width, "")


def folded_command(before: str, words: Sequence[str], width: int | None) -> list[str]:
    """Return `before` and a shell command as one line, or as lines that the shell takes for one."""
    line = before + shlex.join(words)
    if width is None or cell_len(line) <= width:
        return [line]
    return _folded(before, [(" ", shlex.quote(word)) for word in words], width, " \\")


def _folded(before: str, words: Sequence[tuple[str, str]], width: int, end: str) -> list[str]:
    """Fold words, each with the gap before it; `end` follows all lines but the last."""
    indent, room = " " * cell_len(before), width - len(end)
    lines, line = [], before
    for gap, word in words:
        longer = line + word if line in (before, indent) else line + gap + word
        if cell_len(longer) <= room:
            line = longer
            continue
        if line.strip():
            lines.append((line + end) if line != before else line.rstrip())
        line = indent + word if cell_len(indent + word) <= room else word
    return [*lines, line]


def show(console: Console, before: str, text: str, style: str = "", before_style: str = "bold") -> None:
    """Print `before` and a text, folded; each has a style."""
    first, *others = folded(before, text, columns(console))
    head = first[: len(before)]
    console.print(Text.assemble((head, before_style), (first[len(head) :], style)))
    for line in others:
        console.print(Text(line, style=style))


def show_command(console: Console, before: str, words: Sequence[str]) -> None:
    """Print a shell command."""
    for line in folded_command(before, words, columns(console)):
        console.print(Text(line))


def show_next(console: Console, commands: Iterable[Sequence[str]]) -> None:
    """Print the commands that may follow."""
    for place, words in enumerate(commands):
        show_command(console, " " * len(_NEXT) if place else _NEXT, words)


def show_facts(console: Console, title: str, facts: Sequence[tuple[str, str]]) -> None:
    """Print a title, and below it names with their values."""
    show(console, "", title, "bold")
    width = columns(console)
    longest = max((cell_len(name) for name, _ in facts), default=0)
    if width is not None:
        longest = min(longest, width // 2)
    for name, value in facts:
        if cell_len(name) > longest:
            show(console, "  ", name)
            name = ""
        show(console, f"  {set_cell_size(name, longest)}  ", value, before_style="")


def joined(parts: Sequence[tuple[int, str]], width: int | None) -> str:
    """Return the parts, two spaces apart, without those of the lowest rank that have no room.

    Args:
        parts: rank and text of each.
    """
    left = [part for part in parts if part[1]]
    while width is not None and len(left) > 1 and cell_len("  ".join(text for _, text in left)) > width:
        left.remove(min(left))
    return "  ".join(text for _, text in left)


def cell(text: str, width: int, left: bool = False) -> str:
    """Return a text cut or padded to a number of columns."""
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…"
    gap = " " * (width - cell_len(text))
    return text + gap if left else gap + text
