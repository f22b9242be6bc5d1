"""What `make dist` builds, installed into an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow  # builds in an environment of its own, and needs a package index


def run(*command: object, **options: object) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    done = subprocess.run(words, env=clean, capture_output=True, text=True, timeout=300, **options)  # type: ignore
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    run(sys.executable, "-m", "twine", "check", "--strict", *folder.iterdir())
    return folder


def test_the_archives_have_the_package_and_no_caches_data_or_runs(dist: Path) -> None:
    [wheel], [archive] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    package = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "raytrain").rglob("*")
        if file.is_file() and file.suffix != ".pyc"
    }
    with zipfile.ZipFile(wheel) as opened:
        assert {name for name in opened.namelist() if name.startswith("raytrain/")} == package
    with tarfile.open(archive) as opened:
        names = {name.split("/", 1)[1] for name in opened.getnames()}
    assert package | {"README.md", "LICENSE", "pyproject.toml", "docs/pictures/speed.svg"} <= names
    tops = {name.split("/")[0] for name in names}
    assert tops <= {"raytrain", "docs", "experiments", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff",
                    "pyproject.toml", "PKG-INFO", "zensical.toml", "cluster.yaml", ".gitignore"}  # fmt: skip
    assert [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".pth"))] == []


def test_the_wheel_works_outside_of_the_source_tree(dist: Path, tmp_path: Path) -> None:
    [wheel] = dist.glob("*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel)
    # Dependencies are those of this environment: a path in a .pth file brings no editable installs with it.
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    raytrain = tmp_path / "env" / "bin" / "raytrain"
    (work := tmp_path / "work").mkdir()
    where = run(python, "-c", "import raytrain; print(raytrain.__file__)", cwd=work)
    assert Path(where.strip()).is_relative_to(site)
    assert "raytrain COMMAND --help" in run(raytrain, "--help", cwd=work)
    (work / "digits.py").write_text((ROOT / "experiments" / "digits.py").read_text())
    assert "1,438 train, 359 val" in run(raytrain, "train", "digits.py", "--dry_run", cwd=work)
    run(raytrain, "cluster", "init", "on-premises", "--out", "machines.yaml", cwd=work)
    assert (work / "machines.yaml").stat().st_size > 1000
    run(raytrain, "train", "digits.py", "--scaling.workers", "0", "--epochs", "1", "--name", "one", cwd=work)
    run(raytrain, "report", "runs/one", cwd=work)
    assert "<svg" in (work / "runs" / "one" / "report.html").read_text()
