"""A sweep for people: a table of its trials while it goes on, what came of it, and the files that keep it."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from raytrain import errors
from raytrain.checkpoint import location
from raytrain.files import append, is_url, reason
from raytrain.loggers import Logger, RunInfo
from raytrain.report import configurations, folds, precision_and_batch, sweep_page, sweep_table
from raytrain.report.console import show_plan, terminal
from raytrain.report.layout import columns, show, show_next
from raytrain.report.trials import FIGURES, Known, Results, number, plain
from raytrain.run.lock import Lock, held
from raytrain.sweep import at_url
from raytrain.sweep.record import ENDED
from raytrain.tools.output import write_file

_FINAL_ROWS, _WHAT_HAPPENED = 30, 4
_DRAWING = 0.05
"""The share of the time that the driver may spend drawing a table that changes."""
_LOG_WIDTH = 160  # columns of a table that goes to a file


class Table(Logger):
    """Shows a sweep on standard output: on a terminal a table that changes, elsewhere a line when a trial ends."""

    def __init__(self, console: RichConsole | None = None):
        self.console = console or terminal(lasting=True)
        self._live: Live | None = None
        self._view = _View()
        self._said: set[tuple[int, int | None]] | None = None
        self._known: Known = {}
        self._due = 0.0

    def planned(self, lines: Sequence[tuple[str, str]]) -> None:
        """Print the plan: a name and what there is to say, a line each."""
        show_plan(self.console, [(plain(name), plain(text)) for name, text in lines])

    def status(self, text: str) -> None:
        """What goes on besides the trials; an empty text takes it away."""
        text = plain(text)
        if self.console.is_terminal:
            self._show(replace(self._view, status=text))
        elif text and text != self._view.status:
            self._print(f"{text} ...")
            self._view = _View(status=text)

    def trials(
        self,
        records: list[dict[str, Any]],
        objectives: list[dict[str, Any]],
        elapsed: float,
        count: int | None = None,
    ) -> None:
        """Show the trials as they are."""
        answer = {"trials": records, "objectives": objectives}
        if self.console.is_terminal:
            if self._view.begun and time.monotonic() < self._due:
                return
            shown = time.monotonic()
            begun = any(record["status"] != "pending" for record in records)
            status = self._view.status if self._view.begun or not begun else ""  # it was of what came before the trials
            self._show(_View(Results.of(answer, self._known), elapsed, status, begun, count or 0))
            self._due = time.monotonic() + (time.monotonic() - shown) / _DRAWING
            return
        if self._said is None:  # what an earlier command has left under way goes on now
            self._said = {_said(record) for record in records if record["status"] == "interrupted"}
        new = [
            place
            for place, record in enumerate(records)
            if record["status"] not in ("pending", "running", "paused") and _said(record) not in self._said
        ]
        if new:
            results = Results.of(answer, self._known)
            self._said.update(_said(records[place]) for place in new)
            for place in new:
                self._print(sweep_table.line(results.trials[place], results))

    def note(self, text: str) -> None:
        """Print a line of its own."""
        self._print(f"note: {plain(text)}", "yellow")

    def finish(self, run: RunInfo, summary: Mapping[str, Any]) -> None:
        """Print the trials from the best one on, how many came to what end, and what to type next."""
        self.close()
        path, answer = run.path, {**summary}
        results = Results.of(answer)
        width = columns(self.console) or _LOG_WIDTH
        repeated = results.configurations
        more = max(0, len(repeated or results.trials) - _FINAL_ROWS)
        if repeated or results.trials:
            if repeated:
                lines, left_out = configurations.grid(results, repeated[:_FINAL_ROWS], width)
            else:
                lines, left_out = sweep_table.grid(results, results.ranked()[:_FINAL_ROWS], width)
            for line in lines:
                self.console.print(line)
            notes = [
                *([f"... and {more} more"] if more else []),
                *([f"no room for {', '.join(left_out)}"] if left_out else []),
            ]
            if notes:
                self._print(f"{'; '.join(notes)}: all is in {'sweep.json' if repeated else 'trials.csv'}", "dim")
        for text in configurations.verdicts(results):
            self._print(text)
        if measured := sweep_table.measured(results, answer.get("concurrent")):
            self._print(measured, "dim")
        for text in sweep_table.what_happened(results, 2 * _WHAT_HAPPENED):
            self._print(text, "yellow")
        for text in (*folds.lines(path, answer), *precision_and_batch.lines(answer)):
            self._print(text)
        done = results.status == "completed"
        style = "bold green" if done else "bold yellow"
        show(self.console, f"{results.status}: ", sweep_table.outcome(results), before_style=style)
        files = [
            name
            for name in (precision_and_batch.RECOMMENDED, "report.html", "folds.json", "trials.csv", "plots")
            if (path / name).exists()
        ]
        self._print(
            f"the sweep is in {run.where}"
            + (f", with {' and '.join([', '.join(files[:-1]), files[-1]]).removeprefix(' and ')}" if files else "")
        )
        of_folds = folds.mean_and_std(results) is not None
        if results.best is None and not of_folds and results.status in ("completed", "failed"):
            over = any(trial.violates for trial in results.trials)
            found = "has a result: see the errors above, and logs in the trials' directories"
            if results.trials and not any(trial.error for trial in results.trials):  # as an accuracy not reached
                found = f"has a value of {results.objectives[0].name}"
            self._print(f"no trial {'keeps the constraints' if over else found}")
        following = [] if done or results.status == "running" else [("raytrain", "sweep", run.where)]
        if of_folds:
            following += folds.following(path, run.where, results)
        elif results.best is not None:
            following += self._of_best(run, results)
        if following:
            show_next(self.console, following)

    def close(self) -> None:
        """Take the table away, for what is printed after a failure."""
        if self._live is not None:
            self._live.stop()
        self._live = None

    def _of_best(self, sweep: RunInfo, results: Results) -> list[tuple[str, ...]]:
        """Return the commands that go on with the best trial, or train the best configuration without folds."""
        number = results.best
        run = location.join(sweep.where, f"trials/{number:04d}")
        named = [name for name in (precision_and_batch.RECOMMENDED, "best.json") if (sweep.path / name).is_file()]
        best = location.join(sweep.where, named[0]) if named else location.join(run, "experiment.json")
        if is_url(best):  # `train` reads files: this one is in the mirror
            best = str(sweep.path / (named[0] if named else f"trials/{number:04d}/experiment.json"))
        if results.by_fold:
            return [("raytrain", "train", best, *folds.WITHOUT), ("raytrain", "folds", best)]
        return [
            ("raytrain", "train", best),
            ("raytrain", "evaluate", run),
            ("raytrain", "export", run, "model.pth"),
        ]

    def _print(self, text: str, style: str = "") -> None:
        for line in text.split("\n"):
            indent = line[: len(line) - len(line.lstrip())]
            show(self.console, indent, _visible(line.strip()), style)

    def _show(self, view: _View) -> None:
        self._view = view
        if self._live is None:
            self._live = Live(view, console=self.console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(view, refresh=True)


@dataclass(frozen=True)
class _View:
    """What stands on the terminal; laid out when it is drawn, since a window may change its size."""

    results: Results | None = None
    elapsed: float = 0.0
    status: str = ""
    begun: bool = False
    count: int = 0

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        width, room = options.max_width, max(1, console.height - 1)
        foot = [Text(f"{self.status} ...", style="dim")] if self.status else []
        if self.results is None or not self.results.trials:
            yield from map(_cropped, foot)
            return
        yield _cropped(Text(sweep_table.headline(self.results, self.elapsed, self.count), style="bold"))
        room -= 1 + len(foot)
        happened = sweep_table.what_happened(self.results, max(0, min(_WHAT_HAPPENED, room // 4)))
        room -= len(happened)
        ranked = self.results.ranked()
        rows = len(ranked) if len(ranked) < room else room - 2  # the head of the table, and a line that counts the rest
        if rows > 0:
            yield from map(_cropped, sweep_table.grid(self.results, ranked[:rows], width)[0])
            if rows < len(ranked):
                yield _cropped(Text(f"... and {len(ranked) - rows} more", style="dim"))
        yield from (_cropped(Text(text, style="yellow")) for text in happened)
        if room + len(happened) > 0:
            yield from map(_cropped, foot)


def write_files(path: Path, answer: dict[str, Any], table: bool = True) -> None:
    """Write `trials.csv`, the plots, of a sweep over folds `folds.json`, and of one over precision and batch sizes
    `recommended.json`.

    Args:
        path: the sweep's directory.
        answer: the content of its sweep.json.
        table: whether to write `trials.csv`.

    Raises:
        UserError: a file cannot be written.
    """
    from raytrain.report.sweep_plots import write_plots  # matplotlib, which a table on the terminal does not need

    if table:
        write_csv(path, answer)
    folds.write(path, answer)
    precision_and_batch.write(path, answer)
    write_plots(path, answer)


class GrowingCSV:
    """`trials.csv` of a sweep that goes on: a row of each trial that has ended, in that order. Rows are appended. A
    line without an end is that of a killed command; the next command writes the file anew."""

    def __init__(self) -> None:
        self._written: set[int] | None = None
        self._hosts = False

    def update(self, path: Path, answer: dict[str, Any]) -> None:
        """Append the trials that have ended since the last call; the first call writes the file anew.

        Args:
            path: the sweep's directory.
            answer: the content of its sweep.json.

        Raises:
            UserError: the file cannot be written.
            OSError: it cannot be appended to.
        """
        written = self._written or set()
        hosts = any(one.get("host") for one in answer["trials"])
        if hosts != self._hosts:  # a column more
            self._written, self._hosts, written = None, hosts, set()
        new = [one for one in answer["trials"] if one["status"] in ENDED and one["number"] not in written]
        rows = answer | {"trials": new}
        if self._written is None:
            write_file(path / "trials.csv", _csv(rows, hosts=hosts).encode(errors="backslashreplace"))
        elif new:
            append(path / "trials.csv", _csv(rows, head=False, hosts=hosts))
        self._written = written | {one["number"] for one in new}


def write_csv(path: Path, answer: dict[str, Any]) -> Path:
    """Write `trials.csv`: a row a trial with its number, status, value of each axis (under its dotted path),
    objectives, figures and error. A figure that has the name of an axis is called `trial.<name>`; what is missing is
    empty; a value that is an object or a list is JSON.

    Args:
        path: the sweep's directory.
        answer: what its sweep.json holds.

    Returns:
        The file.

    Raises:
        UserError: it cannot be written.
    """
    file = path / "trials.csv"
    hosts = any(one.get("host") for one in answer["trials"])
    write_file(file, _csv(answer, hosts=hosts).encode(errors="backslashreplace"))
    return file


def _csv(answer: dict[str, Any], head: bool = True, hosts: bool = False) -> str:
    """Return the rows of trials.csv, after the names of its columns if those are wanted; with a column of hosts or
    without."""
    results, sweep = Results.of(answer), answer.get("sweep")
    sweep = sweep if isinstance(sweep, dict) else {}
    axes, goals = [axis.path for axis in results.axes], [objective.name for objective in results.objectives]
    figures = [name for name in FIGURES if name not in goals]
    repeats = (number(sweep.get("repeats")) or 1) > 1 or any(trial.repeat is not None for trial in results.trials)
    figures += ["configuration", "repeat"] if repeats else []
    figures += ["host"] if hosts else []
    limits = sweep.get("constraints") or any(trial.violates for trial in results.trials)
    last = ("error", "violates") if limits else ("error",)
    own = [f"trial.{name}" if name in axes else name for name in ("number", "status", *goals, *figures, *last)]
    buffer = io.StringIO(newline="")
    rows = csv.writer(buffer)
    if head:
        rows.writerow((*own[:2], *axes, *own[2:]))
    for trial in results.trials:
        aims = (*trial.objective, *[None] * len(goals))[: len(goals)]
        rows.writerow(
            _cell(value)
            for value in (
                *(trial.number, trial.status),
                *(trial.values.get(axis) for axis in axes),
                *(*aims, *(getattr(trial, name) for name in figures)),
                *(trial.error, "; ".join(trial.violates))[: len(last)],
            )
        )
    return buffer.getvalue()


def load(path: Path) -> dict[str, Any]:
    """Return what a sweep's sweep.json holds.

    Args:
        path: the sweep's directory.

    Raises:
        UserError: there is no sweep, or the file is damaged or another program's.
    """
    file = path / "sweep.json"
    try:
        answer = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise errors.not_a_sweep(path) from None
    except OSError as error:
        raise errors.broken_sweep(file, reason(error)) from None
    except (ValueError, RecursionError):
        raise errors.broken_sweep(file, "it is not JSON") from None
    if not isinstance(answer, dict) or not isinstance(answer.get("trials"), list):
        raise errors.broken_sweep(file, "it has no list of trials")
    if not all(isinstance(record, dict) for record in answer["trials"]):
        raise errors.broken_sweep(file, "a trial in it is not an object")
    return answer


def report(path: Path, console: RichConsole | None = None) -> None:
    """Read a sweep again: writes its page, trials.csv and plots anew, and prints its table. While another process runs
    the sweep, that one alone writes trials.csv: it appends the trials that have ended since.

    Args:
        path: the sweep's directory.

    Raises:
        UserError: there is no sweep, its file is damaged, or its directory cannot be written.
    """
    answer = load(path)
    if answer.get("status") == "running" and _abandoned(path):
        answer["status"] = "interrupted"
        for record in answer["trials"]:
            if record.get("status") in ("running", "pending", "paused"):
                record["status"] = "interrupted"
    write_files(path, answer, table=not held(path))
    sweep_page.write(path, answer)
    at_url.conclude(path)
    Table(console or terminal()).finish(RunInfo(path, location.url_of(path) or str(path)), answer)


def _said(record: dict[str, Any]) -> tuple[int, int | None]:
    """Return what identifies the end of a trial's attempt."""
    return record["number"], record.get("attempts")


def _abandoned(path: Path) -> bool:
    """Return whether no process runs the sweep."""
    try:
        Lock(path, wait=0).release()
        return True
    except (errors.UserError, OSError):
        return False


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list | tuple):
        return json.dumps(value)
    return "" if value is None else value


def _cropped(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _visible(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)
