"""The command line: find the command, run it, and turn exceptions into a line and an exit status."""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys

from raytrain import errors
from raytrain.checkpoint import location
from raytrain.cli.commands import COMMANDS, read
from raytrain.cli.flags.arguments import wrapped
from raytrain.driver import limits
from raytrain.driver.endings import Interrupted, RunFailed, advice, near, way_on
from raytrain.driver.interrupts import asked, left, status_after, unwinding
from raytrain.driver.session import leave
from raytrain.report import failure
from raytrain.report.output import Refused, aside_where, guard_standard_streams
from raytrain.run.version import VERSION


def main() -> None:
    """The `raytrain` command; ends the process with 0, 1 (a run failed), 2 (a mistake) or 128 + a signal."""
    guard_standard_streams()
    leave(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit status. Only here do signals become exit statuses."""
    try:
        with unwinding():
            return status_after(_answer(arguments))
    except BaseException as error:
        number = asked(error)
        if not number:
            raise
        print(f"interrupted; {way_on(path)}" if (path := left()) else "interrupted", file=sys.stderr)
        return status_after(128 + number)


def _answer(arguments: list[str]) -> int:
    """Run one command and turn its exceptions into a line and an exit status; raise those that a signal caused."""
    try:
        status = _command(arguments)
        sys.stdout.flush()
        return status
    except errors.UserError as error:
        if asked(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RunFailed as error:
        what = "sweep" if (error.run / "sweep.json").is_file() else "run"
        there = os.path.isdir(error.run)  # else the error says so
        rest = f"; the logs are in {error.run / 'logs'}, {_after(what, error)}" if there else ""
        print(f"error: the {what} failed: {errors.one_line(str(error))}{rest}", file=sys.stderr)
        return 1
    except Interrupted as interrupted:
        return 128 + (interrupted.signal or 2)
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(f"error: {errors.one_line(str(leaving.code))}", file=sys.stderr)
        return 1
    except Refused as error:
        if error.errno == errno.EPIPE:
            return 141
        print(f"error: standard output cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    except Exception as error:
        if asked(error):
            raise
        print(failure.line(error, "--verbose" in arguments), file=sys.stderr)
        return 1


def _after(what: str, failed: RunFailed) -> str:
    """Return what to do after a run or a sweep has failed."""
    where = location.url_of(failed.run) or failed.run
    if failed.how:
        return failed.how
    if what == "sweep" and failed.edit:
        return f"correct {near(failed.edit)} and start a new sweep"
    if what == "sweep":
        return f"go on with {errors.command('sweep', where)}"
    if failed.edit:
        return f"correct {near(failed.edit)}, then {advice(failed.run)}"
    return f"go on with {errors.command('resume', where)}"


def _command(arguments: list[str]) -> int:
    """Run one command and return its exit status. Exceptions pass through."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0
    if arguments[0] == "--version":
        print(f"raytrain {VERSION}")
        return 0
    if arguments[0] not in COMMANDS:
        raise errors.unknown_command(arguments[0], list(COMMANDS))
    try:
        os.getcwd()
    except OSError as error:
        raise errors.UserError(
            f"there is no working directory: {error.strerror}", "", "change to a folder that exists (`cd`)"
        ) from None
    limits.settle_home()
    return _call(arguments[0], arguments[1:]) or 0


def _call(name: str, arguments: list[str]) -> int | None:
    """Read a command's flags, then import what runs the command, and run it."""
    machine_reads = "--json" in arguments and not {"-h", "--help"} & set(arguments)
    with aside_where(machine_reads):  # experiment files may print while they are loaded
        name, given = read(name, arguments)
    if given is None:  # it has printed help
        return 0
    return getattr(importlib.import_module(f"raytrain.cli.{COMMANDS[name].module}"), name)(*given)


def _help() -> str:
    lines = ["usage: raytrain COMMAND ...", "", "Distributed training of PyTorch vision models on Ray.", ""]
    for name, command in COMMANDS.items():
        unbroken = re.sub(r"\[[^]]*\]|\w+ FILE|--address URL", lambda found: found[0].replace(" ", "\0"), command.usage)
        lines.append(wrapped(unbroken, f"  {name:<10} {command.purpose:<22}  ").replace("\0", " "))
    return "\n".join([*lines, "", wrapped("`raytrain COMMAND --help` says more; --version prints the version.")])
