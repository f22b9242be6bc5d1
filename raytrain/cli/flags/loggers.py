"""The flag --log, which adds loggers to an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raytrain import errors
from raytrain.experiment import Experiment
from raytrain.loggers import CSVLogger, Logger, MLflow, TensorBoard, WandB

_LOGGERS: dict[str, Logger] = {"tensorboard": TensorBoard(), "csv": CSVLogger(), "mlflow": MLflow(), "wandb": WandB()}


def with_loggers(value: Experiment, names: Sequence[str]) -> Experiment:
    """Return the experiment with the named loggers, each once, after those that it has.

    Raises:
        UserError: no logger has that name.
    """
    loggers = list(value.loggers)
    for name in names:
        if name not in _LOGGERS:
            how = f"{errors.nearest(name, list(_LOGGERS))}they are {errors.listed(list(_LOGGERS))}"
            raise errors.UserError(f"there is no logger {name!r}", "in --log", how)
        if _LOGGERS[name] not in loggers:
            loggers.append(_LOGGERS[name])
    return replace(value, loggers=tuple(loggers)) if names else value
