"""The terminal: the plan, a progress bar, a line a validation, and the outcome. Plain lines where no terminal is."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO, cast

from rich.cells import cell_len
from rich.console import Console as RichConsole
from rich.live import Live
from rich.padding import Padding
from rich.spinner import Spinner
from rich.text import Text

from raytrain import errors
from raytrain.driver import interrupts
from raytrain.loggers import Held, Logger, RunInfo
from raytrain.report import run_time
from raytrain.report.bar import Bar, memory, waiting
from raytrain.report.layout import cell, columns, joined, show, show_facts, show_next, spinner
from raytrain.report.notebook import Line
from raytrain.report.output import Output
from raytrain.run import copies
from raytrain.run.metrics_log import VALIDATED
from raytrain.tasks.classification import Classification
from raytrain.tasks.task import Task

_PLAIN_SECONDS = 10.0
_LEAST_WIDTH, _LONG_TITLE, _SHORT_TITLE = 8, 28, 14
_MOST_CLASSES = 20
_ECHO = 3
"""Columns that are left for the terminal's echo of Ctrl-C, so that a line can be erased as a whole."""


class Console(Logger):
    """Shows a run on standard output."""

    def __init__(self, console: RichConsole | None = None):
        self.console = console or terminal(lasting=True)
        self._moves = self.console.is_terminal and not self.console.is_dumb_terminal
        self._line = Line() if self.console.is_jupyter else None
        self._live: Live | None = None
        self._bar: Bar | None = None
        self._times: list[tuple[float, int]] = []
        self._last: Mapping[str, Any] = {}
        self._validated: Mapping[str, Any] = {}
        self._said = 0.0
        self._columns: list[tuple[str, int]] = []

    def planned(self, lines: Sequence[tuple[str, str]]) -> None:
        """Print the plan."""
        show_plan(self.console, lines)

    def status(self, text: str) -> None:
        """Show a spinner, or print a line."""
        if self._moves:
            self._show(Spinner(spinner(self.console), text=Text(f" {text} ...", no_wrap=True, overflow="ellipsis")))
        elif self._line:
            self._line.show(f"{text} ...")
        else:
            show(self.console, "", f"{text} ...")

    def start(self, run: RunInfo, held: Held) -> None:
        """Print the validations that a resumed run has done, and begin the bar."""
        self._run = run
        self._read(run.earlier)

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Move the bar; print a line for each validation."""
        self._read(rows)
        ends = (
            bool(rows) and rows[-1]["kind"] in VALIDATED
        )  # short epochs end between two polls: then the bar moves too
        if any(row["kind"] == "step" for row in rows) and (self._moves or self._line or not ends):
            self._move()

    def workers(self, event: str, why: str, checkpoint: str) -> None:
        """Print a line for each time that the workers are started again."""
        self._times = []  # waiting for new workers, and steps done again, would lower the speed
        text = why if event == "waiting" else f"{why}; from {checkpoint or 'the start'}"
        show(self.console, f"{event}: ", text, before_style="bold yellow")

    def note(self, text: str) -> None:
        """Print a line of its own."""
        show_plan(self.console, [("note", text)])

    def finish(self, run: RunInfo, summary: Mapping[str, Any]) -> None:
        """Print the summary, and what to type next."""
        self._stop()
        self._run, status, where = run, summary["status"], run.where
        style = "bold green" if status == "completed" else "bold yellow"
        show(self.console, f"{status}: ", ", ".join(self._facts(summary)), before_style=style)
        for one in copies.replaced(run.path):
            show(self.console, "", f"code replaced after step {one['step']:,}: {', '.join(one['changed'])}")
        if slow := run_time.line(summary, run.experiment):
            show(self.console, "", slow)
        page = ", with report.html" if (run.path / "report.html").is_file() else ""
        show(self.console, "", f"the run is {'in' if where == str(run.path) else 'at'} {where}{page}")
        if status != "completed":
            show_next(self.console, [("raytrain", "resume", where)])
            return
        task = run.experiment.task
        images = isinstance(task, Classification) and not task.gives_more and run.kind == "image"
        of = ("IMAGE", "...") if images else ("--split", "val")
        predict, predicts = ("raytrain", "predict", where, *of), type(task).predictions is not Task.predictions
        evaluate, export = ("raytrain", "evaluate", where), ("raytrain", "export", where, "model.pth")
        show_next(self.console, [evaluate, *([predict] if predicts else []), export, ("raytrain", "report", where)])

    def close(self) -> None:
        """Take the bar away, for what is printed after a failure."""
        self._stop()

    @property
    def _epochs(self) -> int:
        """The run's epochs, of which the last one may be a part of one."""
        return math.ceil(self._run.experiment.all_epochs(self._run.steps_per_epoch))

    @property
    def _steps(self) -> int:
        """Steps of the whole run."""
        return self._run.experiment.all_steps(self._run.steps_per_epoch)

    def _facts(self, summary: Mapping[str, Any]) -> list[str]:
        """Return what came of the run, for people."""
        steps, rate = summary.get("steps") or 0, summary.get("samples_per_second")
        epoch = -(-steps // self._run.steps_per_epoch)  # the last one that was trained, whole or not
        if not steps:
            return ["no step was done"]
        names = [summary["monitor"]] if "monitor" in summary else ["val_accuracy", "val_loss"]  # of an older run
        best = [f"best {name} {_figure(name, summary[name])}" for name in names if summary.get(name) is not None][:1]
        e, whole = self._run.experiment, summary["status"] == "completed"
        inside = e.steps is not None or e.validate_every_steps is not None
        unit = "step" if inside and summary.get("best_step") else "epoch"
        place = summary.get(f"best_{unit}")
        skipped = summary.get("skipped_steps")
        return [
            *([f"epoch {epoch:,} of {self._epochs:,}"] if e.steps is None else []),
            *([f"step {steps:,} of {self._steps:,}"] if e.steps is not None or not whole else []),
            *(["stopped early"] if summary.get("stopped_early") else []),
            *([summary["stopped_because"]] if summary.get("stopped_because") else []),
            *(["out of time"] if summary.get("out_of_time") else []),
            *[f"{text} {'at' if unit == 'step' else 'in'} {unit} {place:,}" if place else text for text in best],
            *([f"{skipped:,} step{'s' if skipped != 1 else ''} skipped"] if skipped else []),
            *([f"{rate:,.0f} samples/s"] if rate else []),
            *([f"{summary['seconds']:.1f} s of training"] if summary.get("seconds") else []),
        ]

    def _read(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            if row["kind"] == "step":
                self._last = row
            elif row["kind"] in VALIDATED:
                self._validated = row
                self._validation(row)
            elif row["kind"] == "precision":
                self._precision(row)

    def _validation(self, row: Mapping[str, Any]) -> None:
        """Print a line of the table of validations, without the columns that the terminal has no room for. Inside an
        epoch, its number is a fraction."""
        e, lr, per_epoch = self._run.experiment, self._last.get("lr"), self._run.steps_per_epoch
        monitor, done, whole = e.task.monitor, str(row["epoch"]), str(self._epochs)
        if row["kind"] == "validation":
            done = f"{row['step'] / per_epoch:.2f}"
        inside = e.validate_every_steps is not None or e.max_hours is not None or self._steps % per_epoch
        if inside or row["kind"] == "validation":
            whole += ".00"
        ranks = {"train_loss": 7, "val_loss": 6, "val_accuracy": 3, monitor: 8}
        cells = [
            _Cell(9, "epoch", f"{done}/{self._epochs}", len(f"{whole}/{self._epochs}")),
            _Cell(4, "step", f"{row['step']:,}", len(f"{self._steps:,}")),
            _Cell(5, "lr", "" if lr is None else f"{lr:.3g}", _LEAST_WIDTH),
            *(
                _Cell(rank, name.replace("_", " "), _figure(name, row[name]), _LEAST_WIDTH)
                for name, rank in ranks.items()
                if name in row
            ),
            _Cell(2, "samples/s", _figure("samples_per_second", row["samples_per_second"])),
            _Cell(1, "seconds", _figure("seconds", row["seconds"])),
        ]
        cells, widths = _fitting(cells, columns(self.console))
        titles = [(each.title, width) for each, width in zip(cells, widths, strict=True)]
        if titles != self._columns:
            self._columns = titles
            self.console.print(Text("  ".join(cell(title, width) for title, width in titles), style="bold"))
        self.console.print(Text("  ".join(cell(each.text, w) for each, w in zip(cells, widths, strict=True))))

    def _precision(self, row: Mapping[str, Any]) -> None:
        times = ", ".join(
            f"{name} {'not finite' if value is None else f'{value:.1f} ms'}"
            for name, value in row["milliseconds"].items()
        )
        show(self.console, "", f"{row['chosen']} is taken, by trying a pass of a micro-batch: {times}")

    def _move(self) -> None:
        now, step = time.monotonic(), self._last["step"]
        self._times = [*self._times[-50:], (now, step)]  # validation counts: the time left will have it too
        (then, before), rate = self._times[0], 0.0
        if now > then and step > before:
            rate = (step - before) / (now - then)
        samples = rate * self._run.samples / self._run.steps_per_epoch
        epoch = f"epoch {min(self._last['epoch'], self._epochs)}/{self._epochs}"
        place = (3, f"step {step:,}/{self._steps:,}")
        figures = (  # rank and text
            (7, f"loss {_figure('loss', self._last['loss'])}"),
            (4, f"lr {self._last['lr']:.3g}"),
            (5, f"{samples:,.0f} samples/s" if rate else ""),
        )
        left = (6, f"{clock((self._steps - step) / rate)} left" if rate else "")
        more = ((2, waiting(self._validated)), (1, memory(self._validated)))
        share, line = step / max(1, self._steps), [(8, epoch), place, *figures, left, *more]
        if self._moves:
            self._bar = Bar(share, epoch, (place, left), (*figures, *more))
            self._show(self._bar)
        elif self._line:
            self._line.show(joined(line, None), share)
        elif now - self._said > _PLAIN_SECONDS:
            self._said = now
            self.console.print(Text(joined(line, columns(self.console))))

    def _show(self, what: Any) -> None:
        if self._live is None:
            self._live = Live(console=self.console, transient=True, refresh_per_second=4)
            self._live.start()
        lines = 2 if isinstance(what, Bar) else 1
        self._live.update(Padding(what, (0, _ECHO, 0, 0)), refresh=lines != interrupts.drawn[0])
        interrupts.drawn[0] = lines

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            interrupts.drawn[0] = 1
        if self._line:
            self._line.close()
        self._live = self._bar = None


@dataclass(frozen=True)
class _Cell:
    """A figure of an epoch; of the cells that a terminal has no room for, those of the lowest rank go first."""

    rank: int
    title: str
    text: str
    least: int = 0


def _fitting(cells: list[_Cell], width: int | None) -> tuple[list[_Cell], list[int]]:
    """Return the cells that fit side by side, and their widths: long titles are cut before cells are left out."""
    longest = _LONG_TITLE
    while True:
        widths = [max(each.least, min(cell_len(each.title), longest)) for each in cells]
        if width is None or len(cells) == 1 or sum(widths) + 2 * len(widths) - 2 <= width:
            return cells, widths
        if longest == _SHORT_TITLE:
            out = min(cells, key=lambda each: each.rank)
            cells = [each for each in cells if each is not out]
        longest = _SHORT_TITLE


def _figure(key: str, value: float | None) -> str:
    """Return a figure in at most nine characters."""
    if value is None:
        return "inf/nan"
    if key == "samples_per_second":
        return f"{value:,.0f}" if value < 1e7 else f"{value:.3g}"
    if key == "seconds":
        return f"{value:.1f}" if value < 1e5 else f"{value:.3g}"
    if value == 0 or 1e-3 <= abs(value) < 100:
        return f"{value:.4f}"
    return f"{value:.1f}" if 100 <= abs(value) < 1e5 else f"{value:.3g}"


def terminal(lasting: bool = False) -> RichConsole:
    """Return a console on standard output.

    Args:
        lasting: what standard output refuses is dropped: for a training, which is worth more than its output.
    """
    return RichConsole(file=cast(TextIO, Output(sys.stdout, lasting)), highlight=False, soft_wrap=True)


def clock(seconds: float | None) -> str:
    """Return minutes and seconds, with hours where there are any."""
    if seconds is None:
        return "?"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def show_plan(console: RichConsole, lines: Sequence[tuple[str, str]]) -> None:
    """Print a plan's lines: a name and what there is to say."""
    for name, text in lines:
        style = "yellow" if name in ("note", "skipped", "ignored") else ""
        show(console, f"{name:>8}  ", text, style)


def show_evaluation(result: dict[str, Any], where: str) -> None:
    """Print the figures of an evaluated run, and the samples that were left out."""
    floor = {name: f" (a constant answer: {_figure(name, one)})" for name, one in result.get("baseline", {}).items()}
    facts = [
        (
            name.replace("_", " "),
            (_figure(name, value) if isinstance(value, float) else f"{value:,}") + floor.get(name, ""),
        )
        for name, value in result.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if result.get("whole"):
        facts.append(("samples", "all of them: these are not the run's data, and have no splits"))
    if skipped := result["skipped"]:
        facts.append(("skipped", errors.listed(skipped, 3)))
    what = f"{result['checkpoint']} on {result['split']}"
    if "folds" in result:
        what = f"the {result['checkpoint']} checkpoints of all folds, each on what it left out"
    if "models" in result:
        what = f"the mean answers of all folds' {result['checkpoint']} checkpoints on {result['split']}"
    show_facts(terminal(), f"{what}, of {where}", facts)
    _show_classes(result.get("per_class", []))
    _show_groups("fold", result.get("folds", {}))
    _show_groups("group", result.get("groups", {}))


def _word(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else errors.one_line(str(value))


def _show_groups(kind: str, groups: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a table of groups or folds; of many, the largest."""
    if not groups:
        return
    largest = sorted(groups, key=lambda name: -groups[name]["count"])[:_MOST_CLASSES]
    _show_table([{kind: name, **groups[name]} for name in groups if name in largest])
    if len(largest) < len(groups):
        show(terminal(), "  ", f"and {len(groups) - len(largest)} more {kind}s, none larger, which --json prints")


def _show_classes(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of classes; of many, those with the lowest F1."""
    if not rows:
        return
    shown = list(rows)
    if len(rows) > _MOST_CLASSES and all("f1" in row for row in rows):
        shown = sorted(rows, key=lambda row: row["f1"])[:_MOST_CLASSES]
    _show_table(shown)
    if len(shown) < len(rows):
        show(terminal(), "  ", f"and {len(rows) - len(shown)} classes with a higher f1, which --json prints")


def _show_table(rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))  # a task of the user's may leave some out
    table = [names, *([_word(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    for number, line in enumerate(table):
        cells = (
            cell(text, width, left=not place) for place, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        terminal().print(Text("  " + "  ".join(cells), style="" if number else "bold"))
