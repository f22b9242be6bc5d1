"""Hooks: what a user adds to training without changing the trainer."""

from __future__ import annotations

from raytrain.hooks.base import Hook

__all__ = ["Hook"]
