"""The classes of a run on its validation split: a row for each, and the confusion matrix."""

from __future__ import annotations

from typing import Any

from raytrain.report.html import columns, safe, scroll, table

_MOST_CELLS, _MOST_CLASSES, _MOST_PAIRS = 30, 1000, 20


def shown(result: dict[str, Any]) -> str:
    """Return the tables of an evaluation, as `inference.evaluate` returns it; an empty text without rows per class."""
    rows = result.get("per_class", [])
    if not rows:
        return ""
    named, more = rows, ""
    if len(rows) > _MOST_CLASSES:
        by_f1 = all("f1" in row for row in rows)
        named = (sorted(rows, key=lambda row: row["f1"]) if by_f1 else rows)[:_MOST_CLASSES]
        more = f" ({'the' if by_f1 else 'the first'} {_MOST_CLASSES:,} of {len(rows):,}"
        more += " with the lowest f1)" if by_f1 else ")"
    names = list(dict.fromkeys(name for row in named for name in row))  # a task of the user's may leave some out
    whole = table(f"Per class{more}", names, [[row.get(name) for name in names] for row in named])
    return columns(whole, *(_confusion(result["confusion"], result["classes"]) if "confusion" in result else ()))


def _confusion(counts: list[list[int]], classes: list[str]) -> tuple[str, ...]:
    """Return the confusion matrix, if the classes are not many, and the pairs that are confused most."""
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
        return (pairs,)
    top = mistakes[0][0] if mistakes else 0
    head = "".join(f'<th scope="col" class="number">{safe(name)}</th>' for name in classes)
    body = ""
    for true, row in enumerate(counts):
        cells = ""
        for said, count in enumerate(row):
            mark = " hit" if true == said else " miss" if count and 2 * count > top else ""
            cells += f'<td class="number{mark}">{count:,}</td>'
        body += f'<tr><th scope="row">{safe(classes[true])}</th>{cells}</tr>'
    said = "Rows: the true classes. Columns: the predicted ones. Framed: the largest mistakes."
    whole = (
        f'<table class="matrix"><caption>Confusion matrix</caption><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )
    return f"<div>{scroll('Confusion matrix', whole)}<p class='muted'>{said}</p></div>", pairs
