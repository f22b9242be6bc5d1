"""Loggers: what follows a run or a sweep in the driver, such as the terminal or an experiment tracker."""

from __future__ import annotations

from raytrain.loggers.base import Held, Logger, RunInfo, check_loggers
from raytrain.loggers.csv_files import CSVLogger
from raytrain.loggers.mlflow import MLflow
from raytrain.loggers.tensorboard import TensorBoard
from raytrain.loggers.wandb import WandB

__all__ = ["CSVLogger", "Held", "Logger", "MLflow", "RunInfo", "TensorBoard", "WandB", "check_loggers"]
