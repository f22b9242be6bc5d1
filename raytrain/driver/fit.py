"""The driver: plan, start Ray, hand the loop to Ray Train's workers, watch, and say how it ended.

(DESIGN's `train.py`; as a module of that name it would hide the function `raytrain.train`.)
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import stat
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytrain import config, errors, experiment_file
from raytrain.checkpoint import location, remote
from raytrain.checkpoint.rows import check_rows
from raytrain.data import Index
from raytrain.driver import plan, resumption, supervise
from raytrain.driver.environment import write_environment
from raytrain.driver.failures import RunFailed, failed_here
from raytrain.driver.interrupts import Interrupts, Leave
from raytrain.driver.observe import Loggers, Tail
from raytrain.driver.plan import Plan
from raytrain.driver.reading import read, skipped_before, wait_for_blocks, write_skipped
from raytrain.driver.resumption import Correction
from raytrain.driver.session import Session
from raytrain.driver.worker import Job
from raytrain.experiment import Experiment
from raytrain.files import reason, write_atomically
from raytrain.loggers import Held, Logger, RunInfo
from raytrain.run.begin import begin, check_writable, discard
from raytrain.run.lock import LOCK, WRITER_LOCK, Lock
from raytrain.run.metrics_log import read_metrics
from raytrain.run.run import Run, no_way_back
from raytrain.user_code import copies, places

if TYPE_CHECKING:
    from raytrain.data.blocks import Bad

_FILES = (
    *("experiment.json", "environment.json", "skipped.json", "summary.json", "metrics.jsonl"),
    *("best.json", "last.json", LOCK, WRITER_LOCK),
    *(copies.REPLACED, copies.REPLACING),
)
"""The files of a run's directory that training writes."""
_ASIDE = ".*.*.[0-9]*"
"""Files that a killed command was writing."""


def advice(path: Path) -> str:
    """Return how a run goes on once the user's code is corrected.

    Args:
        path: its directory on this machine.
    """
    found = copies.read(path)
    file = found.experiment.origin if found and found.experiment else "FILE"
    command = ["raytrain", "resume", location.url_of(path) or near(str(path)), "--experiment", near(file)]
    return f"go on with `{shlex.join(command)}`"


def near(file: str) -> str:
    """Return a path as it is from the working directory, where it is below that: a job's own path is of no use on the
    machine that sent the job."""
    with contextlib.suppress(OSError, ValueError):
        return str(Path(file).relative_to(Path.cwd()))
    return file


class Interrupted(Exception):
    """A run or a sweep that was asked to stop, and did, with a checkpoint where a step was done.

    Attributes:
        path: its directory.
        signal: the signal that asked, such as 2 for SIGINT.
    """

    def __init__(self, path: Path, signal_number: int):
        super().__init__(f"interrupted by signal {signal_number}")
        self.path, self.signal = path, signal_number


@dataclass(frozen=True)
class Options:
    """Where a run is kept and what it runs on."""

    out: str = "runs"
    """Folder or URL in which the run's directory is made; on a cluster, one that all nodes share."""
    name: str | None = None
    """Name of the run's directory; by default the experiment file's name and a number."""
    address: str | None = None
    """Address of a running Ray cluster, or `auto`; by default RAY_ADDRESS, or else this machine alone."""
    dry_run: bool = False
    """Print the plan and stop."""
    verbose: bool = False
    """Show Ray's own messages and the workers' output."""


def train(
    value: Experiment, options: Options, observer: Logger, source: Path | None, command_started: float
) -> Run | None:
    """Trains an experiment in a new run directory.

    Args:
        source: the Python file that the experiment came from, of which the run keeps a copy.
        command_started: Unix time at which the user's command began.

    Returns:
        The run, or None after a dry run.

    Raises:
        UserError: the experiment cannot be run; nothing has been started.
        RunFailed: it started and failed.
    """
    check_writable(options.out, options.name)
    stem = source.stem if source else "run"
    if source and source.name == "experiment.py" and (source.parent / "experiment.json").is_file():
        stem = source.parent.name.rpartition("-")[0] or source.parent.name
    elif source and source.name == "experiment.py" and (source.parent / "sweep.json").is_file():  # a sweep's best
        stem = source.parent.name
    shown = location.join(options.out, options.name or f"{stem}-N")
    with Session(options.address, options.verbose) as session:
        planned = plan.make(value, session.resources, shown)
        planned.check_disk(location.mirror(shown) if location.is_url(shown) else Path(options.out))
        if options.dry_run:
            observer.planned(planned.lines())
            return None
        kept = with_threads(value, planned)

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
                return _run(Run(path), planned, kept, session, options, observer, command_started)
            except errors.UserError:  # found while the data was read, before anything was trained
                discard(path)
                raise


def resume(
    run: Run,
    value: Experiment,
    options: Options,
    observer: Logger,
    command_started: float,
    correction: Correction | None = None,
) -> Run:
    """Goes on with a run from its newest checkpoint.

    Args:
        value: the run's experiment, perhaps with other epochs, scaling, checkpoint or data.root.
        correction: the code to go on with, in place of the run's own; `value` has its classes.

    Raises:
        UserError: it is complete or still running, its data has changed, or `value` or the code changes what must stay.
        RunFailed: it failed again.
    """
    with _claimed(run), _advised(run, correction):
        if isinstance(observer, Loggers) and run.summary["status"] == "completed" and not options.dry_run:
            observer.catch_up(RunInfo(run.path, run.where, run.experiment), run.summary)
        value = _checked(run, value, correction)
        with Session(options.address, options.verbose) as session:
            planned = plan.make(value, session.resources, run.where, resumed=True)
            began_with = run.environment["data_fingerprint"]
            if {split: index.fingerprint() for split, index in planned.indices.items()} != began_with:
                raise errors.data_changed(run.where)
            if correction:
                correction.check_model(planned)
            if note := correction.note() if correction else resumption.edited(run):
                planned = replace(planned, notes=(*planned.notes, note))
            planned.check_disk(run.path)
            observer.planned(planned.lines())
            if options.dry_run:
                return run
            kept = with_threads(value, planned)
            return _run(run, planned, kept, session, options, observer, command_started, correction)


@contextlib.contextmanager
def _advised(run: Run, correction: Correction | None) -> Iterator[None]:
    """Let an error in the run's own code name the file to correct, and how the run takes it."""
    try:
        yield
    except errors.UserError as error:
        if correction is None and (edit := places.to_edit(error.where)):
            error.how = f"correct {edit}, then {advice(run.path)}"
        raise


def _claimed(run: Run) -> Lock:
    """Take a run's lock, once its files are such that this process may write them.

    Raises:
        UserError: another process has the run, or what stands in the place of a file is none.
    """
    for name in _FILES:
        if os.path.lexists(run.path / name) and not stat.S_ISREG(os.lstat(run.path / name).st_mode):
            raise errors.UserError("this is no regular file", run.path / name, "remove it, or put the run's own back")
    for name in ("checkpoints", "logs"):
        if os.path.lexists(run.path / name) and not os.path.isdir(run.path / name):
            raise errors.UserError("this is no folder", run.path / name, "remove it, or put the run's own back")
    lock = Lock(run.path)
    try:
        if (run.path / WRITER_LOCK).exists():  # rank 0 of a driver that was killed may still be leaving
            Lock(run.path, WRITER_LOCK, wait=10).release()
    except BaseException:
        lock.release()
        raise
    return lock


def _checked(run: Run, value: Experiment, correction: Correction | None) -> Experiment:
    """Check that a run can go on with an experiment, and return that.

    Raises:
        UserError: it cannot.
    """
    run.check_code()
    if correction:
        correction.check_values(value)
    if changed := [path for path in resumption.changed(run.experiment, value) if not resumption.may_change(path)]:
        raise errors.UserError(
            f"a resumed run cannot change {errors.listed(changed)}",
            run.where,
            "resume takes --epochs, --patience, --parallel.*, --scaling.*, --checkpoint.*, "
            "--loggers.*, --micro_batch_size, --clip_norm, --on_nonfinite and --data.root; train a "
            "new run for the rest",
        )
    if correction:
        correction.activate()
    summary = run.summary
    if summary["status"] == "completed":
        if summary["epochs"] >= value.epochs:
            raise errors.UserError(
                f"the run is complete at {summary['epochs']} epochs",
                run.where,
                f"train longer with --epochs above {summary['epochs']}",
            )
        stalled = summary["epochs"] - (summary.get("best_epoch") or summary["epochs"])
        if value.patience is not None and stalled >= value.patience:
            raise errors.UserError(
                f"the run is complete: it stopped early at {summary['epochs']} epochs, {stalled} of "
                f"them without a better {value.task.monitor}",
                run.where,
                f"train longer with --patience {stalled + 1} or more, or --patience None",
            )
    _check_checkpoints(run)
    if (
        value.scaling.workers != run.experiment.scaling.workers
        and value.scaling.threads_per_worker == run.experiment.scaling.threads_per_worker
        and value.parallel.threads is None
    ):
        return config.replace(value, "scaling.threads_per_worker", None)  # shared out anew
    return value


def _check_checkpoints(run: Run) -> None:
    """Check that a run which has checkpoints has one to go on from, with the metrics before it. At a URL, rank 0 does.

    Raises:
        UserError: it has none.
    """
    from raytrain.checkpoint import checkpoints

    names = [] if run.url else checkpoints.committed(run.checkpoints)
    reasons = []
    for name in reversed(names):
        try:
            return check_rows(run.path / "metrics.jsonl", checkpoints.load_state(run.checkpoints / name))
        except errors.UserError as error:
            reasons.append(error.what)
        except (KeyError, TypeError, ValueError, OSError) as error:
            reasons.append(f"{name}: {reason(error) if isinstance(error, OSError | ValueError) else 'it is damaged'}")
    if reasons:
        raise no_way_back(run.where, reasons[0])


def with_threads(value: Experiment, planned: Plan) -> Experiment:
    """The experiment to keep: a repetition needs the number of threads for the same bits. With more workers each has
    fewer, so an elastic run does not keep it."""
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
    correction: Correction | None = None,
) -> Run:
    """Start Ray, read the data, train, and say how it ended. Until the workers start, a run that exists stays as it is.

    Args:
        kept: the experiment to save.
        correction: the code to save, in place of the run's own.
    """
    path, logs = run.path, run.path / "logs"
    interrupted, begun = False, False
    with Interrupts(path) as interrupts:
        try:
            weights = pretrained(planned.experiment, planned.indices["train"], path)
            observer.status("starting Ray")
            with interrupts.while_ray_starts():
                session.start(path / "experiment.json" if run.url is None else None)
            observer.status("reading the data")
            job, planned, skipped = _prepare(planned, path, weights, options, command_started, observer)
            observer.status("starting the workers")
            begun = interrupts.saves = True
            _begin(run, kept, skipped, correction)
            before, offset = read_metrics(path / "metrics.jsonl")
            if planned.skipped:
                observer.planned([*planned.skipped, ("", f"all of them are in {path / 'skipped.json'}")])
            observer.start(_info(run, planned, before), Held())
            tail = Tail(path / "metrics.jsonl", offset, observer)
            with remote.followed(path, observer.note):
                if planned.experiment.scaling.workers == 0:
                    supervise.work_here(job, tail, interrupts)
                else:
                    supervise.Supervisor(planned, job, session, tail, interrupts, observer).run()
            tail.poll()
            if run.summary["status"] == "unfinished":  # at a URL that has not taken the workers' summary
                interrupts.stop_if_asked()
        except Leave:
            interrupted = True
            if left := remote.left_behind(path):
                observer.note(left)
            _summarise(path, planned, "interrupted")
        except errors.UserError:
            if begun:
                _summarise(path, planned, "failed")
            raise
        except RunFailed as failure:
            if run.summary["status"] == "completed":  # what was lost came behind the end
                observer.finish(_info(run, planned), run.summary)
                return run
            _summarise(path, planned, "failed", str(failure))
            raise
        except Exception as error:  # Ray's own, or of a data source that the experiment brings
            with contextlib.suppress(OSError):
                write_atomically(logs / "driver.log", traceback.format_exc())
            failure = failed_here(error, path)
            _summarise(path, planned, "failed", str(failure))
            raise failure from error
        finally:
            with contextlib.suppress(OSError):
                (path / "stop").unlink(missing_ok=True)
            session.keep_logs(logs, run.summary["status"] not in ("completed", "interrupted"))
        if run.summary["status"] == "unfinished":
            raise RunFailed("the workers ended without a summary", path, None)
        observer.finish(_info(run, planned), run.summary)
    if interrupted or run.summary["status"] == "interrupted":
        raise Interrupted(run.path, interrupts.signal)
    return run


def _info(run: Run, planned: Plan, earlier: list[dict[str, Any]] | None = None) -> RunInfo:
    steps, samples = planned.steps_per_epoch, len(planned.indices["train"])
    return RunInfo(run.path, run.where, planned.experiment, steps, samples, earlier or ())


def _begin(run: Run, kept: Experiment, skipped: dict[str, list[Bad]], correction: Correction | None) -> None:
    """Write what the workers begin with, and remove what the last attempt left.

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
        asides = (*path.glob(_ASIDE), *(path / copies.MODULES).rglob(_ASIDE))
        for leftover in (*asides, *logs.glob("*_*.json"), path / "stop", path / "summary.json"):
            leftover.unlink(missing_ok=True)
        remote.publish(path)
        copies.settled(path)
    except OSError as error:
        raise RunFailed(f"storage refuses the run's files: {reason(error)}", path, None) from error


def _prepare(
    planned: Plan, path: Path, weights: Any, options: Options, command_started: float, observer: Logger
) -> tuple[Job, Plan, dict[str, list[Bad]]]:
    """Read the data into shared memory (or check it, for streaming) and put everything into the object store; also
    return the plan with the samples that there are, and those that are skipped."""
    import ray

    e = planned.experiment
    waits = partial(wait_for_blocks, observer)
    indices, images, skipped = read(e.data, planned.indices, planned.mode, skipped_before(path), waits)
    job = Job(
        planned.experiment,
        path.absolute(),
        ray.put(indices),
        images,
        None if weights is None else ray.put(weights),
        command_started,
        own_output=not options.verbose and planned.experiment.scaling.workers != 0,
        url=location.url_of(path),
    )
    bad = {split: [errors.BadSample(one.path, one.reason) for one in samples] for split, samples in skipped.items()}
    return job, replace(planned, indices=planned.indices | indices, bad=bad), skipped


def pretrained(e: Experiment, train_index: Index, path: Path) -> Any:
    """The initial weights of a model that brings its own; a resumed run in the directory `path` has its checkpoint."""
    import torch

    from raytrain import order
    from raytrain.models import Model

    if type(e.model).load is Model.load or any((path / "checkpoints").glob("step_*/manifest.json")):
        return None
    torch.manual_seed(order.key(e.seed, 0) >> 1)
    module = e.model.build(e.data.sample(train_index), len(train_index.classes))
    e.model.load(module)
    return module.state_dict()


def _summarise(path: Path, planned: Plan, status: str, error: str | None = None) -> None:
    """Write a summary for a run whose workers could not write one, if storage takes it."""
    if os.path.lexists(path / "summary.json"):
        return
    with contextlib.suppress(OSError, ValueError):
        rows = read_metrics(path / "metrics.jsonl")[0]
        last = rows[-1] if rows else {}
        values = {
            "status": status,
            "epochs": max((row["epoch"] for row in rows if row["kind"] == "epoch"), default=0),
            "steps": last.get("step", 0),
            "workers": planned.experiment.scaling.ranks,
        }
        write_atomically(path / "summary.json", json.dumps(values | ({"error": error} if error else {}), indent=2))
        remote.conclude(path)
