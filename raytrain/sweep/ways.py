"""The ways to read the data: what decides how a trial reads them, and which ways the trials of a sweep have."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from raytrain import config, errors
from raytrain.data import Field
from raytrain.driver import model_input
from raytrain.experiment import Experiment
from raytrain.models import Model
from raytrain.sweep import record
from raytrain.sweep.space import Axis, combinations, present
from raytrain.sweep.sweep import ENUMERABLE, Sweep

_CROSSED = 1_000
"""Combinations up to which fields of models are tried, which takes seconds."""
_COLOUR = Field("image", (3, 1, 1), kind="image")
"""Stands for images whose channels are not known yet."""


def way(one: Experiment) -> str:
    """Return what decides what a trial reads, before its samples are known: as `record.reads`, with the settings that
    the data take from the weights of its model."""
    sized = model_input.sized(replace(one, data=one.data.absolute()))
    return record.reads(model_input.normalised(sized, _COLOUR))


def with_conditions(chosen: Iterable[Axis], axes: tuple[Axis, ...]) -> list[Axis]:
    """Return the chosen axes and those that their conditions need, in the order of all axes."""
    by_path, paths, wanted = {axis.path: axis for axis in axes}, set[str](), [axis.path for axis in chosen]
    while wanted:
        paths.add(path := wanted.pop())
        when = by_path[path].when
        if when and when[0] not in paths:
            wanted.append(when[0])
    return [axis for axis in axes if axis.path in paths]


def found(value: Sweep) -> dict[str, list[Experiment]]:
    """Return experiments for each way in which trials read the data, by `way`: one of each model that may decide it.

    Raises:
        UserError: an axis of the data has an unknown number of values.
    """
    deciding = _deciding(value)
    paths, refused = {axis.path for axis in deciding}, set[str]()
    ways, known = dict[str, dict[str, Experiment]](), dict[str, str]()
    firsts = {axis.path: axis.examples()[0] for axis in value.axes}

    def add(values: dict[str, Any], repeat: int = 0) -> bool:
        try:
            one = value.trial(values, repeat)
            read = repr((type(one.data), config.to_dict(one.data), one.model.weights_input()))
            if read not in known:  # it takes longer than to make a trial
                known[read] = way(one)
            ways.setdefault(known[read], {}).setdefault(repr(one.model), one)
            return not value.by_fold or repeat + 1 == value.repeats or add(values, repeat + 1)
        except errors.UserError:
            return False

    for values in combinations(deciding):
        if not add(present(value.axes, firsts | values)) and not add(values):
            refused.add(repr(values))
    if refused and _count(value.axes) <= ENUMERABLE:  # they may be valid beside other values than the first
        for values in combinations(value.axes):
            part = repr({path: one for path, one in values.items() if path in paths})
            if part in refused and add(present(value.axes, firsts | values)):
                refused.remove(part)
            if not refused:
                break
    return {key: [*of_models.values()] for key, of_models in ways.items()}


def _deciding(value: Sweep) -> list[Axis]:
    """Return the axes that decide what is read: those of the data, those of models whose weights may set the data's
    fields, and those that their conditions need.

    Raises:
        UserError: an axis of the data has an unknown number of values.
    """
    axes = value.axes
    data = [one for one in axes if config.is_below(one.path, "data") and not config.is_below(one.path, "data.augment")]
    for axis in data:
        if axis.finite is None:
            raise errors.UserError(
                f"axis {axis.path} decides what is read, and must have a finite number of values",
                "in Sweep.axes",
                "make it a Grid or a Choice",
            )
    found = with_conditions(data, axes)
    models = [axis for axis in axes if config.is_below(axis.path, "model") and axis.finite is not None]
    objects = (one for axis in models for one in axis.finite or () if axis.path == "model")
    if all(type(one).weights_input is Model.weights_input for one in (value.experiment.model, *objects)):
        return found
    for axis in sorted(models, key=_rank):
        more = with_conditions([*found, axis], axes)
        if axis.path == "model" or _count(more) <= _CROSSED:
            found = more
    return found


def _rank(axis: Axis) -> int:
    """Return the place of a model's axis among those that may decide what weights give, the likeliest first: which
    model it is, then names and switches, then numbers."""
    return 0 if axis.path == "model" else 1 + any(type(one) in (int, float) for one in axis.finite or ())


def _count(axes: Iterable[Axis]) -> int:
    """Return how many combinations the finite axes have, where all exist beside each other."""
    return math.prod(len(axis.finite) for axis in axes if axis.finite is not None)
