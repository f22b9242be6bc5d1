"""Sweeps: axes, objectives, searches and schedulers. A new one of each is one class; `trial` runs on Tune's actors."""

from raytrain.sweep.schedulers import ASHA, PB2, PBT, Complete, HyperBand, MedianStopping, Scheduler
from raytrain.sweep.search import RandomSearch, Search
from raytrain.sweep.space import Axis, Choice, Grid, Int, LogUniform, Uniform
from raytrain.sweep.sweep import Sweep
from raytrain.sweep.tpe import TPE
from raytrain.sweep.tune_callback import TuneCallback
from raytrain.sweep.tune_scheduler import TuneScheduler
from raytrain.sweep.tune_search import TuneSearch

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
    "TuneCallback",
    "TuneScheduler",
    "TuneSearch",
    "Uniform",
]
