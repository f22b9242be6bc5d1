"""What the lines and pictures of a sweep say of values that look alike, of interrupted trials and of chance."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from raytrain.loggers import RunInfo
from raytrain.report import sweep
from raytrain.report.importance import explained
from raytrain.report.plots.importance import draw as draw_importance
from raytrain.report.sweep_table import line
from raytrain.report.trials import Results, Trial, apart


def answer(rows: list[dict[str, Any]], values: list[float]) -> dict[str, Any]:
    trials = [
        {"number": number, "status": "completed", "values": row, "objective": [value]}
        for number, (row, value) in enumerate(zip(rows, values, strict=True))
    ]
    return {"status": "completed", "objectives": [{"name": "val_macro_iou", "mode": "max"}], "trials": trials}


def test_short_values_of_one_class_differ() -> None:
    names = [f"Segmentation(class_weights={weights})" for weights in ("()", "(1.0, 5.0)", "(1.0, 20.0)")]
    assert list(apart([*names, "Own"], 14).values()) == ["…=())", "…=(1.0, 5.0))", "…=(1.0, 20.0))", "Own"]
    assert list(apart(names[1:], 14).values()) == ["…=(1.0, 5.0))", "…=(1.0, 20.0))"]
    assert list(apart(names[1:], 8).values()) == ["…5.0))", "…20.0))"]
    assert list(apart(names[1:], 28).values()) == ["…(class_weights=(1.0, 5.0))", "…(class_weights=(1.0, 20.0))"]
    assert list(apart(["a" * 30 + "x" * 30, "a" * 30 + "y"], 10).values()) == ["…xxxxxxxx…", "…y"]
    assert apart(["abcd", "abce"], 2) == {"abcd": "a…", "abce": "a…"}


def test_lines_and_table_show_where_objects_differ() -> None:
    names = [f"Segmentation(class_weights={weights})" for weights in ("()", "(1.0, 5.0)", "(1.0, 20.0)")]
    content = answer([{"optimizer.lr": 0.1, "task": name} for name in names], [0.5, 0.6, 0.7])
    console = Console(file=io.StringIO(), highlight=False, soft_wrap=True, width=80)
    results = Results.of(content)
    assert "task=…(class_weights=(1.0, 20.0))" in line(results.trials[2], results)
    sweep.Table(console).finish(RunInfo(Path("s"), "s"), content)
    assert isinstance(console.file, io.StringIO)
    out = console.file.getvalue()
    assert "=(1.0, 20.0))" in out and "=(1.0, 5.0))" in out and "=())" in out


def test_a_line_has_each_figure_once() -> None:
    content = answer([{}], [0.1])
    content["trials"][0] |= {"seconds": 2.5, "peak_memory_bytes": 2**30, "objective": [0.1, 2**30, 2.5]}
    content["objectives"] += [{"name": name, "mode": "min"} for name in ("peak_memory_bytes", "seconds")]
    results = Results.of(content)
    said = line(results.trials[0], results)
    assert said.count("1,024 MiB") == said.count("2.5") == 1
    content["objectives"] = content["objectives"][:1]
    assert line(results.trials[0], Results.of(content)).endswith("2.5 s  1,024 MiB")


def test_an_interrupted_trial_is_not_over_a_limit() -> None:
    content = answer([{}], [0.1])
    content["trials"][0] |= {"status": "interrupted", "violates": ["val_macro_iou > 0.4"]}
    results = Results.of(content)
    assert results.trials[0].word == "interrupted" and "0.4" not in line(results.trials[0], results)
    content["trials"][0] |= {"status": "completed"}
    assert Trial.of(content["trials"][0], 0).word == "over a limit"


def test_a_share_that_chance_exceeds_is_at_most_all_of_the_variance() -> None:
    """With 2 degrees of freedom left, 95% of F(2, 2) is 19: more than any share of six results could be."""
    rows = [{"a": 1.0 + place // 3, "b": "xyz"[place % 3]} for place in range(6)]
    values = [0.98, 0.97, 0.88, 0.99, 0.98, 0.97]
    found = explained([[row[name] for row in rows] for name in "ab"], np.array(values)).shares
    assert [share.chance for share in found if share] == [1.0, 1.0]
    figure = draw_importance(Results.of(answer(rows, values)))
    assert figure is not None
    with warnings.catch_warnings(action="error"):  # matplotlib warns of a layout without room
        figure.savefig(io.BytesIO(), format="png")
