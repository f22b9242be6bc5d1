"""The arguments of the command completion."""

from __future__ import annotations

from raytrain import errors
from raytrain.cli.flags.arguments import wrapped

SHELLS = ("bash", "zsh", "fish")


def completion(arguments: list[str]) -> tuple[str, list[str]] | None:
    """Return the shell to write a script for, or `flags` with the words that stand before a flag: such a script calls
    `raytrain completion flags COMMAND [WORD]` to learn the flags of a command."""
    usage = "raytrain completion"
    if arguments and arguments[0] in ("-h", "--help"):
        text = (
            "Prints a script that completes commands, files of experiments, runs, and the flags of a command with its "
            "experiment or run. For them, the experiment's file is loaded. bash: put `eval \"$(raytrain completion "
            'bash)"` into ~/.bashrc; zsh: the same with zsh into ~/.zshrc, after compinit; fish: `raytrain completion '
            "fish > ~/.config/fish/completions/raytrain.fish`."
        )
        print(f"usage: {usage} {'|'.join(SHELLS)}\n\n{wrapped(text)}")
        return None
    if not arguments:
        raise errors.bad_flag("bash, zsh or fish must come first", usage)
    if arguments[0] not in (*SHELLS, "flags"):
        raise errors.bad_flag(f"there is no script for {arguments[0]!r}: bash, zsh or fish must come first", usage)
    if arguments[0] != "flags" and arguments[1:]:
        raise errors.bad_flag(f"unexpected argument {arguments[1]!r}", usage)
    return arguments[0], arguments[1:]
