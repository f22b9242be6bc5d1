"""An HTML page of a sweep: its trials, what they reached, and which values led there."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from raytrain import errors
from raytrain.checkpoint import location
from raytrain.report import configurations, folds, precision_and_batch, sweep_charts, sweep_table
from raytrain.report.console import clock
from raytrain.report.html import figures, navigation, page, pages, public, safe, scroll, section, table
from raytrain.report.run_curves import Rows, charts
from raytrain.report.sweep_figures import Learning
from raytrain.report.trials import UNITS, Results, Trial, cut, figure, text
from raytrain.run.run import Run
from raytrain.tools.output import write_file

_MOST_TRIALS, _MOST_CURVES, _PAGE, _MOST_TEXT = 1000, 6, 100, 200
_MOST_LETTERS = 60_000
"""The letters of a column, over all trials."""
_FIGURES = ("seconds", "samples_per_second", "peak_memory_bytes")


def write(path: Path, answer: dict[str, Any]) -> Path:
    """Write `report.html` into a sweep's directory and return its place.

    Args:
        answer: the content of its sweep.json.

    Raises:
        UserError: the file cannot be written.
    """
    write_file(path / "report.html", whole(path, answer).encode())
    return path / "report.html"


def at_end(path: Path, answer: dict[str, Any], say: Callable[[str], None]) -> None:
    """Write the page of a sweep that has just ended; a failure is one line, which `say` is called with."""
    try:
        write(path, answer)
    except Exception as error:  # the sweep is good, whatever its page lacks
        say(f"no report was written: {errors.one_line(str(error) or type(error).__name__)}")


def whole(path: Path, answer: dict[str, Any]) -> str:
    """Return the page."""
    results = Results.of(answer)
    kind = "good" if results.status == "completed" else "warn"
    outcome = f'<p><strong class="{kind}">{safe(results.status)}</strong>, {safe(sweep_table.outcome(results))}</p>'
    counts = {word: f"{count:,}" for word, count in results.counted().items()}
    took = {} if results.seconds is None else {"time": clock(results.seconds)}
    ranked = results.ranked()[:_MOST_TRIALS]
    drawn = sweep_charts.in_mebibytes(results)
    goals = sweep_charts.objectives(drawn, Learning.read(results, path))
    across, along = ("", "") if results.of_folds else (sweep_charts.coordinates(drawn), sweep_charts.parameters(drawn))
    curves = "Curves of the folds" if results.of_folds else "Curves of the best trials"
    lines, repeated = "\n".join(folds.lines(path, answer)), configurations.section(results, _MOST_TRIALS, _PAGE)
    answers = "\n".join(precision_and_batch.lines(answer))
    measured = sweep_table.measured(results, answer.get("concurrent"))
    parts = [
        *([("answer", "Answer", scroll("Answer", f"<pre>{safe(answers)}</pre>"))] if answers else []),
        *([("folds", "Folds", scroll("Folds", f"<pre>{safe(lines)}</pre>"))] if lines else []),
        *([("configurations", "Configurations", repeated)] if repeated else []),
        *([("objectives", "Objectives", f'<div class="charts">{goals}</div>')] if goals else []),
        *([("parameters", "Parameters", f'{across}<div class="charts">{along}</div>')] if across or along else []),
        *([("best", "Best trial", _best(path, results))] if results.best is not None else []),
        ("trials", "Trials", (f"<p>{safe(measured)}</p>" if measured else "") + _trials(results, ranked)),
        *([("curves", curves, found)] if (found := _curves(path, ranked)) else []),
    ]
    head = f"<h1>{safe(path.absolute().name)}</h1>{outcome}{navigation(parts)}"
    head += figures({"trials": f"{len(results.trials):,}", **counts, **took})
    return page(f"{path.absolute().name}: {results.status}", head + "".join(section(*part) for part in parts))


def _best(path: Path, results: Results) -> str:
    """Return the values of the best trial, and the commands that show and repeat it."""
    best = next(trial for trial in results.trials if trial.number == results.best)
    values = [(axis.path, _text(best.values.get(axis.path))) for axis in results.axes]
    goals = zip(results.objectives, best.objective, strict=False)
    reached = [(objective.name, figure(objective.name, value)) for objective, value in goals]
    where = location.url_of(path) or str(path)
    run = shlex.quote(public(location.join(where, f"trials/{best.number:04d}")))
    return (
        table(f"Trial {best.number}", ("field", "value"), [*values, *reached])
        + f"<p>Its own page: <code>raytrain report {safe(run)}</code></p>"
        + f"<p>Train it again: <code>raytrain train {safe(shlex.quote(public(str(path / 'best.json'))))}"
        + f"{' '.join(('', *folds.WITHOUT)) if results.by_fold else ''}</code></p>"
    )


def _trials(results: Results, ranked: Sequence[Trial]) -> str:
    names = [objective.name for objective in results.objectives]
    shown = [name for name in _FIGURES if name not in names]
    rows, most = [], min(_MOST_TEXT, _MOST_LETTERS // max(1, len(ranked)))
    for trial in ranked:
        goals = (*trial.objective, *[None] * len(names))[: len(names)]
        rows.append(
            (
                f"{trial.number}{' (best)' if trial.number == results.best else ''}",
                trial.word,
                *(figure(name, value) for name, value in zip(names, goals, strict=True)),
                *(_text(trial.values.get(axis.path), most) for axis in results.axes),
                trial.done[0],
                *(figure(name, getattr(trial, name)) for name in shown),
                cut("; ".join([*(f"not {one}" for one in trial.violates), *filter(None, [trial.error])]), most),
            )
        )
    heads = ("trial", "status", *names, *(axis.name for axis in results.axes), "done")
    heads += (*(UNITS.get(name, name) for name in shown), "error")
    values = range(2 + len(names), 2 + len(names) + len(results.axes))
    numeric = {at for at, axis in zip(values, results.axes, strict=True) if all(map(_is_number, axis.levels or ()))}
    numeric |= {*range(2, 2 + len(names)), *range(values.stop, values.stop + 1 + len(shown))}
    if not any(trial.error or trial.violates for trial in ranked):
        heads, rows = heads[:-1], [row[:-1] for row in rows]
    left = len(results.trials) - len(ranked)
    more = f" ({left:,} more are in trials.csv)" if left else ""
    return pages(f"Trials, the best first{more}", heads, rows, _PAGE, right=numeric)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _text(value: Any, most: int = _MOST_TEXT) -> str:
    """Return a value of an axis for a table."""
    return "-" if value is None else cut(text(value, 6), most)


def _curves(path: Path, ranked: Sequence[Trial]) -> str:
    """Return the curves of the best trials over each other."""
    rows = []
    for trial in [trial for trial in ranked if trial.counts][:_MOST_CURVES]:
        try:
            rows.append(Rows.of(Run(path / "trials" / f"{trial.number:04d}"), f"trial {trial.number}"))
        except (errors.UserError, OSError, ValueError):  # its directory was removed, or is damaged
            continue
    return charts(rows) if len(rows) > 1 else ""
