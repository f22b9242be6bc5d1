"""A prediction in parts by Ray Data that is killed in the middle, and goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from helpers.commands import make_run
from helpers.killed_runs import command

from raytrain import CNN, Experiment, ImageFolder, Run, cli
from raytrain.tools import inference, parts

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def images(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, two of them damaged, and a GIF that is no photograph."""
    folder = tmp_path_factory.mktemp("images") / "hymenoptera"
    shutil.copytree(data_root / "hymenoptera", folder)
    assert len(list(folder.rglob("*.gif"))) == 1
    whole = next((folder / "val" / "bees").glob("*.jpg"))
    (folder / "val" / "ants" / "cut.jpg").write_bytes(whole.read_bytes()[:3000])
    (folder / "val" / "ants" / "empty.jpg").touch()
    return folder


@pytest.fixture(scope="module")
def run(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    data = ImageFolder(root=str(data_root / "hymenoptera"), size=64, crop=None, mean=(0.5,), std=(0.25,))
    return make_run(tmp_path_factory.mktemp("runs") / "run", Experiment(model=CNN(channels=(4,)), data=data), steps=2)


def check(run: Run, out: Path, folder: Path) -> None:
    """Check that each image is in the result once, with the prediction of one process."""
    rows = pq.read_table(out).to_pylist()
    expected = sorted(str(file) for file in folder.rglob("*.jp*g"))
    assert [row["path"] for row in rows] == expected and len(rows) == 399
    bad = {Path(row["path"]).name for row in rows if row["error"] is not None}
    good = [row for row in rows if row["error"] is None]
    assert bad == {"cut.jpg", "empty.jpg"} and all(row["label"] is None for row in rows if row["error"])
    for row, plain in zip(good, inference.predict(run, [row["path"] for row in good]), strict=True):
        assert row["path"] == plain["path"] and row["label"] == plain["label"]
        assert [row["p_ants"], row["p_bees"]] == pytest.approx(plain["probabilities"], abs=1e-6)


@pytest.mark.usefixtures("cluster")
def test_a_killed_prediction_goes_on_and_has_each_image_once(
    run: Run, images: Path, tmp_path: Path, capsys: Capture
) -> None:
    import ray

    out = tmp_path / "out"
    predict = ["predict", str(run.path), str(images), "--out", str(out), "--part_size", "20"]
    address = ray.get_runtime_context().gcs_address
    killed = command(*predict, "--batch_size", "1", "--workers", "1", "--address", address)
    process = subprocess.Popen(killed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (out / "part-00002.parquet").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    said = process.communicate()
    before = {file.name: file.stat().st_mtime_ns for file in out.glob("part-*")}
    assert process.returncode == -signal.SIGKILL and 3 <= len(before) < 20, said
    (out / "part-00001.parquet").write_bytes(b"not whole")
    (out / ".part-00003.parquet.1.2").write_bytes(b"what the killed command was writing")
    del before["part-00001.parquet"]
    done = 20 * len(before)
    assert cli.run(predict) == 0
    assert (
        capsys.readouterr().out
        == f"wrote 399 images to {out}, {done} of them before; 2 could not be read (see the column `error`)\n"
    )
    assert {name: os.stat(out / name).st_mtime_ns for name in before} == before, "none of them is written again"
    assert sorted(file.name for file in out.iterdir()) == [
        parts.MANIFEST, *(f"part-{number:05d}.parquet" for number in range(20)),
    ]  # fmt: skip
    check(run, out, images)


@pytest.mark.slow
def test_features_of_images_at_a_url_are_written_to_a_url(
    run: Run, images: Path, tmp_path: Path, s3: str, capsys: Capture
) -> None:
    files = [*sorted((images / "val" / "ants").glob("*.jpg"))[:30], images / "val" / "ants" / "cut.jpg"]
    for file in files:
        parts.opened(f"{s3}/images").write(f"deep/{file.name}", file.read_bytes())
    out = f"{s3}/out/features"
    predict = command(
        "predict", str(run.path), f"{s3}/images/", "--out", out, "--features", "--part_size", "8", "--batch_size", "3"
    )
    done = subprocess.run(predict, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == f"wrote {len(files)} images to {out}; 1 could not be read (see the column `error`)\n"
    place = parts.opened(out)
    for name in place.names():
        (tmp_path / name).write_bytes(place.read(name))
    rows = {Path(row["path"]).name: row for row in pq.read_table(tmp_path).to_pylist()}
    assert rows["cut.jpg"]["features"] is None and rows["cut.jpg"]["path"] == f"{s3}/images/deep/cut.jpg"
    plain = inference.predict(run, [str(file) for file in files[:-1] if file.name != "cut.jpg"], features="")
    assert len(rows) == len(files) and rows[Path(plain[0]["path"]).name]["error"] is None
    for row in plain:
        assert rows[Path(row["path"]).name]["features"] == pytest.approx(row["features"].tolist(), abs=1e-5)


@pytest.mark.slow
def test_tasks_read_for_workers_with_gpus(run: Run, images: Path, tmp_path: Path) -> None:
    """The GPU is Ray's alone: the workers find none and predict on the CPU."""
    out = tmp_path / "out"
    code = (
        "import sys, ray\nfrom raytrain import cli\n"
        "ray.init(address='local', num_cpus=2, num_gpus=1, include_dashboard=False, log_to_driver=False)\n"
        "status = cli.run(sys.argv[1:])\nray.shutdown()\nsys.exit(status)\n"
    )
    predict = ["predict", run.path, images, "--out", out, "--gpus_per_worker", "0.5", "--batch_size", "7"]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, predict)], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    check(run, out, images)
