"""Predictions in parts: the images, the manifest and the parts, without Ray; and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.commands import digit_files, fails, finished, without_ray

from raytrain import ImageFolder, Run, errors
from raytrain.driver.resources import Node, Resources
from raytrain.tools import batch_predict, batch_reading, listing, parts
from raytrain.tools.batch_settings import Settings, Workers, in_parts

__all__ = ["digit_files", "finished", "without_ray"]

pytestmark = pytest.mark.usefixtures("without_ray")
Capture = pytest.CaptureFixture[str]
KNOWN = {"images": 5, "part_size": 2, "listing": "a", "checkpoint": "b", "features": None, "tta": ""}


def test_the_listing_is_sorted_and_has_each_image_once(digit_files: Path) -> None:
    (digit_files / ".hidden.png").touch()
    found = listing.listed([str(digit_files / "more"), str(digit_files), str(digit_files / "03.png")])
    paths = found.paths.to_pylist()
    assert len(found) == 12 and paths == sorted({str(file) for file in digit_files.rglob("[0-9]*.png")})
    (image,) = found.images(3, 4)
    assert image == (paths[3], "", paths[3], Path(paths[3]).stat().st_size) and found.first_here() == paths[0]
    same = listing.listed([str(digit_files)])
    (digit_files / "03.png").write_bytes(b"of another size")
    assert found.digest == same.digest != listing.listed([str(digit_files)]).digest


def test_images_at_a_url_are_found_without_its_options(s3: str) -> None:
    place = parts.opened(f"{s3}/listed")
    for name in ("b.png", "sub/a.JPG", "notes.txt", ".hidden/x.png", "c.GIF"):
        place.write(name, name.encode())
    for url in (f"{s3}/listed/?region=us-east-1", f"{s3}/listed?region=us-east-1"):
        found = listing.listed([url])
        assert found.paths.to_pylist() == [f"{s3}/listed/b.png", f"{s3}/listed/sub/a.JPG"]
        assert found.left_out == (f"{s3}/listed/c.GIF",)
        assert found.sizes.tolist() == [5, 9] and found.first_here() is None
    assert listing.listed([f"{s3}/listed/b.png", f"{s3}/listed"]).paths.to_pylist() == found.paths.to_pylist()
    for url in (f"{s3}/none", f"{s3}/listed/c.png"):
        with pytest.raises(errors.UserError, match="no images there"):
            listing.listed([url])


def rows(numbers: list[int], bad: int | None = None) -> pa.Table:
    reasons = ["damaged" if number == bad else None for number in numbers]
    return pa.table({"row": pa.array(numbers, pa.int64()), "label": list(map(str, numbers)), "error": reasons})


def test_parts_are_assembled_of_rows_in_any_order() -> None:
    tables = [rows([4]), rows([1, 2]), rows([3]), rows([0])]
    found = list(parts.assembled(tables, pa.array("abcde"), 2))
    assert [part for part, _ in found] == [2, 1, 0]
    assert [table["path"].to_pylist() for _, table in found] == [["e"], ["c", "d"], ["a", "b"]]
    assert [table["label"].to_pylist() for _, table in found] == [["4"], ["2", "3"], ["0", "1"]]
    assert [part for part, _ in parts.assembled(tables[:2], pa.array("abcde"), 2)] == [2], (
        "and no part that lacks a row"
    )


@pytest.mark.parametrize("url", [False, True])
def test_only_whole_parts_are_kept(tmp_path: Path, s3: str, url: bool) -> None:
    out = f"{s3}/kept" if url else str(tmp_path / "made" / "out")
    place = parts.opened(out)
    assert parts.begin(place, out, KNOWN) == {}
    tables = [table for _, table in parts.assembled([rows([0, 1, 2, 3, 4], bad=2)], pa.array("abcde"), 2)]
    assert [parts.write(place, out, part, table) for part, table in enumerate(tables)] == [0, 1, 0]
    assert parts.begin(parts.opened(out), out, {**KNOWN, "step": "another word for it"}) == {0: 0, 1: 1, 2: 0}
    whole = place.read("part-00001.parquet")
    for damaged in (whole[:-1], b"", b"PAR1", whole.replace(b"error", b"other"), place.read("part-00002.parquet")):
        place.write("part-00001.parquet", damaged)
        assert parts.begin(place, out, KNOWN) == {0: 0, 2: 0}
    if not url:
        place.write("part-00001.parquet", whole)
        assert pq.read_table(out)["path"].to_pylist() == list("abcde"), "readers leave the manifest out"
    for name in (f".{parts.MANIFEST}.17.140662083136384", ".part-00001.parquet.17.140662083136384", ".keep", "a.1.2"):
        place.write(name, b"half")
    parts.tidy(place, out)
    assert sorted(place.names()) == sorted([".keep", parts.MANIFEST, "a.1.2", *map(parts.name_of, range(3))])


def test_another_result_is_refused(tmp_path: Path) -> None:
    place = parts.opened(str(tmp_path))
    parts.begin(place, "out", KNOWN)
    for name, value, said in (
        ("listing", "c", "other images"),
        ("checkpoint", "c", "another checkpoint"),
        ("part_size", 3, "another --part_size"),
        ("features", ["4", True], "other --features"),
        ("tta", "flip", "another --tta"),
    ):
        with pytest.raises(errors.UserError, match=f"the folder holds predictions of {said}, out; give another --out"):
            parts.begin(place, "out", KNOWN | {name: value})
    for text in ("[]", "{}", "{", "\xff"):
        (tmp_path / parts.MANIFEST).write_text(text)
        with pytest.raises(errors.UserError, match="a manifest of another kind"):
            parts.begin(place, "out", KNOWN)
    (tmp_path / parts.MANIFEST).unlink()
    (tmp_path / "part-00000.parquet").touch()
    with pytest.raises(errors.UserError, match="parts without a manifest"):
        parts.begin(place, "out", KNOWN)


def test_reading_names_bad_images_and_raises_where_storage_is_gone(digit_files: Path, s3: str) -> None:
    data = ImageFolder("/", 8, channels=1)
    (digit_files / "01.png").write_text("no image")
    images = listing.listed([str(digit_files)]).images(0, 4)
    (digit_files / "02.png").unlink()
    found = batch_reading.read(images, data, ("a",))
    assert found.reasons[0] is found.reasons[3] is None and found.reasons[2] == "No such file or directory"
    assert found.reasons[1] == "it is not an image, or its format is unknown"
    assert np.array_equal(found.arrays["image"][3], data.read(*_index_of(images[3].name, data))[0])
    place = parts.opened(f"{s3}/read")
    for name in ("00.png", "01.png"):
        place.write(name, (digit_files / name).read_bytes())
    there = listing.listed([f"{s3}/read"]).images(0, 2)
    away = batch_reading.read(
        [*there, there[0]._replace(name="gone.png"), there[0]._replace(size=1 << 40)], data, ("a",)
    )
    assert away.reasons[:3] == found.reasons[:3] and "are more than" in str(away.reasons[3])
    assert np.array_equal(away.arrays["image"][:1], found.arrays["image"][:1])
    digit_files.rename(digit_files.with_name("away"))
    with pytest.raises(OSError, match="storage is out of reach"):
        batch_reading.read(images, data, ("a",))


def _index_of(file: str, data: ImageFolder):
    return batch_reading.file_index([file], data, ("a",)), np.array([0])


@pytest.mark.parametrize(
    ("nodes", "settings", "batches", "expected"),
    [
        ([(2, 0)], Settings(), 100, (2, 1, 0)),
        ([(8, 0)], Settings(workers=2), 100, (2, 4, 0)),
        ([(8, 0)], Settings(), 1, (1, 8, 0)),
        ([(3, 0), (3, 0)], Settings(workers=3), 100, (3, 1, 0)),
        ([(16, 2)], Settings(), 100, (2, 1, 1)),
        ([(16, 2)], Settings(gpus_per_worker=0.5), 100, (4, 1, 0.5)),
        ([(2, 2)], Settings(), 100, (2, 0.66, 1)),
        ([(4, 1)], Settings(gpus_per_worker=0), 100, (4, 1, 0)),
    ],
)
def test_workers_fit_and_leave_cpus_to_read(
    nodes: list[tuple[float, float]], settings: Settings, batches: int, expected: tuple[int, float, float]
) -> None:
    there = Resources(tuple(Node("n", cpus, gpus, 1) for cpus, gpus in nodes), "here")
    assert batch_predict.shape(there, settings, batches) == Workers(*expected)
    for wrong in (Settings(workers=99), Settings(gpus_per_worker=8)):
        with pytest.raises(errors.UserError, match="do not fit into"):
            batch_predict.shape(there, wrong, batches)


def test_mistakes_of_a_prediction_in_parts(finished: Run, capsys: Capture, digit_files: Path, tmp_path: Path) -> None:
    assert [in_parts(out) for out in (None, "p.csv", "p", "p.d/", "s3://b/p.csv")] == [False, False, True, True, True]
    (tmp_path / "file").touch()
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "_manifest.json").write_text(json.dumps(KNOWN))
    for arguments, message in (
        (["--address", "auto"], "--address, --workers and the like need a folder or a URL"),
        (["--workers", "2", "--out", tmp_path / "p.csv"], "--address, --workers and the like need a folder or a URL"),
        (["s3://bucket/x", "--out", tmp_path / "p.csv"], "images at a URL need a folder or a URL for the result"),
        (["--out", "s3://bucket/p.parquet"], "a URL is a folder of parts"),
        (["--out", tmp_path / "file"], "a result in parts needs a folder, and this is a file"),
        (["--out", "/proc/parts"], "the output cannot be written"),
        (["--out", tmp_path / "old"], "the folder holds predictions of other images and another checkpoint and"),
        (["--out", tmp_path / "p", "--workers", "0"], "workers = 0 is out of range"),
        (["--out", tmp_path / "p", "--part_size", "0"], "part_size = 0 is out of range"),
        (["--out", tmp_path / "p", "--workers", "9999"], "9999 workers of 1 CPUs do not fit into"),
        ([tmp_path / "none", "--out", tmp_path / "p"], "no such image"),
    ):
        assert message in fails(capsys, "predict", finished.path, digit_files, *arguments), arguments
    said = fails(capsys, "predict", finished.path, "--split", "val", "--out", tmp_path / "p")
    assert "--split is predicted by one process" in said


def test_an_error_of_a_worker_is_told_without_what_ray_adds() -> None:
    wrapped = type("RayTaskError", (Exception,), {"__module__": "ray.exceptions"})
    for cause, kind, said in (
        (errors.UserError("what", "where", "how"), errors.UserError, "what, where; how"),
        (KeyError("five\nFailed to apply UDF transform"), batch_predict.PredictionFailed, "KeyError: five"),
        (OSError(5, "no disk", "Failed to apply UDF"), batch_predict.PredictionFailed, "OSError: [Errno 5] no disk"),
    ):
        outer = wrapped("a traceback")
        vars(outer)["cause"] = cause
        with pytest.raises(kind) as found, batch_predict._explained():
            raise outer
        assert str(found.value) == said
