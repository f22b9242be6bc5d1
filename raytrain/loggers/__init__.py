"""Loggers: what follows a run or a sweep in the driver, such as the terminal or an experiment tracker."""

from __future__ import annotations

from raytrain.loggers.base import Held, Logger, RunInfo

__all__ = ["Held", "Logger", "RunInfo"]
