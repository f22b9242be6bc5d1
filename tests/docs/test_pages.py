"""The pages of docs/: links, errors, drawings and code, without building the site."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from raytrain import Experiment, Sweep, order

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))


@pytest.fixture(autouse=True)
def tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports of docs/ as its scripts have them."""
    monkeypatch.syspath_prepend(str(DOCS))


def test_links_and_anchors_exist(tmp_path: Path) -> None:
    import links

    assert links.broken([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]) == []
    (page := tmp_path / "page.md").write_text(
        "# A title: `x`\n\n[a](page.md#a-title-x) [b](#nothing) [c](gone.md)\n\n![d](gone.svg) [e](https://x)\n"
        "\n    [code](gone)\n\n`[code](gone)`\n"
    )
    assert [line.split(": ")[1] for line in links.broken([page])] == ["#nothing", "gone.md", "gone.svg"]


def test_the_readme_is_short_and_its_pictures_are_small() -> None:
    readme = (ROOT / "README.md").read_text()
    assert readme.count("\n") <= 150
    pictures = re.findall(r"!\[[^]]+\]\((\S+)\)", readme)
    assert len(pictures) == 2 and all((ROOT / name).stat().st_size < 200_000 for name in pictures)


def test_the_chart_shows_the_figures_of_the_benchmarks() -> None:
    import pictures

    page = (DOCS / "benchmarks.md").read_text()
    assert pictures.chart(page) == (DOCS / "pictures" / "speed.svg").read_text(), "run `python docs/pictures.py chart`"
    assert pictures.ratios(page)["steady-mlp"] == (4.14, 3.75, 4.26)


def test_the_drawing_of_the_order_is_the_order() -> None:
    drawn = re.findall(r'class="sample".*?>(\d+)<', (DOCS / "pictures" / "order.svg").read_text())
    wanted = np.concatenate([order.samples(0, epoch, 12, np.arange(12)) for epoch in (0, 1)])
    assert [int(text) for text in drawn] == wanted.tolist()


def test_each_error_of_the_list_is_in_the_code() -> None:
    said = []
    for file in (ROOT / "raytrain").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                said.append("\0".join(str(one.value) for one in node.values if isinstance(one, ast.Constant)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                said.append(node.value)
    errors = re.findall(r"^\| `([^`]+)` \| .+ \|$", (DOCS / "errors.md").read_text(), re.MULTILINE)
    assert len(errors) > 35 and not is_said("the run is complete ... yesterday", said)
    assert [error for error in errors if not is_said(error, said)] == []


def is_said(error: str, said: list[str]) -> bool:
    """Whether one text of the code has all parts of an error, in their order."""
    pattern = ".*".join(re.escape(part.strip(" ")) for part in error.split("..."))
    return any(re.search(pattern, text, re.DOTALL) for text in said)


@pytest.mark.parametrize("page", ["sweeps", "tutorial", "index", "steps", "hooks", "augmentation", "own"])
def test_the_experiments_of_a_page_can_be_made(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)
    wanted = [block for block in blocks if re.search(r"^(experiment|sweep) = ", block, re.MULTILINE)]
    assert wanted
    for number, block in enumerate(wanted):
        (file := tmp_path / f"{page}_{number}.py").write_text(block)
        made = runpy.run_path(str(file))
        assert isinstance(made.get("sweep") or made.get("experiment"), Sweep | Experiment)
