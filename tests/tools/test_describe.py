"""`raytrain data`: the figures of a source with known images, and the lines and files that the command writes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import fails, succeeds
from PIL import Image
from rich.cells import cell_len

from raytrain import Data, Field, ImageFolder, Index, Manifest, errors
from raytrain.report.data import show, to_json
from raytrain.tools.describe import describe, png


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 + 1 images of one colour each, one of them twice, also in val, and one damaged."""
    root = tmp_path_factory.mktemp("images")
    for number in range(12):
        path = root / "train" / ("ant", "bee")[number > 9] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8 + number, 8), (number * 20, 100, 255)).save(path)
    for name in ("ant", "bee"):
        (root / "val" / name).mkdir(parents=True)
    (root / "val" / "ant" / "a.png").write_bytes((root / "train" / "bee" / "11.png").read_bytes())
    (root / "val" / "bee" / "b.png").write_bytes((root / "train" / "ant" / "03.png").read_bytes()[:45])
    (root / "train" / "notes.txt").write_text("no image")
    return root


def test_figures_are_those_of_the_images(folder: Path) -> None:
    found, sheet = describe(ImageFolder(str(folder), size=8), 1000, 60.0)
    assert found.counts == {"train": 12, "val": 2} and found.read == found.count == 14
    assert found.classes == {"ant": [10, 1], "bee": [2, 1]} and found.ignored == 1
    assert found.bytes == sum(path.stat().st_size for path in folder.rglob("*.png"))
    assert [path for path, _ in found.bad] == [f"{folder}/val/bee/b.png"]
    assert found.equal == [[("train", "train/bee/11.png", "bee"), ("val", "val/ant/a.png", "ant")]]
    (values,) = found.values
    red = np.arange(12) * 20 / 255
    np.testing.assert_allclose(values.mean, [red.mean(), 100 / 255, 1.0])
    np.testing.assert_allclose(values.std, [red.std(), 0, 0], atol=1e-7)
    assert (values.low, values.high, values.nan) == (0, 255, 0)
    assert json.loads(to_json(found))["pixels"] == {"least": [8, 8], "median": [14, 8], "most": [19, 8]}
    assert sheet is not None
    with Image.open(io.BytesIO(png(sheet))) as image:
        assert image.getpixel((48, 48)) == (0, 100, 255)  # the first ant


def test_notes_of_the_source_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
        Image.new("L", (8, 8), number).save(tmp_path / f"mask{number}.png")
    rows = "0.png,mask0.png,train\n1.png,mask1.png,train\n2.png,,test\n"
    (tmp_path / "list.csv").write_text(f"path,mask,split\n{rows}")
    found, _ = describe(Manifest(str(tmp_path / "list.csv"), size=8, mask="mask", val_fraction=0.5), 1000, 60.0)
    show(found)
    out = " ".join(capsys.readouterr().out.split())
    assert "no row of test has a mask, so test is left out" in out
    assert "has no row of the split val: 50% of all samples are used for validation" in out
    assert json.loads(to_json(found))["notes"] == found.notes and len(found.notes) == 2


def test_values_of_a_column_that_are_in_several_splits_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ["path,label,patient,weight,split"]
    for number, (patient, split) in enumerate(zip("abcabdae", ["train"] * 3 + ["val"] * 3 + ["test"] * 2, strict=True)):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,x,{patient},0.5,{split}")
    (tmp_path / "a.csv").write_text("\n".join(rows))
    command = "data", tmp_path / "a.csv", "--data.columns", "patient", "weight"
    said = succeeds(capsys, *command)
    line = "patient: 2 of 5 values are in train and in val, 1 of 5 values are in train and in test"
    assert line in " ".join(said.split()) and "weight" not in said
    counts = {"patient": {"values": 5, "train_and_val": 2, "train_and_test": 1}}
    assert json.loads(succeeds(capsys, *command, "--json"))["columns"] == counts


def test_sheet_shows_letters_beyond_ascii(tmp_path: Path) -> None:
    for name in "äßč":
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / name / f"{number}.png")
    _, sheet = describe(ImageFolder(str(tmp_path), size=8), 1000, 60.0)
    assert sheet is not None
    found = {sheet.crop((left, 96, left + 96, 108)).tobytes() for left in range(0, sheet.width, 100)}
    assert len(found) == 3


def test_only_some_samples_are_read(folder: Path) -> None:
    found, _ = describe(ImageFolder(str(folder), size=8), 7, 60.0)
    assert found.read == found.wanted == 7 and sum(found.counts.values()) == 14


@dataclass(frozen=True)
class Plain(Data):
    """No images: vectors with a NaN and an infinite value."""

    def index(self) -> dict[str, Index]:
        fields = (Field("signal", (3,), "float32"), Field("age", (), "int64"))
        return {"train": Index(fields=fields, count=40), "val": Index(fields=fields, count=2)}

    def read(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        signal = np.stack([samples, samples * 0, samples * 0 - 1], 1).astype(np.float32)
        signal[samples == 7, 1] = np.nan
        signal[samples == 9, 2] = np.inf
        if (samples == 20).any():
            raise errors.BadSample("sample 20", "it is gone")
        return {"signal": signal, "age": samples}


def test_sources_without_images_have_ranges_and_counts_of_nan() -> None:
    found, sheet = describe(Plain(), 1000, 60.0)
    signal, age = found.values
    assert sheet is None and found.bad == [("sample 20", "it is gone")] and not found.classes
    assert (signal.low, signal.high, signal.nan) == (-1, 39, 2)
    ages = np.delete(np.arange(40), 20)
    np.testing.assert_allclose([*age.mean, *age.std], [ages.mean(), ages.std()])
    assert len(found.equal) == 2  # the samples of val are the first of train
    assert "NaN" not in to_json(found)


def test_the_command_prints_lines_or_json(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    sheet = tmp_path / "sheet.png"
    out = succeeds(capsys, "data", folder, "--data.size", 8, "--sheet", sheet)
    assert sheet.read_bytes()[:4] == b"\x89PNG" and f"wrote {sheet}" in out
    assert "classes   2, of 2 to 10 training samples: uneven" in out
    assert "equal     groups of equal samples: 1, 1 of them in several splits" in out
    assert max(len(line) for line in out.splitlines() if str(tmp_path.parent) not in line) <= 80
    assert json.loads(succeeds(capsys, "data", folder, "--json", "--samples", 6))["samples_read"] == 6
    assert "experiment file, folder or table of images" in fails(capsys, "data", tmp_path / "none")
    assert "end its name in .png" in fails(capsys, "data", folder, "--sheet", "a.jpg")
    (tmp_path / "list.xlsx").touch()
    for command in (("data", tmp_path / "list.xlsx"), ("pack", tmp_path / "list.xlsx", tmp_path / "pack")):
        said = fails(capsys, *command)
        assert "this file is no table of images, and no experiment" in said and "give a folder, a .csv, .tsv" in said


def test_counts_stand_in_one_column_of_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ants", "\u871c\u8702\u8702"):
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.new("RGB", (8, 8), number).save(tmp_path / name / f"{number}.png")
    lines = succeeds(capsys, "data", tmp_path).splitlines()
    assert [cell_len(line.partition("4 + 1")[0]) for line in lines if "4 + 1" in line] == [18, 18]


def test_names_with_line_breaks_and_escapes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a\nb", "c\x1b[31md"):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.new("RGB", (8, 8), (9, 9, 9)).save(tmp_path / name / f"{number}.png")
        (tmp_path / name / "bad.png").write_bytes(b"x")
    said = succeeds(capsys, "data", tmp_path, "--data.cache", "off")
    assert "\x1b" not in said and "a b/0.png" in said and "cd/" in said and "bad.png: " in said
    assert all(line.startswith(" ") or line.split()[0].isalpha() for line in said.splitlines() if line)


@dataclass(frozen=True)
class Beside(ImageFolder):
    """A folder whose images have numbers beside them; `wrong` says what is wrong with these."""

    wrong: str = ""

    def index(self) -> dict[str, Index]:
        fields = Field("image", (3, 8, 8), kind="image"), Field("age", (), "float32")
        found = {split: replace(index, fields=fields, shape=None) for split, index in super().index().items()}
        return found | {"test": replace(found["val"], labels=None, split="test")} if self.wrong == "labels" else found

    def encoded(self, index: Index, samples: np.ndarray) -> Iterator[bytes]:
        if self.wrong == "encoded":
            raise KeyError("no such image")
        return super().encoded(index, samples)

    def further(self, index: Index, samples: np.ndarray) -> dict[str, np.ndarray]:
        name = "z" if self.wrong == "name" else "age"
        return {name: np.zeros(len(samples), np.float64 if self.wrong == "dtype" else np.float32)}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("name", "'z'"),
        ("dtype", "float64"),
        ("encoded", r"Beside\.encoded of train/ant/00\.png, fails: KeyError: 'no such image'"),
    ],
)
def test_mistakes_of_a_source_of_ones_own_are_named(folder: Path, wrong: str, message: str) -> None:
    with pytest.raises(errors.UserError, match=message):
        describe(Beside(str(folder), size=8, wrong=wrong), 1000, 60.0)


def test_a_test_split_without_labels_is_counted(folder: Path) -> None:
    found, _ = describe(Beside(str(folder), size=8, wrong="labels"), 1000, 60.0)
    assert found.counts == {"train": 12, "val": 2, "test": 2} and found.classes == {"ant": [10, 1, 0], "bee": [2, 1, 0]}
