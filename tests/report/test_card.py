"""The model card of an export: what it says of the run is true, and its example runs."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.commands import VALUE, copied, fails, finished, make_run, succeeds, without_ray

from raytrain import CNN, Data, Experiment, Field, Index, Run
from raytrain.checkpoint import checkpoints
from raytrain.report import card
from raytrain.tools import inference
from raytrain.tools.export import Parity

__all__ = ["copied", "finished", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]
DIGIT = Field("image", (1, 8, 8), kind="image")


def rows(text: str, section: str) -> dict[str, list[str]]:
    """The cells of the tables in a section, by the first of each row."""
    part = re.split(r"^## ", text, flags=re.MULTILINE)
    (found,) = [one for one in part if one.startswith(section)]
    lines = [line for line in found.splitlines() if line.startswith("| ")]
    cells = [[re.sub(r"\\(.)", r"\1", cell.strip()) for cell in line[2:-2].split(" | ")] for line in lines]
    return {one[0]: one[1:] for one in cells}


@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".pth", ".safetensors"])
def test_the_example_runs(
    finished: Run, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    file = tmp_path / f"a model{suffix}"
    said = succeeds(capsys, "export", finished.path, file)
    assert said.splitlines()[0] == f"wrote {file} and a model.md"
    text = (tmp_path / "a model.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(code.splitlines()) <= 6
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of libraries
        exec(code, names)
    assert list(names["outputs"].shape) == [1, 10]
    form = "uint8 [batch, 1, 8, 8], of any size of batch" if suffix in (".onnx", ".pt2") else "float32 [batch, 1, 8, 8]"
    assert rows(text, "Input")["input"] == [form]
    assert ("on 64 validation samples" in text) == (suffix in (".onnx", ".pt2"))
    succeeds(capsys, "export", finished.path, file)  # a card may be replaced


def test_scores_are_those_of_evaluate(copied: Run, tmp_path: Path) -> None:
    summary = {"status": "completed", "epochs": 2, "device": "cpu", "samples_per_second": 5000.0}
    (copied.path / "summary.json").write_text(json.dumps(summary))
    parity, result = Parity(64, 1e-7, 3.0, (DIGIT,)), inference.evaluate(copied)
    text = card.text(copied, tmp_path / "m.onnx", "best", parity)
    scores = rows(text, "Scores")
    assert "On 359 samples of the validation split, each counted once, computed for this card." in text
    assert float(scores["accuracy"][0]) == pytest.approx(result["accuracy"], abs=1e-4)
    for row in result["per_class"]:
        found = dict(zip(scores["class"], scores[row["class"]], strict=True))
        assert float(found["recall"]) == pytest.approx(row["recall"], abs=1e-4) and int(found["count"]) == row["count"]
    data = rows(text, "Training data")
    assert data["train"][0].startswith("1,438 samples, fingerprint ") and data["val"][0].startswith("359 samples")
    assert "1.0e-07 (the greatest output is 3), on 64 validation samples" in text


def test_scores_that_the_run_knows_are_read_where_computing_them_takes_long(copied: Run, tmp_path: Path) -> None:
    text = card.text(copied, tmp_path / "m.pth", "best", None)
    assert "None are known: the run's speed is unknown." in text
    row = {"kind": "epoch", "epoch": 2, "step": 30, "val_loss": 0.25, "val_accuracy": 0.9375}
    with open(copied.path / "metrics.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n" + json.dumps(row | {"step": 31, "val_accuracy": 1.0}) + "\n")
    text = card.text(copied, tmp_path / "m.pth", "best", None)
    assert rows(text, "Scores") == {"metric": ["value"], "loss": ["0.25"], "accuracy": ["0.9375"]}
    assert "On 359 samples of the validation split, each counted once, as the run computed them." in text
    assert "None are known" in card.text(copied, tmp_path / "m.pth", "last", None)
    (copied.path / "environment.json").unlink()
    assert "0.9375" in card.text(copied, tmp_path / "m.pth", "best", None)


@dataclass(frozen=True)
class Marked(Data):
    """Images whose classes have names with marks of Markdown and HTML."""

    def index(self) -> dict[str, Index]:
        names = ("a|b", "<script>*_`", "c\nd")
        return {split: Index(np.arange(6) % 3, names, (1, 8, 8), split) for split in ("train", "val", "test")}

    def read(self, index: Index, samples: np.ndarray) -> np.ndarray:
        return np.zeros((len(samples), *index.shape), np.uint8)


def test_names_have_no_marks(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", Experiment(CNN(channels=(2,)), Marked()), steps=2)
    text = card.text(run, tmp_path / "m.pth", "best", None)
    assert r"3, in the order of the outputs: a\|b, \<script\>\*\_\`, c d" in text and "<script" not in text.replace(
        r"\<", ""
    )
    assert "The test split (6 samples) was not evaluated for this card." in text


def test_a_table_of_numbers_has_no_preprocessing(copied: Run, tmp_path: Path) -> None:
    state = checkpoints.load_state(copied.checkpoint()) | {"input_kind": "plain"}
    checkpoints.save(copied.checkpoints, 31, copied.model().state_dict(), {}, state | {"progress": {"step": 31}})
    (copied.path / "best.json").write_text(json.dumps({"checkpoint": "step_00000031"}))
    text = card.text(copied, tmp_path / "m.pth", "best", None)
    assert "preprocessing" not in text and rows(text, "Input")["input"] == ["float32 [batch, 1, 8, 8]"]


def test_a_file_that_is_no_card_is_not_replaced(finished: Run, capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Mine\n")
    said = fails(capsys, "export", finished.path, tmp_path / "README.pth")
    assert "the model card would replace README.md, which is no card" in said
    assert (tmp_path / "README.md").read_text() == "# Mine\n" and not (tmp_path / "README.pth").exists()
    (tmp_path / "m.md").mkdir()
    assert "m.md" in fails(capsys, "export", finished.path, tmp_path / "m.pth")


def test_passwords_of_urls_are_left_out(tmp_path: Path) -> None:
    model = replace(VALUE.model, weights="s3://key:secret@bucket/w.pth?token=hidden")
    run = make_run(tmp_path / "run", replace(VALUE, model=model), steps=2)
    text = card.text(run, tmp_path / "m.pth", "best", None)
    assert "s3://...@bucket/w.pth" in text and "secret" not in text and "hidden" not in text
    assert torch.is_grad_enabled()
