"""raytrain: Ray-orchestrated distributed training for PyTorch vision models.

Declare an experiment once, as a value; run it on a laptop, a GPU box or a Ray cluster::

    from raytrain import CNN, MNIST, SGD, Cosine, Experiment, train

    run = train(Experiment(model=CNN(), data=MNIST(root="data/mnist"), optimizer=SGD(lr=0.05), epochs=3))
    run.summary, run.metrics(), run.model()
"""

from __future__ import annotations

from raytrain.driver import guard as _guard  # noqa: F401  (takes the command's signals before the imports below)

__version__ = "0.1.0"

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raytrain import config as _config
from raytrain.data import MNIST, Augment, Batch, Data, Digits, Field, ImageFolder, Index
from raytrain.errors import BadSample, UserError
from raytrain.experiment import Checkpoint, Experiment, Scaling
from raytrain.experiment_file import load as load_experiment
from raytrain.experiment_file import refuse_while_loading as _refuse_while_loading
from raytrain.hooks import Hook
from raytrain.loggers import Held, Logger, RunInfo
from raytrain.models import CNN, MLP, Model, SimpleModel, Torchvision
from raytrain.optim.optimizers import SGD, Adam, AdamW, Optimizer
from raytrain.optim.schedules import Constant, Cosine, OneCycle, Schedule, StepLR
from raytrain.parallel import (
    DDP,
    FSDP,
    DataParallel,
    Deterministic,
    ModelParallel,
    Parallel,
    Pipeline,
    TensorParallel,
)
from raytrain.run.run import Run
from raytrain.sweep import (
    ASHA,
    PB2,
    PBT,
    TPE,
    Choice,
    Complete,
    Grid,
    HyperBand,
    Int,
    LogUniform,
    MedianStopping,
    RandomSearch,
    Sweep,
    Uniform,
)
from raytrain.tasks.classification import Classification
from raytrain.tasks.task import Task
from raytrain.user_code import sources as _sources

if TYPE_CHECKING:
    from raytrain.sweep.sweep_run import SweepRun

__all__ = [
    "ASHA",
    "CNN",
    "DDP",
    "FSDP",
    "MLP",
    "MNIST",
    "PB2",
    "PBT",
    "SGD",
    "TPE",
    "Adam",
    "AdamW",
    "Augment",
    "BadSample",
    "Batch",
    "Checkpoint",
    "Choice",
    "Classification",
    "Complete",
    "Constant",
    "Cosine",
    "Data",
    "DataParallel",
    "Deterministic",
    "Digits",
    "Experiment",
    "Field",
    "Grid",
    "Held",
    "Hook",
    "HyperBand",
    "ImageFolder",
    "Index",
    "Int",
    "LogUniform",
    "Logger",
    "MedianStopping",
    "Model",
    "ModelParallel",
    "OneCycle",
    "Optimizer",
    "Parallel",
    "Pipeline",
    "RandomSearch",
    "Run",
    "RunInfo",
    "Scaling",
    "Schedule",
    "SimpleModel",
    "StepLR",
    "Sweep",
    "Task",
    "TensorParallel",
    "Torchvision",
    "Uniform",
    "UserError",
    "load_experiment",
    "resume",
    "sweep",
    "train",
]


def train(
    experiment: Experiment,
    *,
    out: str = "runs",
    name: str | None = None,
    address: str | None = None,
    loggers: Sequence[Logger] = (),
    quiet: bool = False,
    verbose: bool = False,
) -> Run:
    """Trains an experiment, as `raytrain train` does.

    Args:
        experiment: what to train.
        out: folder in which the run's directory is made.
        name: the directory's name; by default a number is given.
        address: a running Ray cluster; by default RAY_ADDRESS, an initialised Ray, or this machine alone.
        loggers: follow the run besides the experiment's, which `raytrain resume` calls again; these it does not.
        quiet: print nothing.
        verbose: show Ray's own messages.

    Returns:
        The run: `summary`, `metrics()`, `model()`.

    Raises:
        UserError: the experiment cannot be run; nothing has been started.
        raytrain.driver.fit.RunFailed: it started and failed.
        raytrain.driver.fit.Interrupted: it was asked to stop.
    """
    from raytrain.driver import fit
    from raytrain.driver.observe import watched

    started = time.time()
    _refuse_while_loading()
    with watched(_console(quiet), (*experiment.loggers, *loggers)) as observer:
        run = fit.train(
            experiment, fit.Options(out, name, address, verbose=verbose), observer, _source(experiment), started
        )
    assert run is not None
    return run


def resume(
    run: Run | Path | str,
    *,
    experiment: Path | str | None = None,
    address: str | None = None,
    loggers: Sequence[Logger] = (),
    quiet: bool = False,
    verbose: bool = False,
    **changes: object,
) -> Run:
    """Goes on with a run from its newest checkpoint, as `raytrain resume` does.

    Args:
        run: the run or its directory.
        experiment: the corrected experiment file, to go on with it and what it imports in place of the run's own code.
        loggers: follow the run besides the experiment's; one of the same values as in an earlier command goes on there.
        changes: fields to change, such as `epochs=5`; a dotted path is given as `**{"scaling.workers": 4}`.

    Raises:
        UserError: it is complete or still running, or a change is not one that a resumed run can make.
    """
    from raytrain.driver import fit
    from raytrain.driver.observe import watched
    from raytrain.driver.resumption import Correction

    started = time.time()
    _refuse_while_loading()
    run = Run(run.where if isinstance(run, Run) else run)
    correction = Correction(run, Path(experiment)) if experiment else None
    value = correction.experiment if correction else run.experiment
    for path, change in changes.items():
        value = _config.replace(value, path, change)
    options = fit.Options(address=address, verbose=verbose)
    with watched(_console(quiet), (*value.loggers, *loggers)) as observer:
        return fit.resume(run, value, options, observer, started, correction)


def sweep(
    value: Sweep,
    *,
    out: str = "runs",
    name: str | None = None,
    address: str | None = None,
    loggers: Sequence[Logger] = (),
    quiet: bool = False,
    verbose: bool = False,
) -> SweepRun:
    """Runs a sweep, as `raytrain sweep` does.

    Args:
        value: what to try.
        out: folder in which the sweep's directory is made.
        name: the directory's name; by default a number is given.
        address: a running Ray cluster; by default RAY_ADDRESS, an initialised Ray, or this machine alone.
        loggers: follow the sweep as a whole; those of its experiment follow each trial.
        quiet: print nothing.
        verbose: show Ray's own messages.

    Returns:
        The sweep: `trials`, `best` (a run), `answer`.

    Raises:
        UserError: the sweep cannot be run; nothing has been started.
        raytrain.driver.fit.Interrupted: it was asked to stop.
    """
    from raytrain.driver import fit
    from raytrain.driver.observe import watched
    from raytrain.sweep import driver

    started = time.time()
    _refuse_while_loading()
    with watched(_table(quiet), loggers) as observer:
        done = driver.sweep(
            value, fit.Options(out, name, address, verbose=verbose), observer, _source(value.experiment), started
        )
    assert done is not None
    return done


def _console(quiet: bool) -> Logger:
    if quiet:
        return Logger()
    from raytrain.report.console import Console

    return Console()


def _table(quiet: bool) -> Logger:
    if quiet:
        return Logger()
    from raytrain.report.sweep import Table

    return Table()


def _source(experiment: Experiment) -> Path | None:
    """The user's file that the experiment comes from, by its classes."""
    found = _sources.use(experiment)
    first = (found.experiment or next(iter(found.modules.values()))) if found else None
    return Path(first.origin) if first else None
