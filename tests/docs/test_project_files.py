"""The files that GitHub, Docker and citation tools read."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from raytrain import __version__

ROOT = Path(__file__).parents[2]
FILES = [*sorted((ROOT / ".github").rglob("*.yml")), ROOT / "CITATION.cff"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_file_is_yaml_and_its_make_commands_exist(file: Path) -> None:
    text = file.read_text()
    assert isinstance(yaml.safe_load(text), dict)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    used = re.findall(r"run: make ([a-z-]+)", text)
    assert set(used) <= set(targets) and (used or file.name != "ci.yml")


def test_the_workflow_tests_the_pythons_that_the_package_takes() -> None:
    flow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = flow["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert project["requires-python"] == f">={pythons[0]}" and pythons == ["3.11", "3.12", "3.13"]


def test_the_citation_has_the_version_and_the_licence() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["version"] == __version__ and citation["license"] == project["license"]
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_the_dockerfile_copies_files_that_exist_and_are_sent() -> None:
    text = (ROOT / "Dockerfile").read_text()
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [name for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for name in line.split()[:-1]]
    assert copied and set(copied) == sent and all((ROOT / name).exists() for name in copied)
    extras = re.findall(r"^ARG EXTRAS=(.*)$", text, re.MULTILINE)[0].split(",")
    assert (
        set(extras) <= tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    )
