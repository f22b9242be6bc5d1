"""Parallel strategies: how a plain module is spread over the workers.

A new one is a new file here and a name in `STRATEGIES`.
"""

from raytrain.parallel.base import Parallel
from raytrain.parallel.data_parallel import DataParallel
from raytrain.parallel.ddp import DDP
from raytrain.parallel.deterministic import Deterministic
from raytrain.parallel.fsdp import FSDP
from raytrain.parallel.model_parallel import ModelParallel
from raytrain.parallel.pipeline import Pipeline
from raytrain.parallel.tensor import TensorParallel

STRATEGIES: dict[str, type[Parallel]] = {
    "ddp": DDP,
    "deterministic": Deterministic,
    "data_parallel": DataParallel,
    "model_parallel": ModelParallel,
    "fsdp": FSDP,
    "pipeline": Pipeline,
    "tensor": TensorParallel,
}
"""The values of the command line's `--parallel.strategy`."""

__all__ = [
    "DDP",
    "FSDP",
    "STRATEGIES",
    "DataParallel",
    "Deterministic",
    "ModelParallel",
    "Parallel",
    "Pipeline",
    "TensorParallel",
]
