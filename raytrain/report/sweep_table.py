"""The progress of a sweep as lines: a table of its trials, its position, its failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from raytrain import errors
from raytrain.report import folds
from raytrain.report import trials as read
from raytrain.report.console import clock
from raytrain.report.trials import UNITS, WITHOUT_RESULT, Results, Trial, apart, cut, figure, number
from raytrain.sweep import record
from raytrain.sweep.constraint import figure_of
from raytrain.sweep.objective import of_machine

_WIDE, _NARROW, _LONGEST = 28, 14, 300
_STYLES = {"running": "cyan", "completed": "", "stopped": "yellow", "pending": "dim"}


def headline(results: Results, elapsed: float, count: int) -> str:
    """Return how far a sweep of so many trials has come, after so many seconds."""
    statuses = [trial.status for trial in results.trials]
    ended = sum(status in record.ENDED for status in statuses)  # others are paused or interrupted
    parts = [
        f"{ended} of {max(count, len(results.trials))} trials ended",
        f"{statuses.count('running')} running",
        clock(elapsed),
    ]
    return ", ".join([*parts, *_best(results)])


def _best(results: Results) -> list[str]:
    name = results.objectives[0].name
    if (of_folds := folds.mean_and_std(results)) is not None:
        mean, std = of_folds
        if std is None:
            return [f"{title_of(name)} {figure(name, mean)} (one fold)"]
        count = sum(trial.counts for trial in results.trials)
        of = f"mean ± standard deviation of {count} folds"
        return [f"{title_of(name)} {figure(name, mean)} ± {figure(name, std)} ({of})"]
    best = next((trial for trial in results.trials if trial.number == results.best), None)
    if best is None or best.goal is None:
        return []
    if results.configurations and (mean := results.configurations[0].spreads[0].mean) is not None:
        of = f"configuration {results.configurations[0].number}, best repeat: trial {best.number}"
        return [f"best mean {title_of(name)} {figure(name, mean)} ({of})"]
    return [f"best {title_of(name)} {figure(name, best.goal)} (trial {best.number})"]


def outcome(results: Results) -> str:
    """Return what came of a sweep."""
    seconds = [] if results.seconds is None else [f"{results.seconds:.1f} s"]
    count = len(results.trials)
    statuses = ", ".join(f"{times} {word}" for word, times in results.counted().items())
    front = ", ".join(map(str, results.front[:12])) + (" ..." if len(results.front) > 12 else "")
    several = len(results.objectives) > 1 and results.front
    return ", ".join(
        [
            f"{count} {'fold' if results.of_folds else 'trial'}{'s' if count != 1 else ''} ({statuses})"
            if count
            else "no trial has ended",
            *seconds,
            *_best(results),
            *([f"Pareto front: trial{'s' if len(results.front) > 1 else ''} {front}"] if several else []),
        ]
    )


def measured(results: Results, concurrent: object) -> str:
    """Return whether trials were alone on the machine while their speed was measured, and where nothing shows by how
    much that varies; empty where it is not known.

    Args:
        concurrent: how many trials ran at once.
    """
    if not isinstance(concurrent, int) or len(results.trials) < 2:
        return ""
    limited = any(of_machine(figure_of(text)) for text in results.limits)
    decides = limited or any(of_machine(objective.name) for objective in results.objectives)
    spread = ", once: --repeats 3 shows how much that varies" if decides and not results.configurations else ""
    if concurrent == 1:
        return f"seconds and samples/s: each trial was measured alone{spread}"
    alone = "alone, each is faster" + (", and may keep a limit that it breaks here" if limited else "")
    return f"seconds and samples/s: of up to {concurrent} trials side by side; {alone}"


def line(trial: Trial, results: Results) -> str:
    """Return a trial that has ended, in one line."""
    done = f"{trial.done[1]} {trial.done[0]}" if "/" in trial.done[0] else ""
    cost = {
        "samples_per_second": "" if trial.samples_per_second is None else f"{trial.samples_per_second:,.0f} samples/s",
        "seconds": "" if trial.seconds is None else f"{trial.seconds:.1f} s",
        "peak_memory_bytes": figure("peak_memory_bytes", trial.peak_memory_bytes),
    }
    named = {objective.name for objective in results.objectives}
    goals = zip(results.objectives, trial.objective, strict=False)
    facts = (
        " ".join(f"{axis.name}={_short(trial, axis, _WIDE)}" for axis in results.axes if axis.path in trial.values),
        *(f"{title_of(o.name)} {figure(o.name, x)}" for o, x in goals if x is not None),
        *(done, *(words for name, words in cost.items() if name not in named)),
        f"on {trial.host}" if trial.host else "",
        f"attempt {trial.attempts:g}" if (trial.attempts or 1) > 1 else "",
        cut("; ".join(trial.violates), _LONGEST),
        cut(trial.error, _LONGEST),
    )
    which = "" if trial.repeat is None else f" (configuration {trial.configuration or 0:g}, repeat {trial.repeat:g})"
    return f"trial {trial.number}{which} {trial.word}:  " + "  ".join(filter(None, facts))


def what_happened(results: Results, limit: int) -> list[str]:
    """Return a line for each kind of failure, the commonest first."""
    found: dict[tuple[str, str], list[int]] = {}
    for trial in results.trials:
        if trial.violates:
            found.setdefault((trial.word, "not " + " and not ".join(trial.violates)), []).append(trial.number)
        elif trial.status in WITHOUT_RESULT or (trial.error and trial.status not in ("pending", "running")):
            found.setdefault((trial.word, trial.error), []).append(trial.number)
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[1][0]))
    lines = []
    for (word, error), numbers in ordered[:limit]:
        which = f"trial{'s' if len(numbers) > 1 else ''} {errors.listed(numbers, 6)}"
        lines.append(f"{which} {word}" + (f": {cut(error, _LONGEST)}" if error else ""))
    if limit and len(ordered) > limit:
        rest = sum(len(numbers) for _, numbers in ordered[limit - 1 :])
        lines[limit - 1 :] = [f"{rest} other trials failed in {len(ordered) - limit + 1} other ways"]
    return lines


@dataclass(frozen=True)
class Column:
    """A column of a table on the terminal."""

    title: str
    cells: list[str]
    left: bool = False
    keep: int = 0
    """Of the columns that a terminal has no room for, those of the lowest number go first."""
    whole: bool = False
    """Whether its cells are never cut."""

    def width(self, limit: int) -> int:
        """Return columns of the terminal that it takes."""
        widest = max(map(cell_len, (self.title, *self.cells)))
        return widest if self.whole else min(limit, widest)

    def cell(self, words: str, limit: int) -> str:
        """Return a text of the column, cut and padded to its width."""
        width = self.width(limit)
        words = words if cell_len(words) <= width else apart(self.cells, width).get(words, words)
        if cell_len(words) > width:
            return set_cell_size(words, width - 1) + "…"
        gap = " " * (width - cell_len(words))
        return words + gap if self.left else gap + words


def grid(results: Results, rows: Sequence[Trial], width: int) -> tuple[list[Text], list[str]]:
    """Return a line for the titles and one for each trial, none wider than `width`; and the titles of the columns left
    out."""
    styles = ["bold green" if trial.number in results.marked else _STYLES.get(trial.status, "red") for trial in rows]
    return laid_out(_columns(results, rows), styles, width)


def laid_out(columns: list[Column], styles: Sequence[str], width: int) -> tuple[list[Text], list[str]]:
    """Return a table's lines, none wider than `width`, and the titles of the columns left out.

    Args:
        columns: of equal length; those that do not fit are removed.
        styles: of the rows.
    """
    left_out = []
    limit = _WIDE if _total(columns, _WIDE) <= width else _NARROW
    while _total(columns, limit) > width and len(columns) > 3:
        dropped = min(columns, key=lambda column: column.keep)
        left_out.append(dropped.title)
        columns.remove(dropped)
    lines = [Text("  ".join(column.cell(column.title, limit) for column in columns), style="bold")]
    for place, style in enumerate(styles):
        lines.append(Text("  ".join(column.cell(column.cells[place], limit) for column in columns), style=style))
    for text in lines:
        text.truncate(width, overflow="ellipsis")
    return lines, left_out


def _total(columns: Sequence[Column], limit: int) -> int:
    return sum(column.width(limit) + 2 for column in columns) - 2


def _columns(results: Results, rows: Sequence[Trial]) -> list[Column]:
    units = {t.done[1] for t in results.trials}
    unit = units.pop() if len(units) == 1 else "done"  # trials of an axis over steps may have one unit each
    done = [t.done[0] if unit != "done" else f"{t.done[0]} {t.done[1]}s" for t in rows]
    goals = [
        Column(
            title_of(objective.name),
            [figure(objective.name, t.objective[i] if i < len(t.objective) else None) for t in rows],
            keep=1000 - i,
        )
        for i, objective in enumerate(results.objectives)
    ]
    named = {objective.name for objective in results.objectives}
    figures = [
        Column(title_of(name), [figure(name, getattr(t, name)) for t in rows], keep=place)
        for place, name in enumerate(("peak_memory_bytes", "seconds", "samples_per_second"))
        if name not in named
    ]
    axes = []
    for place, axis in enumerate(results.axes):
        varies = len({_value(trial, axis.path) for trial in results.trials}) > 1
        cells = [_value(trial, axis.path) for trial in rows]
        numbers = all(number(trial.values.get(axis.path, 0)) is not None for trial in results.trials)
        axes.append(Column(axis.name, cells, not numbers, (500 if varies else 20) - place))
    marks = [f"{'*' if t.number in results.marked else ''}{t.number}" for t in rows]
    columns = [
        Column("trial", marks, keep=5000),
        *axes,
        Column("status", [t.word for t in rows], left=True, keep=5000),
        Column(unit, done, keep=10),
        *goals,
        *reversed(figures),
        Column("host", [t.host for t in rows]),
    ]
    return [column for column in columns if column.keep >= 500 or any(column.cells)]


def _value(trial: Trial, path: str) -> str:
    return read.text(trial.values[path], digits=3) if path in trial.values else ""


def _short(trial: Trial, axis: read.Axis, limit: int) -> str:
    """Return a trial's value of at most so many characters, which tells it from the axis' others."""
    value = _value(trial, axis.path)
    return apart({value, *(axis.levels or ())}, limit)[value]


def title_of(name: str) -> str:
    """Return what people read instead of a figure's name."""
    return UNITS.get(name, name)
