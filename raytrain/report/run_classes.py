"""The classes of a run on its validation split: a row for each, and the confusion matrix."""

from __future__ import annotations

import time
from typing import Any

import torch

from raytrain import errors
from raytrain.data.checks import checked_indices
from raytrain.report.html import safe, scroll, table
from raytrain.report.trials import number
from raytrain.run.run import Run
from raytrain.tasks.classification import Classification
from raytrain.tools import inference

_QUICK = 60.0
"""Most seconds that an evaluation may take, by the run's own speed, without being asked for."""
_MOST_CELLS, _MOST_CLASSES, _MOST_PAIRS = 30, 1000, 20


def section_of(run: Run, command: str, always: bool) -> str:
    """Return rows per class and the confusion matrix of the best checkpoint; a line that says how to get them, where
    computing them takes long or fails; an empty text for other tasks.

    Args:
        command: the command that writes the page.
        always: compute them however long that takes.
    """
    if not isinstance(run.experiment.task, Classification):
        return ""
    again = f"<code>{safe(command)} --evaluate</code>"
    if run.summary["status"] == "unfinished":
        return f"<p>The run has not ended: later, {again} fills in the rows per class.</p>"
    try:
        if not always and (why := slow(run)):
            return f"<p>Not computed, since {safe(why)}: {again} fills in the rows per class.</p>"
        began = time.monotonic()
        result = inference.evaluate(run)
    except Exception as error:  # code and data of the user, perhaps on another machine; the rest of the page is good
        reason = errors.one_line(str(error) or type(error).__name__)
        return f"<p>Not computed: {safe(reason)}. Then {again} fills in the rows per class.</p>"
    return _shown(result, time.monotonic() - began)


def slow(run: Run, most: float = _QUICK) -> str:
    """Return why an evaluation would take more than `most` seconds here; an empty text if it would not."""
    speed, device = number(run.summary.get("samples_per_second")), run.summary.get("device")
    if not speed:
        return "the run's speed is unknown"
    if device != "cpu" and not torch.cuda.is_available():
        return f"the run was trained on {device}, which is not here"
    data = run.experiment.data
    if getattr(data, "download", False):
        return "the data may have to be downloaded"
    count = len(checked_indices(data).get("val", ()))
    seconds = count / speed * (number(run.summary.get("workers")) or 1)
    return f"it takes about {seconds:,.0f} s" if seconds > most else ""


def _shown(result: dict[str, Any], seconds: float) -> str:
    """Return the tables of an evaluation, as `inference.evaluate` returns it."""
    rows = result.get("per_class", [])
    said = f"<p class='muted'>{safe(result['checkpoint'])} on {result['count']:,} samples of the validation split"
    said += f", computed in {seconds:.1f} s.</p>"
    if not rows:
        return f"{said}<p>The task has no rows per class.</p>"
    shown, more = rows, ""
    if len(rows) > _MOST_CLASSES:
        shown = sorted(rows, key=lambda row: row["f1"])[:_MOST_CLASSES]
        more = f" (the {_MOST_CLASSES:,} of {len(rows):,} with the lowest f1)"
    return (
        said
        + table(f"Per class{more}", list(rows[0]), [list(row.values()) for row in shown])
        + _confusion(result["confusion"], result["classes"])
    )


def _confusion(counts: list[list[int]], classes: list[str]) -> str:
    """Return the confusion matrix, and of many classes the pairs that are confused most."""
    mistakes = [
        (count, true, said)
        for true, row in enumerate(counts)
        for said, count in enumerate(row)
        if count and true != said
    ]
    mistakes.sort(key=lambda one: (-one[0], one[1:]))
    worst = [(classes[true], classes[said], count) for count, true, said in mistakes[:_MOST_PAIRS]]
    pairs = table("Most frequent mistakes", ("class", "predicted as", "samples"), worst) if worst else ""
    if len(classes) > _MOST_CELLS:
        return pairs
    top = mistakes[0][0] if mistakes else 0
    head = "".join(f'<th scope="col" class="number">{safe(name)}</th>' for name in classes)
    body = ""
    for true, row in enumerate(counts):
        cells = ""
        for said, count in enumerate(row):
            mark = " hit" if true == said else " miss" if count and 2 * count > top else ""
            cells += f'<td class="number{mark}">{count:,}</td>'
        body += f'<tr><th scope="row">{safe(classes[true])}</th>{cells}</tr>'
    caption = "Confusion matrix: rows are the true classes, columns the predicted ones; framed: the largest mistakes"
    whole = (
        f'<table class="matrix"><caption>{caption}</caption><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
    return scroll("Confusion matrix", whole) + pairs
