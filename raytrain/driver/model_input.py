"""Settings of the data that a model's weights were trained with, where the user has not set them."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import Any

from raytrain.data import Data, Field
from raytrain.experiment import Experiment


def sized(e: Experiment) -> Experiment:
    """Return the experiment with the size of images that its weights were trained on, and how these were resized."""
    if not e.data.resizes:
        return e
    wanted = e.model.weights_input()
    data = _taken(e.data, {name: wanted[name] for name in ("size", "crop") if name in wanted}, needs="size")
    data = _taken(data, {name: wanted[name] for name in ("interpolation",) if name in wanted}, needs="interpolation")
    return replace(e, data=data) if data is not e.data else e


def normalised(e: Experiment, image: Field) -> Experiment:
    """Return the experiment with the mean and the standard deviation of its weights; for images of another number of
    channels, with their means over the channels."""
    wanted = {name: value for name, value in e.model.weights_input().items() if name in ("mean", "std")}
    if not wanted or image.kind != "image":
        return e
    if any(len(values) != image.shape[0] for values in wanted.values()):
        wanted = {name: (round(sum(values) / len(values), 6),) for name, values in wanted.items()}
    data = _taken(e.data, wanted, needs="mean")
    return replace(e, data=data) if data is not e.data else e


def notes(before: Data, after: Data) -> list[str]:
    """Return what the plan says about settings that were taken."""
    changed = {name: value for name, value in vars(after).items() if value != getattr(before, name)}
    if not changed:
        return []
    listed = ", ".join(f"{name} {_shown(value)}" for name, value in changed.items())
    return [f"the data takes from the model's weights: {listed} (--data.{next(iter(changed))} sets another)"]


def _taken(data: Data, wanted: dict[str, Any], needs: str) -> Data:
    """Return the data with other values, if it has these fields and all of them are unset: at their defaults.

    Args:
        needs: the field without which the values mean nothing.
    """
    defaults = {field.name: field.default for field in fields(data)}
    wanted = {name: value for name, value in wanted.items() if name in defaults}
    unset = all(defaults[name] is not MISSING and getattr(data, name) == defaults[name] for name in wanted)
    return replace(data, **wanted) if wanted and unset and needs in wanted else data


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
