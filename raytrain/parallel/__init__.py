"""Parallel strategies: how a plain module is spread over the workers. A new one is one new file here."""

from raytrain.parallel.base import Parallel
from raytrain.parallel.ddp import DDP

__all__ = ["DDP", "Parallel"]
