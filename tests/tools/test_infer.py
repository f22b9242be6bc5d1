"""What is done with a trained run: evaluate, predict, export, and the mistakes that can be made with them."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from helpers.commands import VALUE, digit_files, fails, finished, make_run, succeeds, without_ray
from helpers.ranks import Ranks, new_run, on_workers, train_rank
from PIL import Image
from pyarrow import csv as csv_file
from safetensors.torch import load_file
from torch import nn
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_confusion_matrix

import raytrain
from raytrain import CNN, Classification, Digits, Experiment, ImageFolder, Manifest, Mixed, Regression, Run, UserError
from raytrain.tools import columns, inference
from raytrain.tools.export import export

__all__ = ["digit_files", "finished", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]


def logits(run: Run, split: str, which: str = "best") -> tuple[torch.Tensor, torch.Tensor]:
    """What the run's model answers on a split, worked out plainly, one image at a time."""
    data = Digits()
    index = data.index()[split]
    images = torch.from_numpy(data.read(index, np.arange(len(index)))).float()
    model = run.model(which)
    with torch.no_grad():
        outputs = [model((image[None] / 255 - 0.305) / 0.376) for image in images]
    return torch.cat(outputs), torch.from_numpy(np.array(index.labels))


# evaluate


@pytest.mark.parametrize(("split", "count"), [("val", 359), ("train", 1438)])
@pytest.mark.parametrize("which", ["best", "last"])
def test_evaluate_equals_torchmetrics(finished: Run, capsys: Capture, split: str, count: int, which: str) -> None:
    said = succeeds(capsys, "evaluate", finished.path, "--split", split, "--checkpoint", which, "--json")
    result, (outputs, labels) = json.loads(said), logits(finished, split, which)
    assert result["count"] == count == len(labels) == np.sum(result["confusion"])
    assert result["accuracy"] == pytest.approx(
        multiclass_accuracy(outputs, labels, 10, average="micro").item(), abs=1e-6
    )
    assert result["top5_accuracy"] == pytest.approx(
        multiclass_accuracy(outputs, labels, 10, average="micro", top_k=5).item(), abs=1e-6
    )
    assert result["loss"] == pytest.approx(nn.functional.cross_entropy(outputs, labels).item(), abs=1e-6)
    assert result["confusion"] == multiclass_confusion_matrix(outputs, labels, 10).tolist()
    assert result["classes"] == [str(digit) for digit in range(10)] and result["split"] == split
    assert result["checkpoint"] == ("step_00000030" if which == "best" else "step_00000015")
    assert result["skipped"] == [] and (which == "last" or result["accuracy"] > 0.8)


@pytest.mark.parametrize("chunk", [1, 7, 100, 359, 360])
def test_no_sample_is_lost_however_many_chunks_there_are(
    finished: Run, monkeypatch: pytest.MonkeyPatch, digit_files: Path, chunk: int
) -> None:
    expected = inference.evaluate(finished)
    monkeypatch.setattr(inference, "_CHUNK", chunk)
    result = inference.evaluate(finished)
    assert result["confusion"] == expected["confusion"] and result["count"] == 359
    files = sorted(str(file) for file in digit_files.rglob("*.png")) * 4
    rows = inference.predict(finished, files)
    assert [row["path"] for row in rows] == files


def test_what_goes_over_samples_can_be_followed(
    finished: Run, monkeypatch: pytest.MonkeyPatch, digit_files: Path
) -> None:
    monkeypatch.setattr(inference, "_CHUNK", 100)
    told: list[tuple[int, int]] = []
    inference.evaluate(finished, follow=lambda *now: told.append(now))
    assert told == [(100, 359), (200, 359), (300, 359), (359, 359)]
    told.clear()
    inference.predict(finished, [str(digit_files)] * 10, follow=lambda *now: told.append(now))
    assert told == [(100, 120), (120, 120)]


def test_evaluate_prints_a_table_for_people(finished: Run, capsys: Capture) -> None:
    said = succeeds(capsys, "evaluate", finished.path)
    assert "step_00000030 on val" in said and "accuracy" in said and "359" in said and "constant" not in said


def test_evaluate_prints_what_a_constant_answer_scores(
    finished: Run, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    floor = {"val_accuracy": 0.125, "val_loss": 2.25, "val_of_an_older_task": 1.0}
    monkeypatch.setattr(Run, "summary", {"status": "completed", "epochs": 2, "baseline": floor})
    said = succeeds(capsys, "evaluate", finished.path)
    assert re.search(r"accuracy +\S+ \(a constant answer: 0.1250\)\n", said), said
    result = json.loads(succeeds(capsys, "evaluate", finished.path, "--json"))
    assert result["baseline"] == {"accuracy": 0.125, "loss": 2.25}
    assert "constant" not in succeeds(capsys, "evaluate", finished.path, "--split", "train"), "it is of validation"


@dataclass(frozen=True)
class Undefined(Classification):
    """A metric that is a division by zero."""

    def results(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        return super().results(sums) | {"undefined": math.nan}


def test_evaluate_prints_null_for_a_metric_that_is_not_finite(tmp_path: Path, capsys: Capture) -> None:
    run = make_run(tmp_path / "run", Experiment(CNN(channels=(2,)), Digits(), Undefined()), steps=2)
    text = succeeds(capsys, "evaluate", run.path, "--json")
    result = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert result["undefined"] is None and result["count"] == 359
    assert "nan" in succeeds(capsys, "evaluate", run.path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "test"], "the data has no test split, Digits; choose one of its splits: train, val"),
        (["--data.root", "/x"], "the run's data has no root to replace, Digits; leave root out"),
    ],
)
def test_evaluate_on_what_the_data_does_not_have(
    finished: Run, capsys: Capture, arguments: list[str], message: str
) -> None:
    assert message in fails(capsys, "evaluate", finished.path, *arguments)


def pictures(root: Path, classes: str, count: int = 3) -> Path:
    for label, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.random.default_rng(10 * label + number).integers(0, 255, (9, 12, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


@pytest.mark.parametrize(("ways", "validate"), [(("bicubic", "bicubic"), None), (("bilinear", "bicubic"), 1)])
def test_files_are_resized_as_the_sources_of_a_mixture_resize_them(
    tmp_path: Path, ways: tuple[Any, Any], validate: int | None
) -> None:
    roots = [pictures(tmp_path / name / split, "ab").parent for name in "xy" for split in ("train", "val")][::2]
    same: dict[str, Any] = {"crop": None, "mean": (0.5,), "std": (0.5,)}
    folders = (ImageFolder(str(root), 8, interpolation=way, **same) for root, way in zip(roots, ways, strict=True))
    data = Mixed(tuple(folders), validate=validate, **same)
    own = data.read(data.index()["val"], np.arange(6))["image"]
    source = inference.file_source(data, (3, 8, 8))
    files = [str(roots[validate or 0] / "val" / f"{label}/{number}.png") for label in "ab" for number in range(3)]
    assert np.array_equal(source.read(inference.file_index(files, source, ("a", "b")), np.arange(6)), own)


def test_samples_of_a_mixture_have_their_source(tmp_path: Path) -> None:
    same: dict[str, Any] = {"crop": None, "mean": (0.5,), "std": (0.5,)}
    roots = [pictures(tmp_path / name / split, "ab").parent for name in "xy" for split in ("train", "val")][::2]
    data = Mixed(tuple(ImageFolder(str(root), 8, **same) for root in roots), **same)
    rows = raytrain.predict(make_run(tmp_path / "run", Experiment(model=CNN(channels=(4,)), data=data)), split="val")
    assert [(r["sample"], r["source"]) for r in rows[::6]] == [("val/a/0.png", 0), ("val/a/0.png", 1)]


def folders(tmp_path: Path, **fields: Any) -> Run:
    root = pictures(tmp_path / "images" / "train", "ab") and pictures(tmp_path / "images" / "val", "ab").parent
    data = ImageFolder(root=str(root), size=8, crop=None, mean=(0.5,), std=(0.5,), **fields)
    return make_run(tmp_path / "folders", Experiment(model=CNN(channels=(4,)), data=data), steps=2)


def test_evaluate_on_another_root_wants_the_same_classes(tmp_path: Path, capsys: Capture) -> None:
    run = folders(tmp_path)
    other = pictures(tmp_path / "other" / "train", "ab", 1) and pictures(tmp_path / "other" / "val", "ab", 5).parent
    said = succeeds(capsys, "evaluate", run.path, "--data.root", other, "--json")
    assert json.loads(said)["count"] == 10 and "top5_accuracy" not in json.loads(said)
    (tmp_path / "images").rename(tmp_path / "away")
    assert "no such folder" in fails(capsys, "evaluate", run.path)
    wrong = pictures(tmp_path / "wrong" / "train", "ac", 1) and pictures(tmp_path / "wrong" / "val", "ac", 1).parent
    said = fails(capsys, "evaluate", run.path, "--data.root", wrong)
    assert f"the run was trained on other classes: the data lacks b and the run lacks c, {wrong}; give" in said


def test_evaluate_skips_or_names_unreadable_images(tmp_path: Path, capsys: Capture) -> None:
    for name, policy in (("one", "skip"), ("two", "error")):
        (tmp_path / name).mkdir()
        run = folders(tmp_path / name, on_bad_sample=policy)
        bad = tmp_path / name / "images" / "val" / "b" / "1.png"
        bad.write_bytes(b"no image")
        if policy == "error":
            assert f"{bad}; repair it, or leave it out" in fails(capsys, "evaluate", run.path)
            continue
        result = json.loads(succeeds(capsys, "evaluate", run.path, "--json"))
        assert (result["count"], result["skipped"]) == (5, [str(bad)])
        assert "skipped" in succeeds(capsys, "evaluate", run.path)


# predict


def test_predict_gives_each_image_the_models_class(finished: Run, capsys: Capture, digit_files: Path) -> None:
    outputs = logits(finished, "val")[0][:12].softmax(dim=1)
    lines = succeeds(capsys, "predict", finished.path, digit_files).splitlines()
    assert len(lines) == 12 and [Path(line.split()[0]).stem for line in lines] == [f"{n:02}" for n in range(12)]
    for line, share in zip(lines, outputs, strict=True):
        _, label, probability = line.split()
        assert label == str(int(share.argmax())) and float(probability) == pytest.approx(float(share.max()), abs=1e-4)
    one = succeeds(capsys, "predict", finished.path, digit_files / "03.png", digit_files / "01.png").splitlines()
    assert one == [lines[3], lines[1]], "in the order that was asked for"


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_predictions_are_written_with_a_column_a_class(
    finished: Run, capsys: Capture, digit_files: Path, tmp_path: Path, suffix: str
) -> None:
    file = tmp_path / f"predictions{suffix}"
    said = succeeds(capsys, "predict", finished.path, digit_files, "--out", file)
    assert said == f"wrote 12 predictions to {file}\n"
    if suffix == ".csv":
        with open(file, newline="") as opened:
            rows = [dict(row) for row in csv.DictReader(opened)]
    elif suffix == ".jsonl":
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    else:
        rows = pyarrow.parquet.read_table(file).to_pylist()
    assert len(rows) == 12 and list(rows[0]) == ["path", "label", "probability", *(f"p_{digit}" for digit in range(10))]
    expected = logits(finished, "val")[0][:12].softmax(dim=1)
    for row, share in zip(rows, expected, strict=True):
        assert [float(row[f"p_{digit}"]) for digit in range(10)] == pytest.approx(share.tolist(), abs=1e-6)
        assert float(row["probability"]) == float(row[f"p_{row['label']}"]) and Path(row["path"]).is_file()
        assert math.isclose(sum(float(row[f"p_{digit}"]) for digit in range(10)), 1, abs_tol=1e-6)


def test_predict_prepares_images_as_the_run_did(tmp_path: Path, capsys: Capture) -> None:
    run = folders(tmp_path)
    index, data = run.experiment.data.index()["val"], run.experiment.data
    inputs = (torch.from_numpy(data.read(index, np.arange(6))) / 255 - 0.5) / 0.5
    with torch.no_grad():
        expected = run.model()(inputs).softmax(dim=1).max(dim=1).values
    lines = succeeds(capsys, "predict", run.path, tmp_path / "images" / "val").splitlines()
    assert [float(line.split()[2]) for line in lines] == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_table_is_predicted_in_its_order(capsys: Capture, digit_files: Path, tmp_path: Path) -> None:
    names = [file.relative_to(digit_files).as_posix() for file in sorted(digit_files.rglob("*.png"))]
    whole = {"path": names, "label": [0, 1] * 6, "split": ["train"] * 8 + ["val"] * 4, "weight": [1.0] * 12}
    csv_file.write_csv(pyarrow.table(whole), digit_files / "t.csv")
    data = Manifest(str(digit_files / "t.csv"), size=8, channels=1, columns=("weight",), mean=(0.5,), std=(0.5,))
    run = make_run(tmp_path / "run", replace(VALUE, data=data))
    expected = [line.split() for line in succeeds(capsys, "predict", run.path, digit_files).splitlines()]
    table = tmp_path / "new.csv"
    csv_file.write_csv(pyarrow.table({"path": names[::-1]}), table)
    named = tmp_path / "named.csv"
    named.write_text("file\na.png\n")
    lines = succeeds(capsys, "predict", run.path, table, "--folder", digit_files).splitlines()
    found = [line.split() for line in lines]
    assert [line[0] for line in found] == names[::-1]
    assert [line[1:] for line in found[::-1]] == [line[1:] for line in expected]
    for arguments, message in (
        ([table], f"No such file or directory, {tmp_path}/more/11.png; repair it, leave its row out"),
        ([table, digit_files], "a table is predicted by itself"),
        ([digit_files, "--folder", tmp_path], "--folder is that of a table's images"),
        ([tmp_path / "none.csv"], "no such file"),
        ([table, "--out", tmp_path / "parts"], f"{table} is predicted by one process"),
        ([named], f"no column 'path', {named}; the columns are file; name them as in the run's own table"),
    ):
        assert message in fails(capsys, "predict", run.path, *arguments)
    other = make_run(tmp_path / "other", steps=2)
    assert "a table suits a run on a Manifest" in fails(capsys, "predict", other.path, table)


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_table_of_bytes_is_predicted_without_its_targets(
    ranks: Ranks, capsys: Capture, digit_files: Path, tmp_path: Path, suffix: str
) -> None:
    content = [file.read_bytes() for file in sorted(digit_files.rglob("*.png"))]
    splits, ages = ["train"] * 8 + ["val"] * 4, np.arange(12.0)
    whole = pyarrow.table({"picture": content, "age": ages, "split": splits})
    pyarrow.parquet.write_table(whole, tmp_path / "all.parquet")
    data = Manifest(str(tmp_path / "all.parquet"), bytes="picture", target=("age",), size=8, channels=1)
    e = Experiment(CNN((2,), outputs=1), replace(data, mean=(0.5,), std=(0.5,)), Regression(), batch_size=4, epochs=1)
    path = new_run(tmp_path / "run", e)
    ranks.run(1, train_rank, on_workers(e, 1), path)
    table, images = tmp_path / f"new{suffix}", whole.select(["picture"])
    if suffix == ".parquet":
        pyarrow.parquet.write_table(images, table)
    else:
        with pyarrow.ipc.new_file(table, images.schema) as writer:
            writer.write_table(images)
    csv_file.write_csv(pyarrow.table({"picture": ["a.png"]}), tmp_path / "new.csv")
    assert "give a table with bytes" in fails(capsys, "predict", path, tmp_path / "new.csv")
    found = [line.split() for line in succeeds(capsys, "predict", path, table).splitlines()]
    own = [line.split() for line in succeeds(capsys, "predict", path, "--split", "val").splitlines()]
    assert len(found) == 12 and [line[-1] for line in found[8:]] == [line[-3] for line in own]
    assert [line[-2] for line in own] == [f"true_value={age:.4f}" for age in ages[8:]]


# export


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_export_writes_what_others_load(finished: Run, capsys: Capture, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"model{suffix}"
    assert succeeds(capsys, "export", finished.path, file) == f"wrote {file} and {file.stem}.md\n"
    assert {path.name for path in tmp_path.iterdir()} == {file.name, "model.md"}, "no partial file is left"
    (tmp_path / "plain").touch()
    assert file.stat().st_mode == (tmp_path / "plain").stat().st_mode
    images = torch.randn(5, 1, 8, 8)
    expected = finished.model()(images)
    state = load_file(file) if suffix == ".safetensors" else torch.load(file, weights_only=True)
    module = VALUE.model.build((1, 8, 8), 10)
    module.load_state_dict(state, strict=True)
    assert torch.equal(module.eval()(images), expected)
    assert all(value.device.type == "cpu" and not value.requires_grad for value in state.values())


def test_export_takes_the_checkpoint_that_is_asked_for(finished: Run, capsys: Capture, tmp_path: Path) -> None:
    for which in ("best", "last"):
        succeeds(capsys, "export", finished.path, tmp_path / f"{which}.pth", "--checkpoint", which)
        state = torch.load(tmp_path / f"{which}.pth", weights_only=True)
        assert all(torch.equal(value, state[name]) for name, value in finished.model(which).state_dict().items())


def test_the_python_api_does_the_same(finished: Run, digit_files: Path, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    for run in (finished, finished.path, str(finished.path)):
        assert raytrain.evaluate(run) == inference.evaluate(finished)
        rows = raytrain.predict(run, digit_files)
    last = raytrain.evaluate(finished, split="train", checkpoint="last", tta="flip")
    assert last == inference.evaluate(finished, None, "train", "last", "flip")
    assert rows == raytrain.predict(finished, [row["path"] for row in rows])
    assert len(raytrain.predict(finished, split="val")) == 359
    (first, *_) = raytrain.predict(finished, digit_files, features=True)
    expected = inference.predict(finished, [str(digit_files)], features="")[0]
    np.testing.assert_array_equal(first["features"], expected["features"])
    assert torch.get_num_threads() == threads
    columns.write(rows, finished.classes(), tmp_path / "p.csv")
    assert len((tmp_path / "p.csv").read_text().splitlines()) == 13
    export(finished, tmp_path / "m.pth")
    assert (tmp_path / "m.pth").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "takes either paths or a split"),
        ({"paths": "x.png", "split": "val"}, "takes either paths or a split"),
        ({"paths": ["s3://bucket/x.png"]}, "images at a URL are predicted in parts"),
        ({"paths": "missing.png"}, "missing.png"),
        ({"split": "val", "checkpoint": "newest"}, "there is no checkpoint called 'newest', .*; take best or last"),
        ({"paths": None}, "got a value of type NoneType"),
        ({"paths": ["new.csv", "photos"]}, "a table is predicted by itself, and new.csv is not alone"),
        ({"paths": "photos", "folder": "images"}, "folder is what paths in a table are relative to; leave it out"),
        ({"split": ["val"]}, r"split must be a text, got \['val'\]; write split=\"...\""),
        ({"split": "val", "features": 1}, "features must be a text, got 1"),
        ({"split": "val", "tta": 1}, "tta must be flip or a number of views from 2 to 1000, got '1'"),
    ],
    ids=str,
)
def test_mistakes_of_the_python_api(finished: Run, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        raytrain.predict(finished, **arguments)


def test_the_python_api_takes_no_images_in_memory(finished: Run) -> None:
    with pytest.raises(UserError, match="takes paths of images, got a value of type Image; write images to files"):
        raytrain.predict(finished, Image.new("L", (8, 8)))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="got a value of type ndarray"):
        raytrain.predict(finished, [np.zeros((8, 8, 3), np.uint8)])  # type: ignore[list-item]


def test_what_does_not_suit_a_run_at_a_url_names_the_url(finished: Run) -> None:
    run = Run(finished.path)
    run.url = "s3://bucket/run"
    with pytest.raises(UserError, match=r"kind='plain'.*, s3://bucket/run; predict its own data"):
        inference.check_task(run, {"input_kind": "plain"}, images=True, features=None, tta="")


def test_the_python_api_says_what_is_no_run(finished: Run, tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text('{"best": 3}')
    with pytest.raises(UserError, match=r"this is a sweep, .*; use .*trials/0003, the best one"):
        raytrain.evaluate(raytrain.SweepRun(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="this is no run, but a value of type NoneType"):
        raytrain.evaluate(None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="this is no run, but a value of type Experiment"):
        raytrain.predict(finished.experiment, split="val")  # type: ignore[arg-type]


def test_a_gpu_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of the loader name it to `torch.cuda.set_device`, which takes no device without one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert inference.device() == torch.device("cuda", 0)
