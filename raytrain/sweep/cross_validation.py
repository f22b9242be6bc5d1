"""The runs of a cross-validation that has ended."""

from __future__ import annotations

import os
from pathlib import Path

from raytrain import errors
from raytrain.data.folds import AXIS
from raytrain.files import is_url, known_json
from raytrain.run.lock import held
from raytrain.run.run import Run, of_folds
from raytrain.sweep import at_url, record
from raytrain.sweep.sweep_run import SweepRun


def opened(place: str, split: str | None = None, root: str | None = None) -> Run | dict[int, Run]:
    """Return the run of a directory or URL, or the runs of a cross-validation, by fold.

    Args:
        split, root: of the samples that are asked for, as for `inference.evaluate`.

    Raises:
        UserError: there is neither, a fold has not been trained to its end, or a cross-validation as a whole has no
            answers for those samples.
    """
    path = at_url.opened(place) if is_url(place) else Path(place)
    if path is None or not os.path.isfile(path / "sweep.json"):
        return Run(place)
    if not of_folds(known_json(path / "sweep.json")):
        return Run(place)  # which says that a sweep is no run
    sweep = SweepRun(path)
    if split == "train" or root is not None:
        what = "the folds of a cross-validation answer for its own split val or test, or for images"
        raise errors.UserError(what, place, f"use the model of a fold for other samples: {place}/trials/0000")
    trials, one = sweep.trials, f"take a run in {place}/trials"
    # A killed driver leaves its trials as they were; that of a sweep at a URL may be on another machine.
    dead = not is_url(place) and not held(path)
    go_on = f"{'' if dead else 'wait for it, or '}go on with {errors.command('sweep', place)}"
    if not trials:
        raise errors.UserError("no fold has begun", place, go_on)
    for trial in trials:
        if (status := trial["status"]) not in ("completed", "stopped"):
            over = status in record.ENDED
            status = "not trained to its end, and nothing trains it" if dead and not over else status
            what = f"fold {trial['values'][AXIS]} is {status}, so that nothing has been said of its samples"
            raise errors.UserError(what, place, one if over else f"{go_on}, or {one}")
    found = sorted((trial["values"][AXIS], trial["number"]) for trial in trials)
    folds = {fold: Run(sweep.run_at(number)) for fold, number in found}
    count = next(iter(folds.values())).experiment.data.folds.count
    there = [fold for fold, _ in found]
    if there != [*range(count)]:
        what = f"the trials are not each fold of 0 to {count - 1} once, but {errors.listed(there)}"
        raise errors.UserError(what, place, f"{go_on}, or {one}" if {*range(count)} - {*there} else one)
    return folds
