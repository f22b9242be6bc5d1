"""Whether a run is long enough for what its experiment asks for, and its CPUs for its threads."""

from __future__ import annotations

import pytest

from raytrain import CNN, Digits, Experiment, Scaling, UserError
from raytrain.driver import length, sizing
from raytrain.driver.resources import Node, Resources


@pytest.mark.parametrize(
    ("decay", "steps", "says"),
    [
        (
            0.9999,
            36,
            "100% of the averaged weights are those of the first step, to the end of the run; after 36 steps ",
        ),
        (0.999, 1_000, "37% of the averaged weights"),
        (0.999, 5, "100% of the averaged weights are those of the first step, to the end of the run"),
        (0.999, 10_000, ""),
        (0.9, 30, ""),
    ],
)
def test_an_average_of_little_but_the_first_weights_is_noted(decay: float, steps: int, says: str) -> None:
    e = Experiment(CNN(), Digits(), ema_decay=decay, steps=steps)
    found = length.check(e, 10, -(-steps // 10))
    assert len(found) == bool(says) and all(note.startswith(says) for note in found)
    if "; after" in "".join(found):
        less = float(found[0].partition("--ema_decay ")[2].partition(" ")[0])
        assert less ** (steps - 1) < 0.01
    assert ("--ema_decay" in "".join(found)) == (bool(says) and steps > 20)


def test_a_run_that_ends_too_early_is_noted_or_refused() -> None:
    e = Experiment(CNN(), Digits(), epochs=2, unfreeze_epoch=2)
    assert length.check(e, 10, 2) == ["the last layer alone is trained: unfreeze_epoch is 2, after the end"]
    assert length.check(e, 10, 3) == []
    e = Experiment(CNN(), Digits(), steps=25, swa_start_epoch=3)
    with pytest.raises(UserError, match="swa_start_epoch is 3 and the run has 2 whole epochs"):
        length.check(e, 10, 3)


def test_threads_that_others_cores_would_serve_are_noted() -> None:
    shared, here = (Resources((Node("n", 4, 0, 2**34),), where) for where in ("10.0.0.1:6379", "this machine"))

    def said(resources: Resources, scaling: Scaling = Scaling()) -> list[str]:
        return sizing.notes(sizing.scaled(scaling, resources, None, streams=False), resources)

    (note,) = said(shared)
    assert note.startswith("a worker reserves 1 CPU and computes with 4 threads")
    assert "--scaling.cpus_per_worker 4 reserves them" in note
    assert said(here) == said(shared, Scaling(cpus_per_worker=4)) == said(shared, Scaling(threads_per_worker=1)) == []
    assert said(shared, Scaling(workers=4)) == [], "a core for each"
