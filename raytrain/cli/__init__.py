"""The command line: a foyer. Parse, call, print."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import inspect
import io
import json
import os
import re
import shlex
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tyro

from raytrain import __version__, errors
from raytrain.checkpoint import location
from raytrain.driver import limits
from raytrain.driver.fit import Interrupted, Options, RunFailed, advice, near, resume, train
from raytrain.driver.interrupts import asked, status_after, unwinding
from raytrain.driver.observe import watched
from raytrain.driver.resumption import Correction
from raytrain.driver.session import leave
from raytrain.experiment import Experiment, with_strategy
from raytrain.experiment_file import load
from raytrain.loggers import Logger
from raytrain.optim.schedules import Rising
from raytrain.parallel import STRATEGIES, Parallel
from raytrain.report.output import Refused, guard_standard_streams
from raytrain.run.run import Run
from raytrain.sweep import Scheduler, Search, Sweep
from raytrain.tools.batch_size import Search as Trying
from raytrain.user_code import hints

if TYPE_CHECKING:
    from raytrain.cluster import Finding
    from raytrain.jobs.dashboard import Dashboard

_FLAT = tyro.conf.arg(name="")
_STRATEGIES = (
    f"--parallel.strategy NAME is one of {', '.join(STRATEGIES)}, and decides which other --parallel flags there are."
)
_PROSE = re.compile(r"[^\x1b│╭╰|+ ]")
_NO_FLOAT = ("could not convert string to float:", "a number")
_O = TypeVar("_O", bound=Options)
_JOB = tyro.conf.arg(metavar="JOB", help="The job's id, which `submit` prints.")
_RUN = tyro.conf.arg(metavar="RUN", help="The run's directory.")


@dataclass(frozen=True)
class Resume:
    """How a resumed run goes on."""

    experiment: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """The corrected experiment file, to go on with it and the modules that it imports in place of the run's copies.
    The values stay the run's; the model's parameters must have the names, shapes and order that they had."""
    address: str | None = None
    """Address of a running Ray cluster, or `auto`; by default RAY_ADDRESS, or else this machine alone."""
    dry_run: bool = False
    """Print the plan and stop."""
    verbose: bool = False
    """Show Ray's own messages and the workers' output."""


@dataclass(frozen=True)
class Submit(Options):
    """How a job is sent to a cluster, and where its run is kept."""

    out: str = ""
    """Folder that all nodes share, or a URL, in which the run's directory is made."""
    address: str | None = None
    """URL of the cluster's dashboard, such as http://HOST:8265; by default RAY_API_SERVER_ADDRESS or RAY_ADDRESS."""
    wait: bool = True
    """Follow the job to its end; --no_wait prints its id and returns."""


@dataclass(frozen=True)
class OtherData:
    """What to evaluate on."""

    root: str | None = None
    """Other data of the same classes, in the layout of the run's."""


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


def _train(arguments: list[str]) -> None:
    """Train an experiment: raytrain train EXPERIMENT [--field value ...]"""
    usage, path = "raytrain train EXPERIMENT", _first(arguments)
    if path is None:
        return _show_usage(
            arguments,
            usage,
            "Trains the experiment of a Python file, or of a run's experiment.json. "
            "`raytrain train EXPERIMENT --help` lists that experiment's fields.",
        )
    value, options, source = _training(arguments, "train", Options())
    with watched(_console(), value.loggers) as observer:
        train(value, options, observer, source, _command_started())


def _training(arguments: list[str], command: str, default: _O) -> tuple[Experiment, _O, Path | None]:
    """Reads the experiment that comes first, and its flags: what to train, how, and the file that it came from."""
    path = arguments[0]
    value, source = load(path)
    value, arguments = _strategy(value, arguments)

    def parsed(
        experiment: Annotated[Experiment, _FLAT] = value, options: Annotated[Options, _FLAT] = default
    ) -> tuple[Experiment, Options]:
        return experiment, options

    parsed.__annotations__["options"] = Annotated[type(default), _FLAT]
    about = f"{_describe(source)}\n\n{_STRATEGIES}"
    value, options = _parse(parsed, arguments[1:], f"raytrain {command} {path}", about)
    return value, options, source


def _lr(arguments: list[str]) -> None:
    """Find a learning rate: raytrain lr EXPERIMENT|RUN [--field value ...] [--out FILE]"""
    usage, path = "raytrain lr EXPERIMENT", _first(arguments)
    if path is None:
        return _show_usage(
            arguments,
            usage,
            "Trains an experiment, or that of a run, for some steps (--steps 100) with a learning rate that rises from "
            "--low 1e-07 to --high 10, and suggests the one at which the loss falls fastest. --out lr.png keeps a plot "
            "of the losses, and their figures in lr.csv; of a run, both are kept in its directory. It begins with the "
            "weights that `raytrain train` begins with.",
        )
    value, source = load(path)
    _, given = _take(arguments[1:], "--steps", "--low", "--high", "--out", "--optimizer.lr")
    value, arguments = _strategy(value, arguments)

    def command(
        experiment: Annotated[Experiment, _FLAT] = value,
        options: Annotated[Rising, _FLAT] = Rising(),
        out: str | None = None,
    ) -> tuple[Experiment, Rising, str | None]:
        """Finds a learning rate.

        Args:
            out: The plot: a .png, .svg or .pdf file. Its figures go into a .csv file of the same name. By default
                lr.png in the directory of a run, and none of an experiment.
        """
        return experiment, options, out

    value, rising, out = _parse(command, arguments[1:], f"raytrain lr {path}", _describe(source))
    from raytrain.report import lr
    from raytrain.tools import inference

    file = Path(out) if out else Path(path, "lr.png") if Path(path).is_dir() else None
    if file:
        inference.check_output(file, lr.PLOTS)
        inference.check_output(file.with_suffix(".csv"), (".csv",))
    from raytrain.tools import lr_range

    with watched(lr.Bar(rising.steps)) as observer:
        curve = lr_range.find(value, rising, observer)
    if file:
        lr.write(curve, Path(path), file)
    lr.show(curve, file, ["raytrain", "train", path, *given], value.lr / value.optimizer.lr)


def _batch(arguments: list[str]) -> None:
    """Find a micro-batch: raytrain batch EXPERIMENT|RUN [--field value ...] [--memory GIB] [--json]"""
    usage, path = "raytrain batch EXPERIMENT", _first(arguments)
    if path is None:
        return _show_usage(
            arguments,
            usage,
            "Tries micro-batches of an experiment, or of that of a run, on this machine, in each precision: which "
            "is the largest that fits into a worker's memory (--memory GIB), and which the fastest. The global "
            "batch_size stays, and with it what is learnt: gradients accumulate to it. Trials run in processes of "
            "their own; where one dies, its size does not fit.",
        )
    value, source = load(path)
    given = _without(
        arguments[1:], "--precisions", "--memory", "--json", "--no_json", "--micro_batch_size", "--precision"
    )
    value, arguments = _strategy(value, arguments)

    def command(
        experiment: Annotated[Experiment, _FLAT] = value,
        options: Annotated[Trying, _FLAT] = Trying(),
        json: bool = False,
    ) -> tuple[Experiment, Trying, bool]:
        """Finds a micro-batch.

        Args:
            json: Print one JSON object.
        """
        return experiment, options, json

    value, search, as_json = _parse(command, arguments[1:], f"raytrain batch {path}", _describe(source))
    from raytrain.report import batch
    from raytrain.tools import batch_size

    with watched(Logger() if as_json else batch.Spinner()) as observer:
        found = batch_size.find(value, search, source, observer)
    following = ["raytrain", "train", path, *given]
    if as_json:
        print(batch.to_json(found, value, following))
    else:
        batch.show(found, value, following)


def _sweep(arguments: list[str]) -> None:
    """Run a sweep: raytrain sweep SWEEP [--field value ...] [--out runs] [--name N]"""
    usage, path = "raytrain sweep SWEEP", _first(arguments)
    if path is None:
        return _show_usage(
            arguments,
            usage,
            "Runs the sweep of a Python file (`sweep = Sweep(...)`), or goes on with that of a sweep's directory. "
            "`raytrain sweep SWEEP --help` lists its fields, and those of its experiment.",
        )
    wanted, options, source = _sweeping(arguments, "sweep", Options())
    from raytrain.report.sweep import Table
    from raytrain.sweep import driver

    with watched(Table()) as observer:
        if Path(path).is_dir():
            driver.resume(Path(path), wanted, options, observer, _command_started())
        else:
            driver.sweep(wanted, options, observer, source, _command_started())


def _sweeping(arguments: list[str], command: str, default: _O) -> tuple[Sweep, _O, Path | None]:
    """Reads the sweep that comes first, and its flags."""
    from raytrain.sweep import sweep as sweeps

    path = arguments[0]
    value, source = sweeps.load(path)
    for axis in value.axes:
        if _take(arguments[1:], f"--{axis.path}")[0]:
            raise errors.flag_of_an_axis(axis.path)
    base, arguments = _strategy(value.experiment, arguments)

    def parsed(
        experiment: Annotated[Experiment, _FLAT] = base,
        options: Annotated[Options, _FLAT] = default,
        objective: tuple[str, ...] = tuple(objective.name for objective in value.objectives),
        search: Search = value.search,
        scheduler: Scheduler = value.scheduler,
        trials: int | None = value.trials,
        budget_seconds: float | None = value.budget_seconds,
        concurrent: int | None = value.concurrent,
        memory_gib: float | None = value.memory_gib,
        timeout_seconds: float = value.timeout_seconds,
        retries: int = value.retries,
        keep: int = value.keep,
    ) -> tuple[dict[str, Any], Options]:
        """Runs a sweep.

        Args:
            objective: What to look for: one name, or two for a Pareto front.
            search: What to try next.
            scheduler: Which trials end early, or change on the way.
            trials: How many; None tries every combination of Grid axes once.
            budget_seconds: Seconds after which the sweep ends.
            concurrent: Trials at once; None takes as many as fit.
            memory_gib: Memory that a trial may take.
            timeout_seconds: Seconds without a finished step after which a trial is stuck.
            retries: How often a trial goes on after its process died or was stuck.
            keep: The best so many trials keep their weights.
        """
        given = {name: found for name, found in locals().items() if name in sweeps.FLAGS}
        if tuple(objective) == tuple(o.name for o in value.objectives):
            given["objective"] = value.objective
        return given, options

    parsed.__annotations__["options"] = Annotated[type(default), _FLAT]
    about = f"{_describe(source)}\n\n{_STRATEGIES}"
    given, options = _parse(parsed, arguments[1:], f"raytrain {command} {path}", about)
    return dataclasses.replace(value, **given), options, source


def _report(arguments: list[str]) -> None:
    """Show a sweep again: raytrain report SWEEP"""

    def command(sweep: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="SWEEP")]]) -> str:
        """Prints a sweep's table, and writes its trials.csv and plots again.

        Args:
            sweep: The sweep's directory.
        """
        return sweep

    path = _parse(command, arguments, "raytrain report")
    from raytrain.report import sweep

    sweep.report(Path(path))


def _resume(arguments: list[str]) -> None:
    """Go on with a run: raytrain resume RUN [--epochs N] [--scaling.workers N] [--experiment FILE]"""
    usage, path = "raytrain resume RUN", _first(arguments)
    if path is None:
        return _show_usage(
            arguments,
            usage,
            "Goes on with a run from its newest checkpoint, also on another number of "
            "workers, and with --experiment FILE with code that was corrected after an error. "
            "`raytrain resume RUN --help` lists the fields.",
        )
    if (Path(path) / "sweep.json").is_file():
        return _sweep(arguments)
    found, (file, _) = Run(path), _take(arguments[1:], "--experiment")
    if file and not file[-1]:
        raise errors.bad_flag("--experiment needs a file", f"raytrain resume {path}")
    correction = Correction(found, Path(file[-1])) if file else None
    begun_with, arguments = _strategy(correction.experiment if correction else found.experiment, arguments)

    def command(
        experiment: Annotated[Experiment, _FLAT] = begun_with, options: Annotated[Resume, _FLAT] = Resume()
    ) -> tuple[Experiment, Resume]:
        return experiment, options

    value, options = _parse(command, arguments[1:], f"raytrain resume {path}", f"Goes on with a run.\n\n{_STRATEGIES}")
    with watched(_console(), value.loggers) as observer:
        resume(
            found,
            value,
            Options(address=options.address, dry_run=options.dry_run, verbose=options.verbose),
            observer,
            _command_started(),
            correction,
        )


def _evaluate(arguments: list[str]) -> None:
    """Evaluate a run: raytrain evaluate RUN [--data.root DIR] [--json]"""

    def command(
        run: tyro.conf.Positional[Annotated[str, _RUN]],
        data: OtherData = OtherData(),
        split: Literal["train", "val", "test"] = "val",
        checkpoint: Literal["best", "last"] = "best",
        json: bool = False,
    ) -> tuple:
        """Evaluates a checkpoint on every sample of a split.

        Args:
            split: Which split.
            checkpoint: Which checkpoint.
            json: Print one JSON object.
        """
        return run, data.root, split, checkpoint, json

    path, root, split, which, as_json = _parse(command, arguments, "raytrain evaluate")
    found = Run(path)
    from raytrain.tools import inference

    result = inference.evaluate(found, root, split, which)
    if as_json:
        print(json.dumps(result))
        return
    from raytrain.report.console import show_evaluation

    show_evaluation(result, found.where)


def _predict(arguments: list[str]) -> None:
    """Classify images: raytrain predict RUN PATH ... [--out predictions.csv]"""

    def command(
        run: tyro.conf.Positional[Annotated[str, _RUN]],
        paths: tyro.conf.Positional[Annotated[tuple[str, ...], tyro.conf.arg(metavar="PATH ...")]],
        out: str | None = None,
        checkpoint: Literal["best", "last"] = "best",
    ) -> tuple:
        """Classifies image files, and all images below folders.

        Args:
            paths: Images, or folders of them.
            out: A .csv, .jsonl or .parquet file; by default a table is printed.
            checkpoint: Which checkpoint.
        """
        return run, paths, out, checkpoint

    path, images, out, which = _parse(command, arguments, "raytrain predict")
    swapped = [image for image in images if Path(image, "experiment.json").is_file()]
    if swapped and not Path(path, "experiment.json").is_file():
        run, given = swapped[0], [path, *(image for image in images if image != swapped[0])]
        raise errors.UserError(
            "RUN must come first", f"got {path}", f"write `{shlex.join(['raytrain', 'predict', run, *given])}`"
        )
    found = Run(path)
    from raytrain.tools import inference

    if out is not None:
        inference.check_output(Path(out), inference.PREDICTIONS)
    if not images:
        raise errors.bad_flag("no images are given", "raytrain predict")
    rows = inference.predict(found, list(images), which)
    if out is None:
        for row in rows:
            print(f"{row['path']}  {row['label']}  {row['probability']:.4f}")
    else:
        inference.write_predictions(rows, found.classes(which), Path(out))
        print(f"wrote {len(rows)} predictions to {out}")


def _export(arguments: list[str]) -> None:
    """Write the weights: raytrain export RUN FILE (.pth .safetensors .pt2)"""

    def command(
        run: tyro.conf.Positional[Annotated[str, _RUN]],
        file: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="FILE")]],
        checkpoint: Literal["best", "last"] = "best",
    ) -> tuple:
        """Writes a run's plain weights, without any prefix, for the CPU.

        Args:
            file: Its suffix chooses the format: .pth (a state dict), .safetensors, .pt2 (torch.export).
            checkpoint: Which checkpoint.
        """
        return run, file, checkpoint

    path, file, which = _parse(command, arguments, "raytrain export")
    found = Run(path)
    from raytrain.tools import inference

    inference.export(found, Path(file), which)
    print(f"wrote {file}")


def _cluster(arguments: list[str]) -> int | None:
    """Start a cluster: raytrain cluster init KIND [--out FILE] | check FILE | up FILE"""
    which = _first(arguments)
    commands = {"init": _cluster_init, "check": _cluster_check, "up": _cluster_up}
    if which in commands:
        return commands[which](arguments[1:])
    if which is not None:
        raise errors.unknown_command(f"cluster {which}", [f"cluster {name}" for name in commands])
    if not arguments or arguments[0] not in ("-h", "--help"):
        raise errors.bad_flag("`init`, `check` or `up` must come first", "raytrain cluster")
    print(
        "usage: raytrain cluster init KIND [--out FILE]\n       raytrain cluster check FILE [--json]\n"
        "       raytrain cluster up FILE [--minutes 20] [--yes]\n\n"
        + _wrapped(
            "`init` writes a file to start with. `check` looks for mistakes in such a file (for `ray up` or KubeRay), "
            "offline. `up` starts the cluster with `ray up` and waits until all of its nodes have joined."
        )
    )


def _cluster_up(arguments: list[str]) -> int:
    def command(
        file: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="FILE")]],
        minutes: float = 20.0,
        yes: bool = False,
    ) -> tuple[str, float, bool]:
        """Check the file of a cluster, start it with `ray up`, and wait until the head and all min_workers have joined.

        The autoscaler is version 1: with version 2, the default of `ray up`, workers may be left out.
        The exit status is 1 if nodes are missing (the cluster stays up) and 2 if the file has errors.

        Args:
            file: A YAML file for `ray up`.
            minutes: How long the nodes may take to join after the head has started.
            yes: Do not ask before the cluster is started, or restarted if it runs, which ends its jobs.
        """
        return file, minutes, yes

    file, minutes, yes = _parse(command, arguments, "raytrain cluster up")
    if not 0 < minutes < 10_000:  # also NaN
        raise errors.bad_flag(f"--minutes must be above 0, got {minutes:g}", "raytrain cluster up")
    from raytrain import cluster

    path = Path(file)
    wanted = cluster.nodes(path)
    _print_findings(path, cluster.check(path))
    try:
        cluster.up(path, minutes, yes, lambda line: print(line, flush=True))
    except cluster.Incomplete as error:
        print(
            f"error: the cluster is not complete: {error}; its nodes stay up: "
            f"`raytrain cluster up {file}` tries again, `ray down {file}` ends the cluster",
            file=sys.stderr,
        )
        return 1
    print(
        f"all {sum(wanted.values())} nodes have joined; `ray dashboard {file}` brings the dashboard to localhost:8265"
    )
    return 0


def _cluster_check(arguments: list[str]) -> None:
    def command(
        file: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="FILE")]], json: bool = False
    ) -> tuple[str, bool]:
        """Check the file of a cluster offline; nothing is started. The exit status is 2 if there are errors.

        An error is what cannot work or exposes the cluster; a warning is what works and costs something or may change.

        Args:
            file: A YAML file for `ray up`, a RayCluster or RayJob of KubeRay, or a script of `raytrain cluster init`
                (only its lines to edit are checked).
            json: Print one JSON object.
        """
        return file, json

    file, as_json = _parse(command, arguments, "raytrain cluster check")
    from raytrain import cluster

    path = Path(file)
    found = cluster.check(path)
    if as_json:
        print(json.dumps({"file": file, "findings": [dataclasses.asdict(finding) for finding in found]}))
    _print_findings(path, found, quietly=as_json)
    if not found and not as_json:
        print(f"{file}: nothing is wrong")


def _print_findings(path: Path, found: list[Finding], quietly: bool = False) -> None:
    """Print what is wrong with a cluster's file, a line each.

    Raises:
        UserError: there are errors among it.
    """
    for finding in found if not quietly else ():
        print(f"{path}:{finding}", flush=True)
    if wrong := sum(finding.level == "error" for finding in found):
        raise errors.cluster_broken(path, wrong)


def _cluster_init(arguments: list[str]) -> None:
    def command(
        kind: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="KIND")]], out: str | None = None
    ) -> tuple[str, str | None]:
        """Gives a file to begin a cluster with. Edit the lines marked EDIT, then check it.

        Args:
            kind: aws, gcp, azure, on-premises, kuberay, kuberay-job, slurm or plain.
            out: The file to write, which must not be there; by default it is printed.
        """
        return kind, out

    kind, out = _parse(command, arguments, "raytrain cluster init")
    from raytrain import cluster

    if out is None:
        print(cluster.text(kind), end="")
        return
    lines = cluster.write(kind, Path(out))
    marked = f"; edit the lines marked EDIT: {', '.join(str(line) for line in lines)}" if lines else ""
    print(f"wrote {out}{marked}")


def _submit(arguments: list[str]) -> int:
    """Train on a cluster: raytrain submit EXPERIMENT|SWEEP --address URL [--field value ...] [--no_wait]"""
    usage, path = "raytrain submit EXPERIMENT", _first(arguments)
    if path is None:
        _show_usage(
            arguments,
            usage,
            "Sends an experiment's or a sweep's file, with the project around it, to a cluster (--address URL of its "
            "dashboard), runs it there with the flags given, follows it, and ends with its exit status: 143 where it "
            "was stopped. --out is a folder that all nodes share, or a URL. --no_wait prints the job's id and returns.",
        )
        return 0
    if Path(path).is_dir():
        raise errors.not_submitted(path)
    from raytrain.sweep.sweep import is_sweep

    command = "sweep" if is_sweep(path) else "train"
    _, options, _ = (_sweeping if command == "sweep" else _training)(arguments, "submit", Submit())
    from raytrain.jobs import dashboard, jobs
    from raytrain.report import jobs as report

    jobs.check_storage(options.out, folder=command == "sweep")
    head = dashboard.reach(options.address)
    sent = jobs.project(Path(path), options.out)
    flags = _without(arguments[1:], "--address", "--wait", "--no_wait")
    job = jobs.submit(head, sent, options.name or Path(path).stem, command, flags, options.out)

    if not options.wait:
        print(job)
        return 0
    report.submitted(head, job, sent, options.out)
    return _followed(head, job, report.wants_stop)


def _followed(head: Dashboard, job: str, wants_stop: Callable[[], bool]) -> int:
    """Follows a job to its end; after Ctrl-C it is asked whether the job is to be stopped."""
    from raytrain.jobs import jobs
    from raytrain.report import jobs as report

    log = report.Log()
    follower, stopped_by = jobs.Follower(head, job, log.show), 0
    try:
        try:
            found = follower.to_end()
        except KeyboardInterrupt as interrupt:
            if asked(interrupt) != signal.SIGINT or not wants_stop():
                raise
            jobs.stop(head, job)
            stopped_by = 130
            found = follower.to_end()
    except KeyboardInterrupt as interrupt:
        report.left(head, job, stopping=bool(stopped_by))
        return status_after(128 + asked(interrupt))
    except jobs.Lost as error:
        report.lost(head, job, str(error))
        return 1
    log.close(found)
    return stopped_by if stopped_by and found.status == "STOPPED" else found.exit_status


def _status(arguments: list[str]) -> None:
    """Look at jobs: raytrain status [JOB] --address URL [--json]"""

    def command(
        job: tyro.conf.Positional[Annotated[str, _JOB]] = "", address: str | None = None, json: bool = False
    ) -> tuple[str, str | None, bool]:
        """Lists the jobs of a cluster, or says what there is of one.

        Args:
            address: URL of the cluster's dashboard; by default RAY_API_SERVER_ADDRESS or RAY_ADDRESS.
            json: Print one JSON object, or a list of them.
        """
        return job, address, json

    name, address, as_json = _parse(command, arguments, "raytrain status")
    from raytrain.jobs import dashboard, jobs
    from raytrain.report import jobs as report

    head = dashboard.reach(address)
    found = [jobs.job(head, name)] if name else jobs.jobs(head)
    if as_json:
        listed = [dataclasses.asdict(job) for job in found]
        print(json.dumps(listed[0] if name else listed))
    else:
        report.show(found)


def _logs(arguments: list[str]) -> int:
    """Read a job's log: raytrain logs JOB --address URL [--follow]"""

    def command(
        job: tyro.conf.Positional[Annotated[str, _JOB]], address: str | None = None, follow: bool = False
    ) -> tuple[str, str | None, bool]:
        """Prints what a job has printed.

        Args:
            address: URL of the cluster's dashboard; by default RAY_API_SERVER_ADDRESS or RAY_ADDRESS.
            follow: Go on to the job's end, and end with its exit status, as `submit` does.
        """
        return job, address, follow

    name, address, follow = _parse(command, arguments, "raytrain logs")
    from raytrain.jobs import dashboard, jobs

    head = dashboard.reach(address)
    jobs.job(head, name)
    if follow:
        return _followed(head, name, lambda: False)
    print(jobs.log(head, name), end="")
    return 0


def _stop(arguments: list[str]) -> int | None:
    """Stop a job: raytrain stop JOB --address URL"""

    def command(job: tyro.conf.Positional[Annotated[str, _JOB]], address: str | None = None) -> tuple[str, str | None]:
        """Stops a job, which writes a checkpoint first, and waits for its end.

        Args:
            address: URL of the cluster's dashboard; by default RAY_API_SERVER_ADDRESS or RAY_ADDRESS.
        """
        return job, address

    name, address = _parse(command, arguments, "raytrain stop")
    from raytrain.jobs import dashboard, jobs
    from raytrain.report import jobs as report

    head = dashboard.reach(address)
    found = jobs.job(head, name)
    if not found.over:
        jobs.stop(head, name)
        print("stopping after this step, with a checkpoint ...", flush=True)
        try:
            found = jobs.wait(head, name)
        except jobs.Lost as error:
            report.lost(head, name, str(error))
            return 1
    report.ended(found, jobs.log(head, name))


def _doctor(arguments: list[str]) -> int:
    """Look for what is wrong: raytrain doctor [--address ADDR] [--out DIR] [--json]"""

    def command(address: str | None = None, out: str = "runs", json: bool = False) -> tuple[str | None, str, bool]:
        """Looks for what would hold a training up, on this machine and on every node of a cluster.

        Ends with 1 where there are failures; warnings do not count.

        Args:
            address: Address of a running Ray cluster, or `auto`; by default RAY_ADDRESS, or else this machine alone.
            out: The folder or URL for runs: whether it can be written, and is shared by all nodes.
            json: Print one JSON object.
        """
        return address, out, json

    address, out, as_json = _parse(command, arguments, "raytrain doctor")
    from raytrain import doctor
    from raytrain.report import doctor as report

    survey = doctor.examine(address, out)
    found = doctor.findings(survey)
    if as_json:
        print(report.to_json(survey, found))
    else:
        report.show(survey, found)
    return int(any(finding.level == "failure" for finding in found))


_COMMANDS: dict[str, Callable[[list[str]], int | None]] = {
    "train": _train,
    "lr": _lr,
    "batch": _batch,
    "resume": _resume,
    "sweep": _sweep,
    "report": _report,
    "evaluate": _evaluate,
    "predict": _predict,
    "export": _export,
    "cluster": _cluster,
    "submit": _submit,
    "status": _status,
    "logs": _logs,
    "stop": _stop,
    "doctor": _doctor,
}


def _help() -> str:
    lines = ["usage: raytrain COMMAND ...", "", "Distributed training of PyTorch vision models on Ray.", ""]
    for name, command in _COMMANDS.items():
        what, _, usage = str(command.__doc__).partition(": ")
        lines.append(_wrapped(usage.removeprefix(f"raytrain {name} "), f"  {name:<9} {what:<22}  "))
    return "\n".join([*lines, "", _wrapped("`raytrain COMMAND --help` says more; --version prints the version.")])


def _wrapped(text: str, before: str = "") -> str:
    """The text in lines of the terminal's width, 100 columns at the most; all but the first are indented like it."""
    width = min(100, shutil.get_terminal_size().columns)
    return textwrap.fill(
        text,
        width,
        initial_indent=before,
        subsequent_indent=" " * len(before),
        break_on_hyphens=False,
        break_long_words=False,
    )


def _strategy(value: Experiment, arguments: list[str]) -> tuple[Experiment, list[str]]:
    """Takes `--parallel.strategy NAME` from the arguments: it decides which fields `parallel` has."""
    found, rest = _take(arguments, "--parallel.strategy")
    return (with_strategy(value, found[-1]) if found else value), rest


def _take(arguments: list[str], *flags: str) -> tuple[list[str], list[str]]:
    """The values of the given flags, each of which has one, and the arguments without them."""
    found, rest, following = [], [], iter(arguments)
    for argument in following:
        flag, equals, text = argument.partition("=")
        if flag in flags:
            found.append(text if equals else next(following, ""))
        else:
            rest.append(argument)
    return found, rest


def _without(arguments: list[str], *flags: str) -> list[str]:
    """The arguments without the given flags and all of their values."""
    rest, dropped = [], False
    for argument in arguments:
        if argument.startswith("--"):
            dropped = "--" + argument[2:].partition("=")[0].replace("-", "_") in flags
        if not dropped:
            rest.append(argument)
    return rest


def _first(arguments: list[str]) -> str | None:
    return arguments[0] if arguments and arguments[0] and not arguments[0].startswith("-") else None


def _show_usage(arguments: list[str], usage: str, text: str) -> None:
    if arguments and arguments[0] in ("-h", "--help"):
        print(f"usage: {usage} [--field value ...]\n\n{_wrapped(text)}")
        return
    raise errors.bad_flag(f"{usage.rpartition(' ')[2]} must come first", usage.rpartition(" ")[0])


def _parse(command: Callable, arguments: list[str], usage: str, description: str | None = None) -> Any:
    """Parses by tyro; its messages become the catalogue's one line."""
    said = io.StringIO()
    wants_help = any(argument in ("-h", "--help") for argument in arguments)
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
        raise errors.bad_flag(_plain(said.getvalue()), usage) from None
    if unknown:
        raise _unknown(unknown, command, usage)
    return parsed


class _Folded:
    """Standard output for tyro's help: its boxes fit the terminal, but the description is one line a paragraph."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        width = shutil.get_terminal_size().columns
        lines = [_wrapped(line) if len(line) > width and _PROSE.match(line) else line for line in text.split("\n")]
        return self._stream.write("\n".join(lines))

    def flush(self) -> None:
        self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _complaints(said: io.StringIO) -> Iterator[None]:
    """Catches what tyro writes to standard error, in lines of 80 columns: on a narrow terminal it breaks words."""
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
    """The error for arguments that are none of a command's, with what may have been meant."""
    parts = _parts(command)
    known = [path for path, default in parts.items() if not dataclasses.is_dataclass(default)]
    flag, equals, value = unknown[0].partition("=")
    path = flag.lstrip("-").replace("-", "_")
    if not flag.startswith("-"):
        return errors.unexpected_argument(unknown[0], [f"--{path} {value}"] if equals and path in known else [], usage)
    if path in ("resume", "resume_from_checkpoint", "ckpt_path") and "raytrain resume" not in usage:
        return errors.UserError(f"unknown flag {flag}", "", "go on with a run by `raytrain resume RUN`")
    if path in parts:
        value = value or next((one for one in unknown[1:2] if not one.startswith("-")), "")
        return _no_value(path, value, parts, usage)
    if path in STRATEGIES:  # `--deterministic` was a flag in 0.1
        return errors.unknown_flag(flag, [f"--parallel.strategy {path}"], usage)
    field = path.removeprefix("parallel.").removeprefix("no_")
    others = [name for name, strategy in STRATEGIES.items() if hasattr(strategy, field)]
    if path.startswith("parallel.") and others:
        return errors.flag_of_another_strategy(flag, others)
    return errors.unknown_flag(flag, [f"--{one}" for one in hints.flags(flag, known)], usage)


def _no_value(path: str, value: str, parts: dict[str, Any], usage: str) -> errors.UserError:
    """The error for a part of an experiment that is given a value, as in `--optimizer Adam`: its class is chosen in the
    file, its fields have flags."""
    if isinstance(parts[path], tuple):
        how = f"write `{path}=(...,)` in the experiment's file; the fields of each have flags, --{path}.0.NAME"
        return errors.UserError(f"--{path} takes no value", "", how)
    kind, base = type(parts[path]), type(parts[path]).__mro__[-2]
    fields = [one for one in parts if one.startswith(f"{path}.")]
    what, flags = f"--{path} takes no value", ", ".join(f"--{one}" for one in fields[:4])
    chooser = f"{path}.strategy" if base is Parallel else f"{path}.name"
    if value and (base is Parallel or chooser in parts):
        return errors.UserError(what, "", f"did you mean --{chooser} {value}? `{usage} --help` lists the flags")
    classes = [one.__name__ for one in _subclasses(base)]
    if len(classes) < 2:
        return errors.UserError(what, "", f"its fields have flags: {flags}")
    chosen = next((one for one in classes if one.lower() == value.lower()), None)
    others = "" if chosen else f" (or {', '.join(classes[1:])}, or a class of your own)"
    has = f"; {kind.__name__}'s fields have flags: {flags}" if fields else ""
    return errors.UserError(
        f"{what}: its class is chosen in the experiment's file",
        f"where it is {kind.__name__}",
        f"write `{path}={chosen or classes[0]}(...)` there{others}{has}",
    )


def _subclasses(base: type) -> list[type]:
    """Raytrain's public classes below one."""
    found = [one for sub in base.__subclasses__() for one in (sub, *_subclasses(sub))]
    return [one for one in found if one.__module__.startswith("raytrain.") and not one.__name__.startswith("_")]


def _parts(command: Callable) -> dict[str, Any]:
    """The defaults of a command's flags by their dotted paths, and of the dataclasses that hold them."""
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

    for name, parameter in inspect.signature(command).parameters.items():
        visit("" if name in ("experiment", "options") else name, parameter.default)
    return parts


def _plain(text: str) -> str:
    """The sentence inside tyro's box: between its title and a rule, both drawn in ASCII where the output is."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip().strip("│").strip() for line in text.splitlines()]
    is_rule = [set(line) <= set("─-╰╯") for line in lines]
    first = 2 if is_rule[1:2] == [True] else 1
    body = lines[first : is_rule.index(True, first) if True in is_rule[first:] else None]
    if body and body[0].startswith("Missing from"):
        return f"{' and '.join(line for line in body[1:] if line.isupper()) or 'an argument'} must be given"
    said = " ".join(body) or "the arguments cannot be read"
    for reason, kind in (("invalid literal for int() with base 10:", "a whole number"), _NO_FLOAT):
        said = re.sub(rf"Error parsing (\S+): {re.escape(reason)} (.*)", rf"\1 must be {kind}, got \2", said)
    several = re.match(r"Error parsing (\S+): no type matching (\S+) could be instantiated from \[(.*?)\]\.", said)
    if several:
        kinds = several[2].replace("{", "").replace("}", "").replace("|", " or ")
        said = f"{several[1]} must be {kinds}, got {several[3]}"
    return said


def _describe(source: Path | None) -> str:
    """The experiment file's docstring."""
    import ast

    try:
        return ast.get_docstring(ast.parse(source.read_text())) or "" if source else ""
    except (OSError, SyntaxError):
        return ""


def _console():
    from raytrain.report.console import Console

    return Console()


def _command_started() -> float:
    """Unix time at which this process began, to the system's clock tick; its imports are part of the wait."""
    try:
        ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - (uptime - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, IndexError, ValueError):
        return time.time()
