"""An HTML page of a run, or of several that it compares."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from raytrain import config, errors
from raytrain.checkpoint import layout, remote
from raytrain.files import known_json, size
from raytrain.report import run_evaluation, run_facts, run_time
from raytrain.report.console import clock
from raytrain.report.html import cell, columns, details, figures, navigation, page, public, safe, scroll, section, table
from raytrain.report.progress import Bar
from raytrain.report.run_curves import Rows, charts
from raytrain.report.trials import cut, number
from raytrain.run.run import Run
from raytrain.tasks.supervised import Supervised
from raytrain.tools import inference
from raytrain.tools.output import write_file

_MOST_RUNS, _MOST_ROWS, _MOST_TEXT = 50, 500, 200_000
_MOST_COLUMNS, _MOST_CELLS, _MOST_NAME = 100, 20_000, 60
_ACROSS = 6
"""Runs that are compared side by side at the most, where fewer fields differ."""
_AT_END = 1.0
"""Most seconds of predictions at the end of a run."""
_TITLES = {"seconds": "time of training", "samples_per_second": "samples/s", "peak_memory_bytes": "peak memory"}


def write(runs: Sequence[Run], out: Path | None = None, evaluate: bool = False) -> Path:
    """Write the page of one run, or of several over each other, and return its place.

    Args:
        out: the file; by default report.html, for several runs comparison.html, in the directory of the first run. A
            run at a URL has no directory here: its page goes to NAME-report.html in the working directory.
        evaluate: compute the rows per class however long that takes.

    Raises:
        UserError: there are too many runs, a run cannot be read, or the place cannot be written.
    """
    if len(runs) > _MOST_RUNS:
        how = "name fewer of them"
        raise errors.UserError(f"a page compares at most {_MOST_RUNS} runs, got {len(runs)}", "", how)
    name = "report" if len(runs) == 1 else "comparison"
    first = runs[0]
    file = out or (Path(f"{first.path.name}-{name}.html") if first.url else first.path / f"{name}.html")
    if len(runs) > 1:
        text = comparison(runs)
    else:
        with Bar("evaluate") as bar:
            text = single(first, None if evaluate else run_evaluation.QUICK, bar.follow)
    write_file(file, text.encode())
    return file


def at_end(run: Run, say: Callable[[str], None]) -> None:
    """Write the page of a run that has just ended into its directory, and at its URL. Predictions are
    computed where they are quick on this machine's CPU, and a failure is one line.

    Args:
        say: is called with that line.
    """
    try:
        quick = run.url is None and run.summary.get("device") == "cpu" and run.summary["status"] == "completed"
        write_file(run.path / "report.html", single(run, _AT_END if quick else 0.0).encode())
        if not remote.silence(run.path):
            remote.conclude(run.path, "report.html")
    except Exception as error:  # the run is good, whatever its page lacks
        say(f"no report was written: {errors.one_line(str(error) or type(error).__name__)}")


def single(run: Run, limit: float | None = run_evaluation.QUICK, follow: inference.Follow | None = None) -> str:
    """Return the page of one run.

    Args:
        limit, follow: see `run_evaluation.sections_of`.
    """
    rows, summary = Rows.of(run, run.path.name), run.summary
    found = run_evaluation.sections_of(run, _command(run), limit, follow)
    times = run_time.section(rows.validations, run.experiment, str(summary.get("device")))
    parts = [
        ("curves", "Curves", charts([rows]) + _lacking(rows, summary) + _losses(run) + _validations(rows)),
        *([("time", "Time spent", times)] if times else []),
        ("experiment", "What was run", _experiment(run)),
        *found,
        ("checkpoints", "Checkpoints", _checkpoints(run)),
    ]
    head = f"<h1>{safe(run.path.name)}</h1>{_outcome(run)}{navigation(parts)}{figures(_summary(summary))}"
    return page(f"{run.path.name}: {summary['status']}", head + "".join(section(*part) for part in parts))


def comparison(runs: Sequence[Run]) -> str:
    """Return the page of several runs, the best one first where one metric chooses the best of each."""
    runs = _ranked(runs)
    names = [cut(name, _MOST_NAME) for name in _names(runs)]
    rows = [Rows.of(run, name) for run, name in zip(runs, names, strict=True)]
    summaries = [run.summary for run in runs]
    monitors = list(dict.fromkeys(str(summary["monitor"]) for summary in summaries if "monitor" in summary))
    keys = ("steps", "epochs", "seconds", "samples_per_second", "peak_memory_bytes", "workers", "device", "precision")
    shown = [
        ("status", "status"),
        *((name, f"best {name}") for name in monitors),
        *((key, _TITLES.get(key, key)) for key in keys),
    ]
    results = []
    for name, summary in zip(names, summaries, strict=True):
        results.append((name, *(_fact(key, summary.get(key)) for key, _ in shown)))
    flat = [config.leaves(run.experiment) for run in runs]
    missing = object()
    paths = [
        path
        for path in dict.fromkeys(path for one in flat for path in one)
        if any(one.get(path, missing) != flat[0].get(path, missing) for one in flat[1:])
    ]
    found = [[path, *(_value(one[path]) if path in one else None for one in flat)] for path in paths]
    titles = ["field", *names]
    if len(runs) > max(_ACROSS, len(paths)):  # a row for each run
        titles, *found = map(list, zip(*[titles, *found], strict=True))
        titles[0] = "run"
    heading = table("Differences of the experiments", titles, found)
    parts = [
        ("results", "Results", table("Results", ("run", *(title for _, title in shown)), results)),
        ("curves", "Curves", charts(rows) + "".join(map(_lacking, rows, summaries))),
        ("differences", "Differences", heading if paths else "<p>The experiments are equal.</p>"),
    ]
    title = f"{len(runs)} runs compared"
    head = f"<h1>{safe(title)}</h1><p class='muted'>{safe(', '.join(names))}</p>{navigation(parts)}"
    return page(title, head + "".join(section(*part) for part in parts))


def _ranked(runs: Sequence[Run]) -> list[Run]:
    """Return runs by the best value of their monitored metric, those without one last; as they are if they do not have
    the same metric."""
    summaries = [run.summary for run in runs]
    best = [number(summary.get(str(summary.get("monitor")))) for summary in summaries]
    chosen = {
        (summary["monitor"], summary.get("direction"))
        for summary, value in zip(summaries, best, strict=True)
        if value is not None
    }
    if len(chosen) != 1:
        return [*runs]
    sign = 1.0 if chosen.pop()[1] == "min" else -1.0
    places = sorted(range(len(runs)), key=lambda place: math.inf if (one := best[place]) is None else sign * one)
    return [runs[place] for place in places]


def _command(run: Run, *words: str) -> str:
    return shlex.join(["raytrain", "report", public(run.where), *words])


def _outcome(run: Run) -> str:
    """Return the status and the best value of the monitored metric."""
    summary = run.summary
    status, monitor = str(summary["status"]), summary.get("monitor")
    kind = "good" if status == "completed" else "warn"
    text = f'<strong class="{kind}">{safe(status)}</strong>'
    if monitor and number(summary.get(monitor)) is not None:
        text += f", best {safe(monitor)} <strong>{safe(cell(summary[monitor]))}</strong>"
        text += f" in epoch {safe(summary['best_epoch'])}" if summary.get("best_epoch") else ""
        text += f", step {safe(cell(summary['best_step']))}" if summary.get("best_step") else ""
    if summary.get("error"):
        text += f". {safe(summary['error'])}"
    return f"<p>{text}</p>"


def _summary(summary: dict[str, Any]) -> dict[str, str]:
    """Return the figures of a run's summary, for people."""
    keys = ("seconds", "samples_per_second", "peak_memory_bytes", "epochs", "steps", "workers", "device", "precision")
    found = {_TITLES.get(key, key): _fact(key, summary[key]) for key in keys if summary.get(key) is not None}
    monitor, floor = str(summary.get("monitor")), summary.get("baseline", {})
    if monitor in floor:
        found[f"{monitor} of a constant answer"] = floor[monitor]
    return {name: cell(value) for name, value in found.items()}


def _fact(key: str, value: Any) -> Any:
    figure = number(value)
    if figure is None:
        return value
    if key == "peak_memory_bytes":
        return size(int(figure))
    if key == "seconds":
        return f"{figure:.1f} s" if figure < 60 else clock(figure)
    return f"{figure:,.0f}" if key == "samples_per_second" else value


def _lacking(rows: Rows, summary: dict[str, Any]) -> str:
    """Return a line where metrics.jsonl lacks steps that the run has trained, since the curves look whole."""
    steps, there = number(summary.get("steps")) or 0, len(rows.steps)
    if there >= steps:
        return ""
    return f"<p>{safe(rows.name)}/metrics.jsonl is damaged: it has rows of {there:,} of {steps:,} steps.</p>"


def _losses(run: Run) -> str:
    """Return a line where training has another loss than validation, so that their curves cannot be compared."""
    task = run.experiment.task
    fields = ("class_weights", "label_smoothing", "focal_gamma", "pos_weight", "teacher")
    weighed = run.experiment.data.augment.mixes or any(getattr(task, name, None) for name in fields)
    own = isinstance(task, Supervised) and _differ(type(task))
    if not weighed and not own:
        return ""
    why = "another function" if own else "with weights, smoothing, mixed images or a teacher"
    return f"<p class='muted'>The training loss is not that of validation: it is {why}.</p>"


def _differ(task: type[Supervised]) -> bool:
    """Return whether the user has changed one of the losses of training and validation; who changed both may have made
    them alike."""
    training, validation = (task.loss, task.training_loss), task.each
    if training == (Supervised.loss, Supervised.training_loss):
        return False  # it is that of validation
    return any(map(_is_users, training)) != _is_users(validation)


def _is_users(method: Callable) -> bool:
    return not method.__module__.startswith("raytrain.")


def _validations(rows: Rows) -> str:
    """Return the table of validations, with all digits."""
    names = ("step", "epoch", "train_loss", *rows.metrics[:_MOST_COLUMNS], "samples_per_second")
    every = -(-len(rows.validations) // min(_MOST_ROWS, _MOST_CELLS // len(names))) or 1
    pairs = list(zip(rows.validations, rows.seconds, strict=True))
    shown = [(*(row.get(name) for name in names), f"{at:.1f}") for row, at in [*pairs[:-1:every], *pairs[-1:]]]
    caption = "Validations" + (f" (one of {every})" if every > 1 else "")
    return details(caption, table(caption, (*names, "seconds so far"), shown, exact=True)) if shown else ""


def _experiment(run: Run) -> str:
    """Return what decided the run: what differs from defaults, the whole experiment, the data and the environment."""
    changed = [(path, _value(value)) for path, value in differing(run.experiment).items()]
    return (
        columns(table("Values that differ from the defaults", ("field", "value"), changed), *run_facts.tables(run))
        + _json("experiment.json", known_json(run.path / "experiment.json"))
        + _json("environment.json", known_json(run.path / "environment.json"))
    )


def _json(name: str, content: dict[str, Any]) -> str:
    text = public(json.dumps(content, indent=2, ensure_ascii=False))
    text = text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}\n..."
    return details(name, scroll(name, f"<pre>{safe(text)}</pre>"))


def _value(value: Any) -> str:
    return public(value if isinstance(value, str) else json.dumps(value))


def differing(value: Any, default: Any = None, path: str = "") -> dict[str, Any]:
    """Return the fields of a dataclass whose values differ from the defaults, by dotted path; of one that has another
    class than the default's, the name of the class under its own path.

    Args:
        default: the dataclass that `value` has the place of; one of another class counts as its class's defaults.
    """
    found: dict[str, Any] = {}
    for field, (now, usual) in config.changed(value, default).items():
        name = f"{path}{field}"
        items = now if isinstance(now, tuple) and any(map(dataclasses.is_dataclass, now)) else ()
        if dataclasses.is_dataclass(now) and not isinstance(now, type):
            if type(now) is not type(usual):
                found[name] = type(now).__name__
            found |= differing(now, usual, f"{name}.")
        elif items:
            for place, item in enumerate(items):
                found[f"{name}.{place}"] = type(item).__name__
                found |= differing(item, None, f"{name}.{place}.")
        else:
            found[name] = config.plain(now)
    return found


def _checkpoints(run: Run) -> str:
    """Return the table of the checkpoints that are kept on this machine."""
    marks = {which: known_json(run.path / f"{which}.json").get("checkpoint") for which in ("best", "last")}
    rows, found = [], layout.committed(run.checkpoints)
    for name in found[-_MOST_ROWS:]:
        with contextlib.suppress(OSError):  # retention of a running run may remove it now
            is_what = ", ".join(which for which, marked in marks.items() if marked == name)
            rows.append((name, layout.step_of(name), size(layout.size_of(str(run.checkpoints / name))), is_what))
    where = f"<p>All are at {safe(public(run.url))}; the table has those on this machine.</p>" if run.url else ""
    if not rows:
        return where or "<p>The run has no checkpoint.</p>"
    return where + table("Checkpoints", ("checkpoint", "step", "size", "which"), rows)


def _names(runs: Sequence[Run]) -> list[str]:
    """Return a name for each run: its directory's, with its parent's where two are equal, or a number."""
    names = [run.path.name for run in runs]
    if len(set(names)) < len(names):
        names = [f"{run.path.absolute().parent.name}/{run.path.name}" for run in runs]
    return [f"{name} ({place})" if names.count(name) > 1 else name for place, name in enumerate(names, 1)]
