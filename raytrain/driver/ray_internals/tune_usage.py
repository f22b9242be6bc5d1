"""Start Ray Tune without importing every tracker that is installed."""

from __future__ import annotations

from collections.abc import Sequence

from ray.air._internal import usage


def count_no_callbacks() -> None:
    """Keep Tune from counting its user's callbacks for Ray's usage statistics: to compare them with its own loggers it
    imports mlflow, wandb, comet and aim, where they are installed, which takes seconds at the start of each sweep."""
    usage.tag_callbacks = _none


def _none(callbacks: Sequence[object] | None) -> bool:
    """Nothing was counted."""
    return False
