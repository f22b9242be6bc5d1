"""Arguments that are read before tyro parses the flags, and help that is printed without tyro."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path

from raytrain import errors


def wrapped(text: str, before: str = "") -> str:
    """Fold a text to the terminal's width, at most 100 columns.

    Args:
        before: precedes the first line; the other lines are indented by its length.
    """
    width = min(100, shutil.get_terminal_size().columns)
    return textwrap.fill(
        text,
        width,
        initial_indent=before,
        subsequent_indent=" " * len(before),
        break_on_hyphens=False,
        break_long_words=False,
    )


def take(arguments: list[str], *flags: str) -> tuple[list[str], list[str]]:
    """Return the values of some flags, each of which takes one value, and the arguments without them."""
    found, rest, following = [], [], iter(arguments)
    for argument in following:
        flag, equals, text = argument.partition("=")
        if flag in flags:
            found.append(text if equals else next(following, ""))
        else:
            rest.append(argument)
    return found, rest


def without(arguments: list[str], *flags: str) -> list[str]:
    """Return the arguments without some flags and their values."""
    rest, dropped = [], False
    for argument in arguments:
        if argument.startswith("--"):
            dropped = "--" + argument[2:].partition("=")[0].replace("-", "_") in flags
        if not dropped:
            rest.append(argument)
    return rest


def first_argument(arguments: list[str]) -> str | None:
    """Return the first argument unless it is a flag."""
    return arguments[0] if arguments and arguments[0] and not arguments[0].startswith("-") else None


def show_usage(arguments: list[str], usage: str, text: str) -> None:
    """Print the usage of a command that is called with --help alone.

    Raises:
        UserError: the command's first argument is missing.
    """
    if arguments and arguments[0] in ("-h", "--help"):
        print(f"usage: {usage} [--field value ...]\n\n{wrapped(text)}")
        return
    raise errors.bad_flag(f"{usage.rpartition(' ')[2]} must come first", usage.rpartition(" ")[0])


def check_run_first(command: str, path: str, others: Sequence[str]) -> None:
    """Check that the run comes before a command's other paths.

    Raises:
        UserError: it is among them.
    """
    runs = [one for one in others if Path(one, "experiment.json").is_file()]
    if runs and not Path(path, "experiment.json").is_file():
        rest = [path, *(one for one in others if one != runs[0])]
        how = f"write {errors.command(command, runs[0], *rest)}"
        raise errors.UserError("RUN must come first", f"got {path}", how)
