"""The notebook of docs/ runs from its first cell to its last."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

FILE = Path(__file__).parents[2] / "docs" / "quickstart.ipynb"


def test_the_notebook_is_small_and_has_no_outputs() -> None:
    cells = nbformat.read(FILE, as_version=4).cells
    assert FILE.stat().st_size < 50_000
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(FILE.parents[1]))
    book = nbformat.read(FILE, as_version=4)
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    results = [
        output.data["text/plain"]
        for cell in book.cells
        for output in cell.get("outputs", [])
        if output.output_type == "execute_result"
    ]
    assert float(results[1]) > 0.9 and results[-1].startswith("(8, 0.9")
