"""The command completion: scripts for shells, made from the table of commands, and the flags that they ask for.

The scripts know the commands and what their first argument is. They ask `raytrain completion flags` for flags, since
these depend on the experiment; the answer is taken from the help that the command would print.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex

from raytrain.cli.commands import COMMANDS, Command, read
from raytrain.report.output import aside

_FILES = ("EXPERIMENT", "SWEEP")
_FOLDERS = ("RUN", "SWEEP", "FOLDER", "DIR")


def completion(shell: str, words: list[str]) -> None:
    """Print the script of a shell, or the flags that may follow `raytrain WORDS`."""
    if shell == "flags":
        print("\n".join(_flags(words)))
    else:
        print({"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](), end="")


def _first(command: Command) -> list[str]:
    """Return what the first argument may be: kinds of places in capitals, and words to type."""
    return [one for start in _starts(command) for one in start.split("|") if not start.startswith("-")]


def _starts(command: Command) -> list[str]:
    """Return the first word of each way to use a command."""
    return [way.removeprefix("[").split()[0].rstrip("]") for way in command.usage.split(" | ")]


def _taking(kinds: tuple[str, ...]) -> list[str]:
    """Return the commands whose first argument may be one of some kinds of places."""
    return [name for name, command in COMMANDS.items() if set(_first(command)) & set(kinds)]


def _words() -> dict[str, list[str]]:
    """Return the words that may follow a command, of those that take some."""
    found = {name: [one for one in _first(command) if one.islower()] for name, command in COMMANDS.items()}
    return {name: words for name, words in found.items() if words}


def _flags(words: list[str]) -> list[str]:
    """Return the flags that may follow a command and its first argument.

    Raises:
        UserError: that is no experiment or run.
    """
    if not words or words[0] not in COMMANDS:
        return []
    name, argument = words[0], [_meant(word) for word in words[1:2] if not word.startswith("-")]
    if not argument and set(_first(COMMANDS[name])) & {*_FILES, "RUN", "FOLDER"}:
        return [*(one for one in _starts(COMMANDS[name]) if one.startswith("-") and words[1:2] != [one]), "--help"]
    said, columns = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        with aside(), contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            read(name, [*argument, "--help"])
    finally:
        del os.environ["COLUMNS"]
        if columns is not None:
            os.environ["COLUMNS"] = columns
    heads = re.findall(r"^[│| ]{0,2}((?:--[\w.]+(?:, )?)+)", said.getvalue(), re.MULTILINE)
    usage = re.findall(r"--[\w.]+", COMMANDS[name].usage)
    known = [flag for text in (*heads, *usage) for flag in re.findall(r"--[\w.]+", text) if flag != "--field"]
    return [*dict.fromkeys([*known, "--help"])]


def _meant(word: str) -> str:
    """Return the place that a word names: bash and zsh give it as it was typed, with quotes, backslashes and ~."""
    if os.path.exists(word):
        return word
    try:
        parts = shlex.split(word)
    except ValueError:  # an open quote
        return word
    return os.path.expandvars(os.path.expanduser(parts[0])) if len(parts) == 1 else word


def _bash() -> str:
    words = "".join(
        f'            {name}) COMPREPLY=($(compgen -W "{" ".join(ones)}" -- "$word")) ;;\n'
        for name, ones in _words().items()
    )
    return f"""# bash completion of raytrain, written by `raytrain completion bash`
_raytrain() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} command=${{COMP_WORDS[1]}} IFS=$' \\t\\n'
    local first=${{COMP_WORDS[2]}} next=3
    COMPREPLY=()
    while ((next < COMP_CWORD)) && [[ $first == *[:=] || ${{COMP_WORDS[next]}} == [:=]* ]]; do
        first+=${{COMP_WORDS[next++]}}  # bash breaks words at these: a URL is one
    done
    if ((COMP_CWORD == 1)); then
        COMPREPLY=($(compgen -W "{" ".join(COMMANDS)} --help --version" -- "$word"))
    elif [[ $word == -* ]]; then
        COMPREPLY=($(compgen -W "$("$1" completion flags "$command" "$first" 2>/dev/null)" -- "$word"))
    elif ((COMP_CWORD == 2)); then
        case $command in
{words}        esac
        case $command in
            {"|".join(_taking(_FILES))})
                IFS=$'\\n'
                COMPREPLY+=($(compgen -f -X '!*.py' -- "$word"; compgen -f -X '!*.json' -- "$word"))
                COMPREPLY+=($(compgen -d -- "$word")) ;;
            {"|".join(name for name in _taking(_FOLDERS) if name not in _taking(_FILES))})
                IFS=$'\\n'
                COMPREPLY+=($(compgen -d -- "$word")) ;;
        esac
        compopt -o filenames 2>/dev/null
    fi
}}
complete -o default -F _raytrain raytrain
"""


def _zsh() -> str:
    commands = "".join(f'        "{name}:{command.purpose}"\n' for name, command in COMMANDS.items())
    words = "".join(f"            {name}) compadd -- {' '.join(ones)} ;;\n" for name, ones in _words().items())
    return f"""#compdef raytrain
# zsh completion of raytrain, written by `raytrain completion zsh`
_raytrain() {{
    local -a commands flags
    commands=(
{commands}    )
    if ((CURRENT == 2)) && [[ $words[2] == -* ]]; then
        compadd -- --help --version
    elif ((CURRENT == 2)); then
        _describe command commands
    elif [[ $words[CURRENT] == -* ]]; then
        flags=(${{(f)"$($words[1] completion flags $words[2] $words[3] 2>/dev/null)"}})
        compadd -a flags
    elif ((CURRENT == 3)); then
        case $words[2] in
{words}            {"|".join(_taking(_FILES))}) _files -g '*.(py|json)' ;;
            {"|".join(name for name in _taking(_FOLDERS) if name not in _taking(_FILES))}) _files -/ ;;
        esac
    else
        _files
    fi
}}
if [[ $funcstack[1] == _raytrain ]]; then
    _raytrain "$@"
else
    compdef _raytrain raytrain
fi
"""


def _fish() -> str:
    second = "test (count (commandline -opc)) -eq 2; and __fish_seen_subcommand_from"
    lines = [
        "# fish completion of raytrain, written by `raytrain completion fish`",
        "function __raytrain_flags",
        "    set -l words (commandline -opc)",
        "    $words[1] completion flags $words[2..3] 2>/dev/null",
        "end",
        "complete -c raytrain -n __fish_use_subcommand -f -l help -l version",
        *(
            f'complete -c raytrain -n __fish_use_subcommand -f -a {name} -d "{command.purpose}"'
            for name, command in COMMANDS.items()
        ),
        *(f"complete -c raytrain -n '{second} {name}' -f -a '{' '.join(ones)}'" for name, ones in _words().items()),
        f"complete -c raytrain -n '{second} {' '.join(_taking(_FILES))}' -k -f -a '(__fish_complete_suffix .py)'",
        f"complete -c raytrain -n '{second} {' '.join(_taking(_FOLDERS))}' -f -a '(__fish_complete_directories)'",
        "complete -c raytrain -n 'not __fish_use_subcommand; and string match -q -- \"-*\" (commandline -ct)' "
        "-f -a '(__raytrain_flags)'",
    ]
    return "\n".join(lines) + "\n"
