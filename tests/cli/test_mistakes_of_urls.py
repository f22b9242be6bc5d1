"""Secrets in the URLs of runs, which a run would store and show."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.commands import DIGITS, fails, no_runs, without_ray

__all__ = ["no_runs", "without_ray"]


@pytest.mark.usefixtures("without_ray", "no_runs")
@pytest.mark.parametrize(
    "place", ["s3://me:hidden@bucket/runs", "s3://bucket/runs?secret_key=hidden&access_key=hidden"]
)
@pytest.mark.parametrize("command", ["train", "evaluate", "resume"])
def test_a_secret_in_the_url_of_a_run_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [DIGITS, "--out", place] if command == "train" else [place]
    said = fails(capsys, command, *words)
    assert "the URL holds a " in said and "in the URL of a run" in said and "hidden" not in said
