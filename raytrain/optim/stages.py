"""Stages of a training: values that change after some steps, as population-based training changes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from raytrain import config, errors
from raytrain.config import at_least

MUTABLE = ("optimizer", "schedule", "task", "clip_norm", "data.augment")
"""Fields that may change while a run goes on: those that neither the order of samples nor the model depends on."""
AnyExperiment = TypeVar("AnyExperiment", bound=Any)


@dataclass(frozen=True)
class Stage:
    """Values that training has in its beginning, in place of those of its experiment."""

    until: int
    """Optimizer steps of the run after which the stage ends, with the first validation from there on."""
    values: dict[str, Any]
    """The fields that differ, by their dotted paths: `{"optimizer.lr": 0.1}`. They are those of optimizer, schedule,
    task, data.augment, and clip_norm."""
    counts: bool = True
    """Whether its validations may be the best one, whose weights are kept. In trials of PBT and PB2 those do not count
    that a trial has from another: its value is not theirs."""

    def __post_init__(self) -> None:
        config.check(self, until=at_least(1))
        for path in self.values:
            if not changes(path):
                how = f"leave it out; what can change is {errors.listed(MUTABLE)}"
                raise errors.UserError(f"a stage cannot change {path}", "in Stage.values", how)
            if within := [other for other in self.values if other.startswith(f"{path}.")]:
                how = f"leave {within[0]} out, and give {path} that value"
                raise errors.UserError(f"a stage has {path} and {within[0]}, a field of it", "in Stage.values", how)


def changes(path: str) -> bool:
    """Return whether the field at a dotted path may change while a run goes on."""
    return config.is_below(path, *MUTABLE)


def check_stages(experiment: Any) -> None:
    """Check an experiment's stages.

    Raises:
        UserError: they do not follow each other, or a field refuses a value.
    """
    ends = [one.until for one in experiment.stages]
    if ends != sorted({*ends}):
        what, how = f"stages end after {', '.join(map(str, ends))} steps", "let each stage end after the one before it"
        raise errors.UserError(what, "in Experiment.stages", how)
    for end in ends:
        staged(experiment, end - 1)


def staged(experiment: AnyExperiment, step: float) -> tuple[AnyExperiment, int | None]:
    """Return the experiment of the stage that follows so many steps, which has no stages itself, and the steps after
    which the stage ends; None for the last one, which ends with the run."""
    now = next((one for one in experiment.stages if step < one.until), None)
    found = replace(experiment, stages=())
    if now is None:
        return found, None
    for path, value in now.values.items():
        found = config.replace(found, path, value)
    return found, now.until


def uncounted(experiment: Any, step: float) -> int:
    """Return the end of the last stage before a step whose validations do not count; 0 for none."""
    return max((one.until for one in experiment.stages if one.until <= step and not one.counts), default=0)


def switched(before: Any, step: int, after: AnyExperiment, paths: Iterable[str]) -> AnyExperiment:
    """Return an experiment that trains as one does up to a step, and as another from there on.

    Args:
        before: the one.
        after: the other, which differs in the fields at `paths` alone. Its stages do not count.
    """
    last = staged(before, step - 1)[0]
    own = Stage(step, {path: config.get(last, path) for path in paths}, counts=False)
    return replace(after, stages=(*(one for one in before.stages if one.until < step), own))
