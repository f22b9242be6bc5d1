"""What pages of HTML are read with in tests, and run directories of made-up figures."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from raytrain import CNN, MNIST, SGD, Experiment, Run
from tests.helpers.ranks import new_run

HOSTILE = "<script>alert(1)</script>&\"'"
BASE = Experiment(model=CNN(), data=MNIST(root="data"), optimizer=SGD(lr=0.1), epochs=2)
VOID = {"meta", "link", "path", "circle", "br", "img"}


class Page(HTMLParser):
    """The tables, texts and tags of a page; fails where tags do not match."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag == "table":
            self.rows: list[list[str]] = []
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if "caption" in self.open:
            self.tables[data] = self.rows
        elif self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def a_run(folder: Path, experiment: Experiment = BASE, epochs: int = 2, steps: int = 5) -> Run:
    """A run directory as a training leaves it, of made-up figures."""
    path, rows, random = new_run(folder, experiment), [], np.random.default_rng(steps)
    for epoch in range(1, epochs + 1):
        for step in range((epoch - 1) * steps + 1, epoch * steps + 1):
            loss = None if step == 2 else float(random.random())
            rows.append({"kind": "step", "step": step, "epoch": epoch, "loss": loss, "lr": 0.1 / step})
        seen = {name: float(random.random()) for name in ("train_loss", "val_loss", "val_accuracy")}
        rows.append({"kind": "epoch", "epoch": epoch, "step": epoch * steps, **seen, "samples_per_second": 9.5})
        rows[-1]["seconds"] = 1.25
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = {
        "status": "completed",
        "monitor": "val_accuracy",
        "val_accuracy": 0.75,
        "best_epoch": 2,
        "epochs": epochs,
        "baseline": {"val_accuracy": 0.125, "val_loss": 2.0},
    }
    summary |= {"steps": epochs * steps, "seconds": 2.5, "samples_per_second": 9.5, "peak_memory_bytes": 2**30}
    (path / "summary.json").write_text(json.dumps(summary | {"workers": 1, "device": "cpu"}))
    (path / "environment.json").write_text(json.dumps({"git_commit": "abc123", "data_fingerprint": {"val": "f00d"}}))
    return Run(path)
