"""`raytrain train RUN`: a run is not trained anew without a word."""

from __future__ import annotations

import pytest
from helpers.commands import fails, finished, without_ray

from raytrain import Run

__all__ = ["finished", "without_ray"]


@pytest.mark.usefixtures("without_ray")
def test_a_run_is_no_experiment_file(finished: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ((), ("--dry_run",), ("--epochs", "3")):
        said = fails(capsys, "train", finished.path, *more)
        assert f"this is a run, and no experiment file, {finished.path}; `raytrain resume" in said
        assert f"`raytrain train {finished.path}/experiment.json` begins anew" in said
