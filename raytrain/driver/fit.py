"""The driver: plan, start Ray, run the training loop in Ray Train's workers, follow it, and report how it ended.

A module named `train` would hide the function `raytrain.train`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from raytrain import config, errors
from raytrain.checkpoint import location, remote
from raytrain.data.blocks import Bad
from raytrain.data.checks import perhaps_moved, same_data
from raytrain.driver import plan, resumption, teacher_check
from raytrain.driver.blame import failed_here
from raytrain.driver.correction import Correction
from raytrain.driver.endings import Interrupted, RunFailed, advice
from raytrain.driver.environment import write_environment
from raytrain.driver.initial_weights import pretrained
from raytrain.driver.interrupts import Interrupts, Leave
from raytrain.driver.logs import keep_traceback
from raytrain.driver.observe import Loggers
from raytrain.driver.options import Options
from raytrain.driver.plan import Plan
from raytrain.driver.resumption import Complete, checked, claimed
from raytrain.driver.session import Session
from raytrain.driver.skipped import write_skipped
from raytrain.experiment import Experiment
from raytrain.files import is_url, reason, write_atomically
from raytrain.loggers import Logger, RunInfo
from raytrain.run import copies, experiment_file
from raytrain.run.begin import begin, check_writable, discard, stem_of
from raytrain.run.metrics_log import read_metrics
from raytrain.run.run import Run
from raytrain.training.summary import goal
from raytrain.user_code import places, sources

Report = Callable[[Run, Callable[[str], None]], None]
"""Writes the page of a run that has ended; it is called with the run and with what prints a line."""
_ASIDE = ".*.*.[0-9]*"
"""Files that a killed process was writing."""


def train(
    value: Experiment,
    options: Options,
    observer: Logger,
    source: Path | None,
    command_started: float,
    report: Report | None = None,
) -> Run | None:
    """Train an experiment in a new run directory.

    Args:
        source: the Python file that the experiment came from, of which the run keeps a copy.
        command_started: Unix time at which the user's command began.
        report: called when the run has completed or failed, if the options want a report.

    Returns:
        The run, or None after a dry run.

    Raises:
        UserError: the experiment cannot be run; nothing has been started.
        RunFailed: it started and failed.
    """
    check_writable(options.out, options.name)
    stem = stem_of(source, "experiment.json", "run")
    shown = location.join(options.out, options.name or f"{stem}-N")
    with Session(options.address, options.verbose) as session:
        planned = plan.make(value, session.resources, shown)
        planned.check_disk(location.mirror(shown) if is_url(shown) else Path(options.out))
        if options.dry_run:
            observer.planned(planned.lines())
            return None
        kept = to_keep(value, planned)

        def fill(folder: Path) -> None:
            copies.keep(value, source, folder)
            write_environment(folder, planned)
            experiment_file.save(kept, folder / "experiment.json")

        path, lock = begin(options.out, options.name, stem, fill)
        with lock:
            planned = replace(planned, run=location.url_of(path) or str(path))
            observer.planned(planned.lines())
            try:
                remote.publish(path)
                return _run(Run(path), planned, kept, session, options, observer, command_started, report)
            except errors.UserError:  # found while the data was read, before training
                discard(path)
                raise


def resume(
    run: Run,
    value: Experiment,
    options: Options,
    observer: Logger,
    command_started: float,
    correction: Correction | None = None,
    report: Report | None = None,
) -> Run:
    """Resume a run from its newest checkpoint.

    Args:
        value: the run's experiment, perhaps with other epochs, steps, scaling, checkpoint or data.root.
        correction: the code to go on with, in place of the run's own; `value` has its classes.
        report: as for `train`.

    Raises:
        UserError: it is complete, and no logger lacked rows; it is still running, its data has changed, or `value` or
            the code changes what must stay.
        RunFailed: it failed again.
    """
    with claimed(run), _advised(run, correction):
        done = run.summary["status"] == "completed" and not options.dry_run
        loggers = observer if isinstance(observer, Loggers) and done else None
        info = RunInfo(run.path, run.where, run.experiment)
        if loggers:
            loggers.catch_up(info, run.summary)
        try:
            value = checked(run, value, correction)
        except Complete as complete:
            names = loggers.caught_up(info) if loggers else []
            if not names:
                raise
            had = "has" if len(names) == 1 else "have"
            observer.note(f"{complete.what}; {errors.listed(names)} {had} taken the rows that were lacking")
            return run
        with Session(options.address, options.verbose) as session:
            with perhaps_moved(value.data, "if the data have moved, give their place now: --data.root PLACE"):
                planned = plan.make(value, session.resources, run.where, resumed=True)
            began_with = run.environment
            prints = {split: index.fingerprint() for split, index in planned.indices.items()}
            if not same_data(began_with["data_fingerprint"], prints):
                raise errors.data_changed(run.where)
            teacher_check.check_same(run.experiment.task, planned.experiment.task, began_with)
            if correction:
                resumption.check_model(correction, planned)
            if note := correction.note() if correction else resumption.edited(run):
                planned = replace(planned, notes=(*planned.notes, note))
            planned.check_disk(run.path)
            observer.planned(planned.lines())
            if options.dry_run:
                return run
            kept = to_keep(value, planned)
            return _run(run, planned, kept, session, options, observer, command_started, report, correction)


@contextlib.contextmanager
def _advised(run: Run, correction: Correction | None) -> Iterator[None]:
    """Add to an error in the run's code the file to correct, and the command that takes the correction."""
    try:
        yield
    except errors.UserError as error:
        if correction is None and (edit := places.to_edit(error.where)):
            error.how = f"correct {edit}, then {advice(run.path)}"
        raise


def to_keep(value: Experiment, planned: Plan) -> Experiment:
    """Return the experiment to keep: what the data took from the model's weights, the task's paths as they hold in any
    folder, and the number of threads, which a repetition needs for the same bits. With more workers each has fewer, so
    an elastic run does not keep it."""
    value = replace(value, task=value.task.absolute())
    if value.data != planned.experiment.data:
        value = replace(value, data=planned.experiment.data)
    if value.scaling.elastic:
        return value
    return config.replace(value, "scaling.threads_per_worker", planned.experiment.scaling.threads_per_worker)


def _run(
    run: Run,
    planned: Plan,
    kept: Experiment,
    session: Session,
    options: Options,
    observer: Logger,
    command_started: float,
    report: Report | None,
    correction: Correction | None = None,
) -> Run:
    """Start Ray, read the data, train, and report the end. An existing run stays unchanged until the workers start.

    Args:
        kept, correction: the experiment to save, and the code to save in place of the run's own.
    """
    path, interrupted = run.path, False
    with Interrupts(path) as interrupts:
        try:
            weights = pretrained(planned.experiment, planned.indices["train"], path)
            observer.status("starting Ray" if session.own else "checking the cluster")
            with interrupts.while_ray_starts():
                session.start(path / "experiment.json" if run.url is None else None)
            from raytrain.driver import launch  # Ray and torch, imported beside Ray's start

            job, planned, skipped = launch.prepare(planned, path, weights, options, command_started, observer)
            observer.status("starting to train" if planned.experiment.scaling.workers == 0 else "starting the workers")
            interrupts.saves = True
            _begin(run, kept, skipped, correction)
            launch.follow(run, job, planned, session, observer, interrupts)
            if run.summary["status"] == "unfinished":  # storage at a URL lacks the workers' summary
                interrupts.stop_if_asked()
        except Leave:
            interrupted = True
            if left := remote.left_behind(path):
                observer.note(left)
            _summarise(path, planned, "interrupted")
        except errors.UserError:
            if interrupts.saves:  # the workers were to start
                _summarise(path, planned, "failed")
            raise
        except RunFailed as failure:
            if run.summary["status"] == "completed":  # the loss came after the end of training
                observer.finish(planned.info(run), run.summary)
                return run
            _summarise(path, planned, "failed", str(failure), failure.retry)
            raise
        except Exception as error:  # Ray's own, or of a data source that the experiment brings
            keep_traceback(path)
            failure = failed_here(error, path)
            _summarise(path, planned, "failed", str(failure), failure.retry)
            raise failure from error
        finally:
            _tidy(run, session, report if options.report and interrupts.saves else None, observer)
        if run.summary["status"] == "unfinished":
            raise RunFailed("the workers ended without a summary", path, None)
        observer.finish(planned.info(run), run.summary)
    if interrupted or run.summary["status"] == "interrupted":
        raise Interrupted(run.path, interrupts.signal)
    return run


def _tidy(run: Run, session: Session, report: Report | None, observer: Logger) -> None:
    """Remove a request to stop and what killed workers were writing, leave in the logs what a person reads, and write
    the page of a run that has ended."""
    partial = run.path.glob(_ASIDE) if run.summary["status"] == "completed" else ()  # others may still write
    with contextlib.suppress(OSError):
        for leftover in (run.path / "stop", *partial):
            leftover.unlink(missing_ok=True)
    session.keep_logs(run.path / "logs", run.summary["status"] not in ("completed", "interrupted"))
    if report and run.summary["status"] in ("completed", "failed"):
        report(run, observer.note)


def _begin(run: Run, kept: Experiment, skipped: dict[str, list[Bad]], correction: Correction | None) -> None:
    """Write the files that the workers need, and remove those of the last attempt.

    Raises:
        RunFailed: storage refuses it.
        UserError: storage at a URL does.
    """
    path, logs = run.path, run.path / "logs"
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(logs)
        write_skipped(path, skipped)
        if correction:
            correction.save()
            run.forget()
        copies.settle(path)
        if experiment_file.to_json(kept) != experiment_file.to_json(run.experiment):
            experiment_file.save(kept, path / "experiment.json")
        asides = (*path.glob(_ASIDE), *(path / sources.MODULES).rglob(_ASIDE))
        for leftover in (*asides, *logs.glob("*_*.json"), path / "stop", path / "summary.json"):
            leftover.unlink(missing_ok=True)
        remote.publish(path)
        copies.settled(path)
    except OSError as error:
        raise RunFailed(f"storage refuses files of {path}: {reason(error)}", path, None) from error


def _summarise(path: Path, planned: Plan, status: str, error: str | None = None, retry: bool = False) -> None:
    """Write a summary for a run whose workers could not write one, if storage takes it."""
    if os.path.lexists(path / "summary.json"):
        return
    with contextlib.suppress(OSError, ValueError):
        rows = read_metrics(path / "metrics.jsonl")[0]
        last = rows[-1] if rows else {}
        values = {
            "status": status,
            **goal(planned.experiment),
            "epochs": max((row["epoch"] for row in rows if row["kind"] == "epoch"), default=0),
            "steps": last.get("step", 0),
            "workers": planned.experiment.scaling.ranks,
        }
        values |= ({"retry": retry} if status == "failed" else {}) | ({"error": error} if error else {})
        write_atomically(path / "summary.json", json.dumps(values, indent=2))
        remote.conclude(path)
