"""The site that `make docs` builds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import raytrain

ROOT = Path(__file__).parents[2]


def build(project: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "docs/build.py"]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the build reads, built."""
    project = tmp_path_factory.mktemp("project")
    for name in ("docs", "experiments"):
        shutil.copytree(ROOT / name, project / name)
    shutil.copyfile(ROOT / "zensical.toml", project / "zensical.toml")
    done = build(project)
    assert done.returncode == 0, done.stdout + done.stderr
    return project


def test_the_site_has_all_pages_and_names_and_asks_no_other_host(project: Path) -> None:
    site = project / "build" / "site"
    pages = {page.relative_to(project / "docs").with_suffix("") for page in (project / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).with_suffix(".html").is_file()} == set()
    reference = "".join(file.read_text() for file in (project / "build" / "docs" / "reference").iterdir())
    assert [name for name in raytrain.__all__ if f"\n## {name}\n" not in reference] == []
    assert "## raytrain export" in reference and "--optimizer.momentum" in reference
    for page in site.rglob("*.html"):
        text = page.read_text()
        assert 'src="http' not in text and '<link rel="stylesheet" href="http' not in text, page


def test_a_broken_anchor_or_a_page_in_no_menu_fails(project: Path, tmp_path: Path) -> None:
    shutil.copytree(project, tmp_path / "copy", ignore=shutil.ignore_patterns("build"))
    page = tmp_path / "copy" / "docs" / "speed.md"
    page.with_name("other.md").write_text(page.read_text() + "\n[gone](runs.md#gone)\n")
    page.unlink()
    done = build(tmp_path / "copy")
    assert done.returncode == 1 and "runs.md#gone: no such heading" in done.stderr
    assert "\nother.md: not in" in done.stderr and "\nspeed.md: not in" in done.stderr


@pytest.mark.slow
def test_the_search_works_from_a_folder_without_a_network(project: Path) -> None:
    from playwright.sync_api import sync_playwright

    asked = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto((project / "build" / "site" / "runs.html").as_uri())
        page.keyboard.press("/")
        page.keyboard.type("every call of writing", delay=50)
        page.get_by_text("Every call of writing a checkpoint").first.wait_for(timeout=30_000)
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "about:", "blob:"))] == []
