"""A prediction in parts for people: one line while it goes on, one at its end."""

from __future__ import annotations

import contextlib

from raytrain.report.progress import progress
from raytrain.tools import batch_predict


class Bar(contextlib.AbstractContextManager["Bar"]):
    """On a terminal, a bar of the images that are written."""

    def __init__(self) -> None:
        self._progress = progress("predict")
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def follow(self, now: batch_predict.Progress) -> None:
        """Move the bar."""
        self._progress.update(self._task, total=now.images, completed=now.done)


def line(found: batch_predict.Progress, out: str) -> str:
    """Return what was written."""
    before = f", {found.before} of them before" if found.before else ""
    bad = f"; {found.bad} could not be read (see the column `error`)" if found.bad else ""
    return f"wrote {found.done} images to {out}{before}{bad}"
