"""raytrain: Ray-orchestrated distributed training for PyTorch vision models.

Declare an experiment once, as a value; run it on a laptop, a GPU box or a Ray cluster::

    from raytrain import CNN, MNIST, SGD, Cosine, Experiment, train

    run = train(Experiment(model=CNN(), data=MNIST(root="data/mnist"), optimizer=SGD(lr=0.05), epochs=3))
    run.summary, run.metrics(), run.model()
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from raytrain.driver import guard as _guard  # noqa: F401  (takes the command's signals before the imports below)

# isort: split
from raytrain import config as _config
from raytrain.data import (
    MNIST,
    Augment,
    AugMix,
    Balanced,
    Batch,
    ColorJitter,
    Data,
    Digits,
    Field,
    Folds,
    GaussianBlur,
    HorizontalFlip,
    ImageFolder,
    Images,
    Index,
    Manifest,
    MaskFolder,
    Mixed,
    Operation,
    Packed,
    Progressive,
    RandAugment,
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomResizedCrop,
    RandomRotation,
    Sampler,
    TorchData,
    TrivialAugmentWide,
    VerticalFlip,
    WebDataset,
    Weighted,
)
from raytrain.errors import BadSample, UserError
from raytrain.experiment import Checkpoint, Experiment, Scaling
from raytrain.hooks import (
    GradientNorm,
    Hook,
    LearningRates,
    SampleImages,
    StopOnDivergence,
    SystemMetrics,
    UpdateRatio,
)
from raytrain.loggers import CSVLogger, Held, Logger, MLflow, RunInfo, TensorBoard, WandB
from raytrain.models import CNN, MLP, Model, SimpleModel, Timm, TorchModel, Torchvision
from raytrain.optim.combined import SequentialLR, WarmUp
from raytrain.optim.optimizers import SGD, Adam, AdamW, Optimizer
from raytrain.optim.schedules import (
    Constant,
    Cosine,
    CosineRestarts,
    ExponentialLR,
    History,
    LinearLR,
    MultiStepLR,
    OneCycle,
    PolynomialLR,
    Schedule,
    StepLR,
)
from raytrain.optim.stages import Stage
from raytrain.optim.torch_optimizer import TorchOptimizer
from raytrain.optim.torch_schedule import Plateau, TorchSchedule
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
from raytrain.run.experiment_file import load as load_experiment
from raytrain.run.experiment_file import refuse_while_loading as _refuse_while_loading
from raytrain.run.run import Run
from raytrain.run.version import VERSION as _VERSION
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
    TuneCallback,
    TuneScheduler,
    TuneSearch,
    Uniform,
)
from raytrain.sweep.sweep_run import SweepRun
from raytrain.tasks.calibration import ExpectedCalibrationError
from raytrain.tasks.classification import Classification
from raytrain.tasks.counts import F1, BalancedAccuracy, Dice, IoU, Precision, Recall
from raytrain.tasks.curves import AUROC, AveragePrecision
from raytrain.tasks.distances import MAE, R2, RMSE
from raytrain.tasks.distillation import Distillation
from raytrain.tasks.metric import Metric
from raytrain.tasks.multilabel import MultiLabel
from raytrain.tasks.regression import Regression
from raytrain.tasks.segmentation import Segmentation
from raytrain.tasks.supervised import Supervised
from raytrain.tasks.task import Task
from raytrain.tasks.torch_metric import TorchMetric
from raytrain.user_code import scripts as _scripts

__version__ = _VERSION

__all__ = [
    "ASHA",
    "AUROC",
    "CNN",
    "CSVLogger",
    "DDP",
    "F1",
    "FSDP",
    "MAE",
    "MLP",
    "MLflow",
    "MNIST",
    "PB2",
    "PBT",
    "R2",
    "RMSE",
    "Progressive",
    "SGD",
    "TPE",
    "Adam",
    "AdamW",
    "Augment",
    "AveragePrecision",
    "BadSample",
    "Balanced",
    "BalancedAccuracy",
    "Batch",
    "Checkpoint",
    "Choice",
    "Classification",
    "Complete",
    "Constant",
    "Cosine",
    "CosineRestarts",
    "Data",
    "DataParallel",
    "Deterministic",
    "Dice",
    "Digits",
    "Distillation",
    "ExpectedCalibrationError",
    "Experiment",
    "ExponentialLR",
    "Field",
    "Folds",
    "GradientNorm",
    "Grid",
    "Held",
    "History",
    "Hook",
    "HyperBand",
    "ImageFolder",
    "Images",
    "Index",
    "Int",
    "LearningRates",
    "LinearLR",
    "LogUniform",
    "Logger",
    "MedianStopping",
    "Mixed",
    "Model",
    "ModelParallel",
    "MultiStepLR",
    "IoU",
    "Manifest",
    "MaskFolder",
    "Metric",
    "MultiLabel",
    "OneCycle",
    "Optimizer",
    "Packed",
    "Parallel",
    "Pipeline",
    "Plateau",
    "PolynomialLR",
    "Precision",
    "RandomSearch",
    "Recall",
    "Regression",
    "Run",
    "RunInfo",
    "SampleImages",
    "Sampler",
    "Scaling",
    "Schedule",
    "SequentialLR",
    "Segmentation",
    "SimpleModel",
    "Stage",
    "StepLR",
    "StopOnDivergence",
    "SystemMetrics",
    "Supervised",
    "Sweep",
    "SweepRun",
    "Task",
    "TensorBoard",
    "TensorParallel",
    "Timm",
    "TorchData",
    "WebDataset",
    "TorchMetric",
    "TorchModel",
    "TorchOptimizer",
    "TorchSchedule",
    "Torchvision",
    "TuneCallback",
    "TuneScheduler",
    "TuneSearch",
    "Uniform",
    "UpdateRatio",
    "UserError",
    "WandB",
    "WarmUp",
    "Weighted",
    "load_experiment",
    "resume",
    "sweep",
    "train",
    "AugMix",
    "ColorJitter",
    "GaussianBlur",
    "HorizontalFlip",
    "Operation",
    "RandAugment",
    "RandomAffine",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomResizedCrop",
    "RandomRotation",
    "TrivialAugmentWide",
    "VerticalFlip",
]


def train(
    experiment: Experiment,
    *,
    out: str = "runs",
    name: str | None = None,
    address: str | None = None,
    loggers: Sequence[Logger] = (),
    quiet: bool = False,
    report: bool = True,
    verbose: bool = False,
) -> Run:
    """Train an experiment, as `raytrain train` does.

    Args:
        experiment: what to train.
        out: folder or URL in which the run's directory is made.
        name: the directory's name; by default a number.
        address: a running Ray cluster; by default RAY_ADDRESS, an initialised Ray, or this machine alone.
        loggers: follow the run besides the experiment's loggers, which alone are called again by `raytrain resume`.
        quiet: print nothing.
        report: write report.html at the end.
        verbose: show Ray's own messages.

    Returns:
        The run: `summary`, `metrics()`, `model()`.

    Raises:
        UserError: the experiment cannot be run; nothing has been started.
        raytrain.driver.endings.RunFailed: the run started and failed.
        raytrain.driver.endings.Interrupted: a signal asked the run to stop.
    """
    started = time.time()
    _refuse_while_loading()
    command, _ = _commands()
    options = command.Options(out, name, address, report=report, verbose=verbose, quiet=quiet)
    run = command.trained(experiment, options, _scripts.file_of(experiment), started, loggers)
    assert run is not None
    return run


def resume(
    run: Run | Path | str,
    *,
    experiment: Path | str | None = None,
    address: str | None = None,
    loggers: Sequence[Logger] = (),
    quiet: bool = False,
    report: bool = True,
    verbose: bool = False,
    **changes: object,
) -> Run:
    """Resume a run from its newest checkpoint, as `raytrain resume` does.

    Args:
        run: the run or its directory.
        experiment: the corrected experiment file: use it and the modules that it imports in place of the run's copies.
        loggers: follow the run too. A logger with the same field values as in an earlier command continues there.
        changes: fields to change, such as `epochs=5`; a dotted path is given as `**{"scaling.workers": 4}`.

    Raises:
        UserError: the run is complete or still running, or a resumed run cannot make the change.
    """
    started = time.time()
    _refuse_while_loading()
    command, _ = _commands()
    run = Run(run.where if isinstance(run, Run) else run)
    correction = command.Correction(run, Path(experiment)) if experiment else None
    value = correction.experiment if correction else run.experiment
    for path, change in changes.items():
        value = _config.replace(value, path, change)
    options = command.Options(address=address, report=report, verbose=verbose, quiet=quiet)
    return command.resumed(run, value, options, correction, started, loggers)


def sweep(
    value: Sweep | SweepRun | Path | str,
    *,
    out: str = "runs",
    name: str | None = None,
    address: str | None = None,
    loggers: Sequence[Logger] = (),
    quiet: bool = False,
    report: bool = True,
    verbose: bool = False,
    **changes: object,
) -> SweepRun:
    """Run a sweep, or go on with the one of a directory, as `raytrain sweep` does.

    Args:
        value: the sweep; or one that was begun, or its directory or URL. `out` and `name` are for a new sweep.
        loggers: follow the sweep as a whole; the experiment's loggers follow each trial.
        out, name, address, quiet, report, verbose: as for `train`.
        changes: fields to change, such as `trials=30`, as for `resume`.

    Returns:
        The sweep; `SweepRun(DIR)` opens it again.

    Raises:
        UserError: the sweep cannot be run, or a begun one cannot make the change; nothing has been started.
        raytrain.driver.endings.Interrupted: a signal asked the sweep to stop.
    """
    started = time.time()
    _refuse_while_loading()
    _, command = _commands()
    options = command.Options(out, name, address, report=report, verbose=verbose, quiet=quiet)
    path, wanted = command.begun(value)
    for field, change in changes.items():
        wanted = _config.replace(wanted, field, change)
    _scripts.check_in_files(wanted)
    source = None if path else _scripts.file_of(wanted.experiment)
    done = command.swept(wanted, options, source, started, loggers, path)
    assert done is not None
    return done


def _commands():
    """Return the modules of the commands train and sweep, imported late: they import torch."""
    from raytrain.cli import sweep, train

    return train, sweep
