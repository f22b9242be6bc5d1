"""raytrain: Ray-orchestrated distributed training for PyTorch vision models.

Declare an experiment once, as a value; run it on a laptop, a GPU box or a Ray cluster::

    from raytrain import CNN, MNIST, SGD, Cosine, Experiment, train

    run = train(Experiment(model=CNN(), data=MNIST(root="data/mnist"), optimizer=SGD(lr=0.05), epochs=3))
    run.summary, run.metrics(), run.model()
"""

from __future__ import annotations

from raytrain.driver import guard as _guard  # noqa: F401  (takes the command's signals before the imports below)

# isort: split
from raytrain.cli.functions import evaluate, predict, resume, runs, sweep, train
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

__version__ = _VERSION

__all__ = [
    "ASHA",
    "AUROC",
    "CNN",
    "DDP",
    "F1",
    "FSDP",
    "MAE",
    "MLP",
    "MNIST",
    "PB2",
    "PBT",
    "R2",
    "RMSE",
    "SGD",
    "TPE",
    "Adam",
    "AdamW",
    "AugMix",
    "Augment",
    "AveragePrecision",
    "BadSample",
    "Balanced",
    "BalancedAccuracy",
    "Batch",
    "CSVLogger",
    "Checkpoint",
    "Choice",
    "Classification",
    "ColorJitter",
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
    "GaussianBlur",
    "GradientNorm",
    "Grid",
    "Held",
    "History",
    "Hook",
    "HorizontalFlip",
    "HyperBand",
    "ImageFolder",
    "Images",
    "Index",
    "Int",
    "IoU",
    "LearningRates",
    "LinearLR",
    "LogUniform",
    "Logger",
    "MLflow",
    "Manifest",
    "MaskFolder",
    "MedianStopping",
    "Metric",
    "Mixed",
    "Model",
    "ModelParallel",
    "MultiLabel",
    "MultiStepLR",
    "OneCycle",
    "Operation",
    "Optimizer",
    "Packed",
    "Parallel",
    "Pipeline",
    "Plateau",
    "PolynomialLR",
    "Precision",
    "Progressive",
    "RandAugment",
    "RandomAffine",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSearch",
    "Recall",
    "Regression",
    "Run",
    "RunInfo",
    "SampleImages",
    "Sampler",
    "Scaling",
    "Schedule",
    "Segmentation",
    "SequentialLR",
    "SimpleModel",
    "Stage",
    "StepLR",
    "StopOnDivergence",
    "Supervised",
    "Sweep",
    "SweepRun",
    "SystemMetrics",
    "Task",
    "TensorBoard",
    "TensorParallel",
    "Timm",
    "TorchData",
    "TorchMetric",
    "TorchModel",
    "TorchOptimizer",
    "TorchSchedule",
    "Torchvision",
    "TrivialAugmentWide",
    "TuneCallback",
    "TuneScheduler",
    "TuneSearch",
    "Uniform",
    "UpdateRatio",
    "UserError",
    "VerticalFlip",
    "WandB",
    "WarmUp",
    "WebDataset",
    "Weighted",
    "evaluate",
    "load_experiment",
    "predict",
    "resume",
    "runs",
    "sweep",
    "train",
]
