"""The terminal: the plan, a progress bar, a line an epoch, and what came of it. Plain lines where no terminal is."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO, cast

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from raytrain.observe import Observer
from raytrain.plan import Plan
from raytrain.report.output import Output
from raytrain.run import Run
from raytrain.task import Classification

_PLAIN_SECONDS = 10.0
_KEYS = {
    "train_loss": "train loss",
    "val_loss": "val loss",
    "val_accuracy": "val accuracy",
    "samples_per_second": "samples/s",
    "seconds": "seconds",
}


class Console(Observer):
    """Shows a run on standard output."""

    def __init__(self, console: RichConsole | None = None):
        self.console = console or terminal(lasting=True)
        self._live: Live | None = None
        self._bar: Progress | None = None
        self._shown: Any = None
        self._task: Any = None
        self._times: list[tuple[float, int]] = []
        self._last: dict[str, Any] = {}
        self._said = 0.0
        self._columns: list[str] = []
        self._epochs = 0

    def planned(self, plan: Plan) -> None:
        """Prints the plan."""
        show_plan(self.console, plan.lines())

    def status(self, text: str) -> None:
        """A spinner, or a line."""
        if self.console.is_terminal:
            self._show(Spinner("dots", text=f" {text} ..."))
        else:
            self.console.print(f"{text} ...")

    def started(self, run: Run, plan: Plan, rows: list[dict[str, Any]]) -> None:
        """Says which samples are left out, now that all were read, and begins the bar, where a resumed run goes on."""
        if plan.skipped:
            show_plan(self.console, [*plan.skipped, ("", f"all of them are in {run.path / 'skipped.json'}")])
        e = plan.experiment
        self._monitor = e.task.monitor
        self._epochs, self._steps, self._batch = e.epochs, plan.steps_per_epoch, e.batch_size
        self._total, self._samples = e.epochs * plan.steps_per_epoch, len(plan.indices["train"])
        for row in rows:
            if row["kind"] == "epoch":
                self._epoch(row)
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.fields[epoch]}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[figures]}"),
                console=self.console,
                expand=True,
            )
            self._task = self._bar.add_task("", total=self._total, epoch="starting the workers ...", figures="")
            self._show(self._bar)

    def rows(self, rows: list[dict[str, Any]]) -> None:
        """Moves the bar; adds a line for each epoch."""
        for row in rows:
            if row["kind"] == "step":
                self._last = row
            elif row["kind"] == "epoch":
                self._epoch(row)
            elif row["kind"] == "precision":
                self._precision(row)
        if rows and rows[-1]["kind"] == "step":
            self._move()
            if self._bar is not None:
                self._show(self._bar)

    def workers(self, event: str, why: str, checkpoint: str) -> None:
        """A line for each time that the workers are started again."""
        self.console.print(
            Text(f"{event}: ", style="bold yellow").append(f"{why}; from {checkpoint or 'the start'}", style="not bold")
        )

    def note(self, text: str) -> None:
        """A line of its own."""
        show_plan(self.console, [("note", text)])

    def finished(self, run: Run) -> None:
        """The summary, and what to type next."""
        self._stop()
        summary, rate = run.summary, run.summary.get("samples_per_second")
        status = summary["status"]
        names = [summary["monitor"]] if "monitor" in summary else ["val_accuracy", "val_loss"]  # of an older run
        epochs = self._epochs or summary.get("epochs")  # those planned: the summary has those done
        best = [f"best {name} {_figure(name, summary[name])}" for name in names if summary.get(name) is not None][:1]
        facts = [
            *([f"step {summary['steps']:,}"] if status != "completed" and summary.get("steps") else []),
            *best,
            *([f"epoch {summary['best_epoch']} of {epochs:,}"] if best else []),
            *(["stopped early"] if summary.get("stopped_early") else []),
            *([f"{summary['skipped_steps']:,} steps skipped"] if summary.get("skipped_steps") else []),
            *([f"{rate:,.0f} samples/s"] if rate else []),
            *([f"{summary['seconds']:.1f} s of training"] if summary.get("seconds") else []),
        ]
        self.console.print(
            Text(f"{status}: ", style="bold green" if status == "completed" else "bold yellow").append(
                ", ".join(facts) or f"{summary['steps']} steps", style="not bold"
            )
        )
        self.console.print(f"the run is {'at' if run.url else 'in'} {run.where}")
        predicts = isinstance(run.experiment.task, Classification)
        if status == "completed":
            self.console.print(
                f"next:  raytrain evaluate {run.where}\n"
                + (f"       raytrain predict {run.where} IMAGE ...\n" if predicts else "")
                + f"       raytrain export {run.where} model.pth"
            )
        else:
            self.console.print(f"next:  raytrain resume {run.where}")

    def close(self) -> None:
        """Takes the bar away, for what is printed after a failure."""
        self._stop()

    def _epoch(self, row: dict[str, Any]) -> None:
        table = [("epoch", f"{row['epoch']}/{self._epochs}")]
        keys = {**_KEYS, self._monitor: self._monitor.replace("_", " ")}
        last = ("samples_per_second", "seconds")
        shown = [key for key in keys if key not in last] + list(last)
        table += [(keys[key], _figure(key, row[key])) for key in shown if key in row]
        titles = [title for title, _ in table]
        if titles != self._columns:
            self._columns = titles
            self.console.print(Text("  ".join(f"{title:>12}" for title in titles), style="bold"))
        self.console.print("  ".join(f"{text:>12}" for _, text in table))

    def _precision(self, row: dict[str, Any]) -> None:
        times = ", ".join(
            f"{name} {'not finite' if value is None else f'{value:.1f} ms'}"
            for name, value in row["milliseconds"].items()
        )
        self.console.print(f"{row['chosen']} is taken, by trying a pass of a micro-batch: {times}")

    def _move(self) -> None:
        now, step = time.monotonic(), self._last["step"]
        self._times = [*self._times[-50:], (now, step)]  # validation counts: the time left will have it too
        (then, before), rate = self._times[0], 0.0
        if now > then and step > before:
            rate = (step - before) / (now - then)
        samples = rate * self._samples / self._steps
        left = (self._total - step) / rate if rate else None
        figures = f"loss {_figure('loss', self._last['loss'])}"
        if rate:
            figures += f"  {samples:,.0f} samples/s  {clock(left)} left"
        epoch = f"epoch {min(self._last['epoch'], self._epochs)}/{self._epochs}"
        if self._bar is not None:
            self._bar.update(self._task, completed=step, epoch=epoch, figures=figures)
        elif now - self._said > _PLAIN_SECONDS:
            self._said = now
            self.console.print(f"{epoch}  step {step:,} of {self._total:,}  {figures}")

    def _show(self, what: Any) -> None:
        if self._live is None:
            self._live = Live(console=self.console, transient=True, refresh_per_second=8)
            self._live.start()
        if what is not self._shown:
            self._shown = what
            self._live.update(Group(what))

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._live = self._bar = self._shown = None


def _figure(key: str, value: float | None) -> str:
    if value is None:
        return "not finite"
    if key == "samples_per_second":
        return f"{value:,.0f}"
    if key == "seconds":
        return f"{value:.1f}"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.4g}"


def terminal(lasting: bool = False) -> RichConsole:
    """Return a console on standard output.

    Args:
        lasting: what standard output refuses is dropped: for a training, which is worth more than its output.
    """
    return RichConsole(file=cast(TextIO, Output(sys.stdout, lasting)), highlight=False, soft_wrap=True)


def clock(seconds: float | None) -> str:
    """Minutes and seconds, with hours where there are any."""
    if seconds is None:
        return "?"
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def show_plan(console: RichConsole, lines: Sequence[tuple[str, str]]) -> None:
    """Prints a plan's lines: a name and what there is to say."""
    for name, text in lines:
        style = "yellow" if name in ("note", "skipped", "ignored") else "not bold"
        console.print(Text(f"{name:>8}  ", style="bold").append(text, style=style))


def table(title: str, rows: list[tuple[str, str]]) -> Table:
    """A two-column table for results."""
    result = Table(title=title, show_header=False, title_justify="left")
    for name, value in rows:
        result.add_row(name, value)
    return result
