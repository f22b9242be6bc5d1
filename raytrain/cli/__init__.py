"""The command line: find the command, run it, and turn exceptions into a line and an exit status."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable

from raytrain import __version__, errors
from raytrain.checkpoint import location
from raytrain.cli.cluster import cluster_command
from raytrain.cli.doctor import doctor_command
from raytrain.cli.jobs import logs_command, status_command, stop_command, submit_command
from raytrain.cli.parsing import wrapped
from raytrain.cli.sweep import report_command, sweep_command
from raytrain.cli.tools import batch_command, evaluate_command, export_command, lr_command, predict_command
from raytrain.cli.train import resume_command, train_command
from raytrain.driver import limits
from raytrain.driver.fit import Interrupted, RunFailed, advice, near
from raytrain.driver.interrupts import asked, status_after, unwinding
from raytrain.driver.session import leave
from raytrain.report.output import Refused, guard_standard_streams


def main() -> None:
    """The `raytrain` command; ends the process with 0, 1 (a run failed), 2 (a mistake) or 128 + a signal."""
    guard_standard_streams()
    leave(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit status; the one place where an exception becomes a line and a status."""
    try:
        with unwinding():
            return status_after(_answer(arguments))
    except BaseException as error:
        number = asked(error)
        if not number:
            raise
        print("interrupted", file=sys.stderr)
        return status_after(128 + number)


def _answer(arguments: list[str]) -> int:
    """Run one command and return its exit status; what a signal made of it is the caller's."""
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
        logs = f"the logs are in {error.run / 'logs'}"
        print(
            f"error: the {what} failed: {errors.one_line(str(error))}; {logs}, {_after(what, error)}", file=sys.stderr
        )
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
        from raytrain.report import failure

        print(failure.line(error, "--verbose" in arguments), file=sys.stderr)
        return 1


def _after(what: str, failed: RunFailed) -> str:
    """Return what to do after a run or a sweep has failed."""
    where = location.url_of(failed.run) or failed.run
    if what == "sweep" and failed.edit:
        return f"correct {near(failed.edit)} and start a new sweep"
    if what == "sweep":
        return f"go on with `raytrain sweep {where}`"
    if failed.edit:
        return f"correct {near(failed.edit)}, then {advice(failed.run)}"
    return f"go on with `raytrain resume {where}`"


def _command(arguments: list[str]) -> int:
    """Run one command; what it raises is the caller's."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0
    if arguments[0] == "--version":
        print(f"raytrain {__version__}")
        return 0
    if arguments[0] not in _COMMANDS:
        raise errors.unknown_command(arguments[0], list(_COMMANDS))
    try:
        os.getcwd()
    except OSError as error:
        raise errors.UserError(
            f"there is no working directory: {error.strerror}", "", "change to a folder that exists (`cd`)"
        ) from None
    limits.settle_home()
    return _COMMANDS[arguments[0]](arguments[1:]) or 0


_COMMANDS: dict[str, Callable[[list[str]], int | None]] = {
    "train": train_command,
    "lr": lr_command,
    "batch": batch_command,
    "resume": resume_command,
    "sweep": sweep_command,
    "report": report_command,
    "evaluate": evaluate_command,
    "predict": predict_command,
    "export": export_command,
    "cluster": cluster_command,
    "submit": submit_command,
    "status": status_command,
    "logs": logs_command,
    "stop": stop_command,
    "doctor": doctor_command,
}


def _help() -> str:
    lines = ["usage: raytrain COMMAND ...", "", "Distributed training of PyTorch vision models on Ray.", ""]
    for name, command in _COMMANDS.items():
        what, _, usage = str(command.__doc__).partition(": ")
        lines.append(wrapped(usage.removeprefix(f"raytrain {name} "), f"  {name:<9} {what:<22}  "))
    return "\n".join([*lines, "", wrapped("`raytrain COMMAND --help` says more; --version prints the version.")])
