"""A sweep in pictures: which values led where, which axes mattered, how the search went, and what results cost."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from raytrain import errors
from raytrain.files import reason
from raytrain.report.plots import history, importance, learning_curves, parallel_coordinates, pareto, slices
from raytrain.report.sweep_figures import Learning
from raytrain.report.trials import Results
from raytrain.tools.output import write_file

_OF_SEARCHES = ("parallel_coordinates.png", "importance.png", "slices.png", "history.png", "pareto.png")


def write_plots(path: Path, answer: dict[str, Any]) -> list[Path]:
    """Draw `plots/parallel_coordinates.png`, `importance.png`, `slices.png`, `history.png`, `learning_curves.png`,
    `accuracy_time.png` and `pareto.png`. One that fewer than two trials have the figures for, or that has nothing to
    say, is left out, and its file of an earlier call removed. Of folds, which are no search, the curves are drawn.

    Args:
        path: the sweep's directory; `trials/<number>/metrics.jsonl` below it holds the trials' epochs.
        answer: what its sweep.json holds.

    Returns:
        The files that are there.

    Raises:
        UserError: they cannot be written.
    """
    results, folder = Results.of(answer), path / "plots"
    learning = Learning.read(results, path)
    drawings: dict[str, Callable[[], Figure | None]] = {
        "parallel_coordinates.png": lambda: parallel_coordinates.draw(results),
        "importance.png": lambda: importance.draw(results),
        "slices.png": lambda: slices.draw(results),
        "history.png": lambda: history.draw(results),
        "learning_curves.png": lambda: learning_curves.draw(results, learning, learning.unit),
        "accuracy_time.png": lambda: learning_curves.draw(results, learning, "seconds"),
        "pareto.png": lambda: pareto.draw(results),
    }
    if results.of_folds:
        drawings |= dict.fromkeys(_OF_SEARCHES, lambda: None)
    try:
        folder.mkdir(exist_ok=True)
        written = []
        for name, draw in drawings.items():
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Glyph .* missing")  # a box stands for a character that no font has
                figure, image = draw(), io.BytesIO()
                if figure is None:
                    (folder / name).unlink(missing_ok=True)
                    continue
                figure.savefig(image, format="png")
            write_file(folder / name, image.getvalue())
            written.append(folder / name)
    except OSError as error:
        raise errors.cannot_write(folder, reason(error)) from None
    return written
