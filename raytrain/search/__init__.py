"""Sweeps: axes, objectives, searches and schedulers. A new one of each is one class; `trial` runs on Tune's actors."""

from raytrain.search.base import RandomSearch, Search
from raytrain.search.schedulers import ASHA, PB2, PBT, Complete, HyperBand, MedianStopping, Scheduler
from raytrain.search.space import Axis, Choice, Grid, Int, LogUniform, Uniform
from raytrain.search.sweep import Sweep
from raytrain.search.tpe import TPE

__all__ = [
    "ASHA",
    "PB2",
    "PBT",
    "TPE",
    "Axis",
    "Choice",
    "Complete",
    "Grid",
    "HyperBand",
    "Int",
    "LogUniform",
    "MedianStopping",
    "RandomSearch",
    "Scheduler",
    "Search",
    "Sweep",
    "Uniform",
]
