"""The HTML page of runs: its numbers and its safety."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from raytrain import MNIST, SGD, Augment, Batch, Classification, Cosine, Run, cli, errors
from raytrain.report import html, run_evaluation, run_page
from raytrain.report.run_curves import Rows, charts
from tests.helpers.pages import BASE, HOSTILE, Page, a_run
from tests.helpers.ranks import new_run


@dataclass(frozen=True)
class Trained(Classification):
    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, int]:
        return super().loss(model, batch)


@dataclass(frozen=True)
class Validated(Classification):
    def each(self, outputs: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return super().each(outputs, wanted)


@dataclass(frozen=True)
class Both(Trained, Validated):
    """Perhaps with one function."""


def rows_of(run: Run, kind: str) -> list[dict]:
    found = map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())
    return [row for row in found if row["kind"] == kind]


def test_the_tables_have_the_numbers_of_metrics_jsonl(tmp_path: Path) -> None:
    run = a_run(tmp_path / "one")
    page = Page(run_page.single(run))
    steps, epochs = rows_of(run, "step"), rows_of(run, "epoch")
    wanted = [["training", str(row["step"]), "-" if row["loss"] is None else str(row["loss"])] for row in steps]
    wanted += [["validation", str(row["step"]), str(row["val_loss"])] for row in epochs]
    assert page.tables["Loss"][1:] == wanted
    rates = [["learning rate", str(row["step"]), str(row["lr"])] for row in steps]
    assert page.tables["Learning rate"][1:] == rates
    names = page.tables["Validations"][0]
    for shown, row in zip(page.tables["Validations"][1:], epochs, strict=True):
        assert [shown[names.index(name)] for name in ("step", "train_loss", "val_accuracy")] == [
            str(row[name]) for name in ("step", "train_loss", "val_accuracy")
        ]
    assert [row[-1] for row in page.tables["Validations"][1:]] == ["1.2", "2.5"]
    assert ["git commit", "abc123"] in page.tables["Code"]
    assert "0.7500" in page.texts and "1.0 GiB" in page.texts and "0.1250" in page.texts


def test_a_long_run_is_drawn_by_means_of_its_steps(tmp_path: Path) -> None:
    run = a_run(tmp_path / "long", steps=1000)
    losses = [row["loss"] for row in rows_of(run, "step")]
    shown = Page(charts([Rows.of(run, "long")])).tables["Loss"][1:]
    first = [row for row in shown if row[0] == "training, mean of 7 steps"]
    assert len(first) == 286 and len(run_page.single(run)) < 100_000
    assert float(first[0][2]) == pytest.approx(np.mean([x for x in losses[:7] if x is not None]))
    assert [first[-1][1], float(first[-1][2])] == ["2000", pytest.approx(np.mean(losses[1995:]))]


def test_samples_that_were_left_out_are_named(tmp_path: Path) -> None:
    run = a_run(tmp_path / "one")
    assert not [row for row in Page(run_page.single(run)).tables["Data"] if row[0].startswith("left out")]
    environment = json.loads((run.path / "environment.json").read_text())
    (run.path / "environment.json").write_text(json.dumps(environment | {"samples": {"train": 1200, "val": 9}}))
    bad = [{"row": row, "path": f"photos/{row}.jpg", "reason": "cut off"} for row in range(1010)]
    (run.path / "skipped.json").write_text(json.dumps({"train": bad, "val": bad[:1], "test": []}))
    left = [row for row in Page(run_page.single(run)).tables["Data"] if row[0].startswith("left out")]
    assert [row[0] for row in left] == ["left out of train", "left out of val"]
    assert left[0][1].startswith("1,010 of 1,200 cannot be read: photos/0.jpg (cut off), photos/1.jpg (cut off), ")
    assert left[0][1].endswith("photos/7.jpg (cut off) and 1002 more")
    assert left[1][1] == "1 of 9 cannot be read: photos/0.jpg (cut off)"
    for text in ('{"train": 3, "val": [4]}', "[", "[]"):
        (run.path / "skipped.json").write_text(text)
        assert "left out of" not in run_page.single(run)


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    run = a_run(tmp_path / HOSTILE.replace("/", "\\"), replace(BASE, data=MNIST(root=HOSTILE)))
    (run.path / "environment.json").write_text(json.dumps({"command": [HOSTILE, "s3://me:word@x/y?key=s3cret"]}))
    other = a_run(tmp_path / "other")
    for text in (run_page.single(run), run_page.comparison([run, other])):
        page = Page(text)
        assert not {"script", "img", "iframe", "b"} & {tag for tag, _ in page.tags} and "<script" not in text
        assert not [name for _, given in page.tags for name in given if name.startswith("on")]
        assert HOSTILE in "".join(page.texts)
        assert not [
            found for found in re.findall(r'(?:src|href)="([^"]*)', text) if not found.startswith(("#", "data:,"))
        ]
        assert "s3cret" not in text and "me:word" not in text
    assert "\\udcff" in html.safe("\udcff")


def test_what_differs_from_the_defaults_is_listed() -> None:
    assert run_page.differing(BASE) == {"model": "CNN", "data": "MNIST", "data.root": "data", "epochs": 2}
    other = replace(BASE, optimizer=SGD(lr=0.2), schedule=Cosine(warmup_epochs=0.5), epochs=1)
    found = run_page.differing(other)
    assert found["optimizer.lr"] == 0.2 and found["schedule"] == "Cosine" and found["schedule.warmup_epochs"] == 0.5
    assert "epochs" not in found


def test_several_runs_are_compared(tmp_path: Path) -> None:
    first = a_run(tmp_path / "a" / "run")
    second = a_run(tmp_path / "b" / "run", replace(BASE, optimizer=SGD(lr=0.2)), steps=10)
    page = Page(run_page.comparison([first, second]))
    assert page.tables["Differences of the experiments"] == [
        ["field", "a/run", "b/run"],
        ["optimizer.lr", "0.1", "0.2"],
    ]
    assert [row[0] for row in page.tables["Results"]] == ["run", "a/run", "b/run"]
    shown = page.tables["val_accuracy"][1:]
    wanted = [row["val_accuracy"] for run in (first, second) for row in rows_of(run, "epoch")]
    assert [float(row[2]) for row in shown] == wanted
    assert [row[:2] for row in shown] == [["a/run", "1.0"], ["a/run", "2.0"], ["b/run", "1.0"], ["b/run", "2.0"]]
    assert "The experiments are equal." in Page(run_page.comparison([first, first])).texts
    with pytest.raises(errors.UserError, match="at most 50 runs"):
        run_page.write([first] * 51)


def test_many_runs_are_rows_and_the_best_comes_first(tmp_path: Path) -> None:
    runs = []
    for place, accuracy in enumerate((0.5, 0.9, None, 0.7, 0.8, 0.6, 0.4)):
        run = a_run(tmp_path / f"r{place}", replace(BASE, optimizer=SGD(lr=0.1 + place)), steps=5)
        summary = run.summary | {"monitor": "val_accuracy", "direction": "max", "val_accuracy": accuracy}
        (run.path / "summary.json").write_text(json.dumps(summary))
        runs.append(Run(run.path))
    page = Page(run_page.comparison(runs))
    order = ["r1", "r4", "r3", "r5", "r0", "r6", "r2"]
    assert [row[0] for row in page.tables["Results"][1:]] == order
    assert page.tables["Differences of the experiments"] == [
        ["run", "optimizer.lr"],
        *([name, f"{0.1 + int(name[1])}"] for name in order),
    ]


def test_steps_that_metrics_jsonl_lacks_are_counted(tmp_path: Path) -> None:
    whole, cut = a_run(tmp_path / "whole"), a_run(tmp_path / "cut")
    lines = (file := cut.path / "metrics.jsonl").read_text().splitlines(keepends=True)
    file.write_text("".join(["{", *lines[1:3]]))
    said = f"cut/metrics.jsonl is damaged: it has rows of 1 of {whole.summary['steps']} steps."
    assert "is damaged" not in run_page.single(whole)
    assert said in run_page.single(cut) and said in run_page.comparison([whole, cut])


def test_an_empty_run_has_a_page(tmp_path: Path) -> None:
    run = Run(new_run(tmp_path / "new", BASE))
    texts = Page(run_page.single(run)).texts
    assert "unfinished" in texts and "The run has no metrics yet." in texts and "The run has no checkpoint." in texts


def test_classes_are_shown_or_the_page_says_how_to_get_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = a_run(tmp_path / "one")
    text = run_page.single(run)
    assert "Not computed" in text and "--evaluate" in text and "<h2>Validation" in text  # there is no data
    result = {"checkpoint": "step_00000010", "count": 10, "classes": ["a", "<b>"], "confusion": [[4, 1], [2, 3]]}
    result["per_class"] = [{"class": name, "f1": 0.5} for name in ("a", "<b>")]
    asked: list[bool] = []
    monkeypatch.setattr(run_evaluation.inference, "evaluate", lambda *_, **more: asked.append(True) or result)
    monkeypatch.setattr(run_evaluation, "checked_indices", lambda data: {"val": range(10_000)})
    text = run_page.single(run)  # 10,000 samples at 9.5 a second
    assert "it takes about 1,053 s" in text and not asked
    page = Page(run_page.single(run, limit=None))
    matrix = next(rows for caption, rows in page.tables.items() if caption.startswith("Confusion matrix"))
    assert matrix == [["", "a", "<b>"], ["a", "4", "1"], ["<b>", "2", "3"]]
    assert page.tables["Most frequent mistakes"][1:] == [["<b>", "a", "2"], ["a", "<b>", "1"]]


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, other = a_run(tmp_path / "one"), a_run(tmp_path / "two")
    assert cli.run(["report", str(run.path)]) == 0
    assert capsys.readouterr().out == f"wrote {run.path}/report.html\n"
    Page((run.path / "report.html").read_text())
    assert cli.run(["report", str(run.path), str(other.path), "--out", str(tmp_path / "x.html")]) == 0
    assert "2 runs compared" in (tmp_path / "x.html").read_text()
    capsys.readouterr()
    capsys.readouterr()
    (tmp_path / "cv").mkdir()
    (tmp_path / "cv" / "sweep.json").write_text("{}")
    beside = [str(tmp_path / "cv"), str(tmp_path / "x.html")]
    assert cli.run(["report", *beside, str(run.path), "--out", str(tmp_path / "x.html")]) == 0
    said = capsys.readouterr()
    assert said.err == f"left out, as they are no runs: {', '.join(beside)}\n" and "wrote " in said.out
    assert cli.run(["report", str(run.path), str(tmp_path / "none"), "--out", str(tmp_path / "x.html")]) == 2
    assert cli.run(["report", *beside]) == 2
    assert cli.run(["report", str(run.path), "--out", str(tmp_path / "no" / "x.html")]) == 2
    assert cli.run(["report"]) == 2
    (tmp_path / "sweep.json").write_text("{}")
    assert cli.run(["report", str(tmp_path), "--out", "x.html"]) == 2
    assert all(line.startswith("error: ") for line in capsys.readouterr().err.splitlines())


def _contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("theme", "curves"), [(html.LIGHT, html.CURVES_LIGHT), (html.DARK, html.CURVES_DARK)])
def test_texts_and_curves_have_contrast(theme: dict[str, str], curves: tuple[str, ...]) -> None:
    texts = [theme[name] for name in ("ink", "muted", "link", "good", "warn")]
    for colour in (*texts, *curves):
        assert min(_contrast(colour, theme["ground"]), _contrast(colour, theme["panel"])) >= 4.5, colour


def test_losses_that_cannot_be_compared_are_named(tmp_path: Path) -> None:
    said = "The training loss is not that of validation"
    assert said not in run_page.single(a_run(tmp_path / "plain"))
    mixed = replace(BASE.data, augment=Augment(mixup=0.2))
    assert said not in run_page.single(a_run(tmp_path / "both", replace(BASE, task=Both())))
    tasks = (Classification(label_smoothing=0.1), Trained(), Validated())
    for number, change in enumerate(({"data": mixed}, *({"task": task} for task in tasks))):
        assert said in run_page.single(a_run(tmp_path / str(number), replace(BASE, **change)))
