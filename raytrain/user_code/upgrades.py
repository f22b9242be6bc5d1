"""Saved experiments of older versions: their values as this version has them."""

from __future__ import annotations

from typing import Any


def upgrade(values: Any) -> Any:
    """Return the JSON values of an experiment, or of anything that holds some, with the names of this version."""
    if isinstance(values, list):
        return [upgrade(item) for item in values]
    if not isinstance(values, dict):
        return values
    values = {name: upgrade(value) for name, value in values.items()}
    if isinstance(values.get("deterministic"), bool) and "parallel" in values:  # 0.1: a field beside DDP
        if values.pop("deterministic"):
            reduction = values["parallel"].get("reduction", "auto")
            values["parallel"] = {"class": "raytrain:Deterministic", "reduction": reduction}
    return values
