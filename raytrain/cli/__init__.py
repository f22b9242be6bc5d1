"""The command line: find the command, run it, and turn exceptions into a line and an exit status."""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from raytrain import errors
from raytrain.checkpoint import location
from raytrain.cli.flags.arguments import first_argument, wrapped
from raytrain.driver import limits
from raytrain.driver.endings import Interrupted, RunFailed, advice, near
from raytrain.driver.interrupts import asked, status_after, unwinding
from raytrain.driver.session import leave
from raytrain.report import failure
from raytrain.report.output import Refused, guard_standard_streams
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
        print("interrupted", file=sys.stderr)
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
    """Run one command and return its exit status. Exceptions pass through."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0
    if arguments[0] == "--version":
        print(f"raytrain {VERSION}")
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
    return _call(arguments[0], arguments[1:]) or 0


def _call(name: str, arguments: list[str]) -> int | None:
    """Read a command's flags, then import what runs the command, and run it.

    The first module imports neither torch nor Ray, so that help and a mistake are answered at once.
    """
    path = first_argument(arguments)
    if name == "resume" and path is not None and Path(path, "sweep.json").is_file():
        name = "sweep"
    command = _COMMANDS[name]
    flags = importlib.import_module(f"raytrain.cli.flags.{command.module}")
    given = getattr(flags, name)(arguments)
    if given is None:  # it has printed help
        return 0
    return getattr(importlib.import_module(f"raytrain.cli.{command.module}"), name)(*given)


@dataclass(frozen=True)
class _Command:
    """A command of the command line.

    Attributes:
        module: the module of its flags in `raytrain.cli.flags`, and of what runs it in `raytrain.cli`; both have a
            function named as the command.
        purpose: what the command is for, a few words.
        usage: its arguments.
    """

    module: str
    purpose: str
    usage: str


_COMMANDS = {
    "new": _Command("new", "Write an experiment", "FOLDER [--out experiment.py]"),
    "data": _Command("data", "Describe data", "EXPERIMENT|PLACE [--sheet FILE] [--json]"),
    "pack": _Command("pack", "Pack data into shards", "EXPERIMENT|FOLDER DEST [--codec jpeg] [--size N]"),
    "train": _Command("train", "Train an experiment", "EXPERIMENT [--field value ...]"),
    "lr": _Command("tools", "Find a learning rate", "EXPERIMENT|RUN [--field value ...] [--out FILE]"),
    "batch": _Command("tools", "Find a micro-batch", "EXPERIMENT|RUN [--field value ...] [--memory GIB] [--json]"),
    "profile": _Command("profile", "Find the bottleneck", "EXPERIMENT [--steps 20] [--field value ...]"),
    "resume": _Command("train", "Resume a run", "RUN [--epochs N] [--steps N] [--scaling.workers N] [--experiment F]"),
    "sweep": _Command("sweep", "Run a sweep", "SWEEP [--field value ...] [--out runs] [--name N]"),
    "folds": _Command("sweep", "Cross-validate", "EXPERIMENT [--folds 5] [--field value ...] [--out runs] [--name N]"),
    "runs": _Command("runs", "List runs and sweeps", "[DIR] [--sort KEY] [--json]"),
    "report": _Command("report", "Write an HTML report", "RUN ... [--out FILE] [--evaluate] | SWEEP"),
    "evaluate": _Command("tools", "Evaluate a run", "RUN [--data.root DIR] [--json]"),
    "predict": _Command("tools", "Predict images", "RUN PATH ... [--out FILE|FOLDER] [--features]"),
    "export": _Command("tools", "Write the model", "RUN FILE (.pth .safetensors .pt2 .onnx)"),
    "serve": _Command("serve", "Serve a model", "RUN [--port 8000] [--replicas 1] [--address ADDRESS]"),
    "cluster": _Command("cluster", "Start a cluster", "init KIND [--out FILE] | check FILE | up FILE"),
    "submit": _Command("jobs", "Train on a cluster", "EXPERIMENT|SWEEP --address URL [--field value ...] [--no_wait]"),
    "status": _Command("jobs", "Look at jobs", "[JOB] --address URL [--json]"),
    "logs": _Command("jobs", "Read a job's log", "JOB --address URL [--follow]"),
    "stop": _Command("jobs", "Stop a job", "JOB --address URL"),
    "doctor": _Command("doctor", "Check the machines", "[--address ADDR] [--out DIR] [--json]"),
}


def _help() -> str:
    lines = ["usage: raytrain COMMAND ...", "", "Distributed training of PyTorch vision models on Ray.", ""]
    for name, command in _COMMANDS.items():
        unbroken = re.sub(r"\[[^]]*\]|\w+ FILE|--address URL", lambda found: found[0].replace(" ", "\0"), command.usage)
        lines.append(wrapped(unbroken, f"  {name:<9} {command.purpose:<22}  ").replace("\0", " "))
    return "\n".join([*lines, "", wrapped("`raytrain COMMAND --help` says more; --version prints the version.")])
