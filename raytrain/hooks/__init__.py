"""Hooks: what a user adds to training without changing the trainer."""

from __future__ import annotations

from raytrain.hooks.base import Hook
from raytrain.hooks.gradient_norm import GradientNorm
from raytrain.hooks.learning_rates import LearningRates
from raytrain.hooks.sample_images import SampleImages
from raytrain.hooks.stop_on_divergence import StopOnDivergence
from raytrain.hooks.system_metrics import SystemMetrics
from raytrain.hooks.update_ratio import UpdateRatio

__all__ = ["GradientNorm", "Hook", "LearningRates", "SampleImages", "StopOnDivergence", "SystemMetrics", "UpdateRatio"]
