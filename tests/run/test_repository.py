"""The commit that environment.json names, and whether the files differed from it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from raytrain.run import repository


def git(folder: Path, *words: str) -> str:
    known = ("-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *known, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def state(folder: Path) -> tuple[str | None, bool | None]:
    repository.commit_of.cache_clear()
    return repository.commit_of(str(folder))


def test_a_commit_is_named_with_changes_of_tracked_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    assert state(tmp_path) == (None, None) and repository.to_send(str(tmp_path)) == {}
    (tmp_path / "a.py").write_text("1")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    (tmp_path / "other").write_text("untracked")
    assert state(tmp_path) == (commit, False)
    assert repository.to_send(str(tmp_path)) == {"RAYTRAIN_GIT": commit}
    (tmp_path / "a.py").write_text("2")
    assert state(tmp_path) == (commit, True)
    for name, value in repository.to_send(str(tmp_path)).items():
        monkeypatch.setenv(name, value)
    assert repository.here() == (commit, True), "of the project that was sent, not of this folder"
    assert state(tmp_path / "none") == (None, None)


def test_a_missing_or_slow_git_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert state(tmp_path) == (None, None)
    (tmp_path / "git").write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setattr(repository, "_SECONDS", 0.2)
    began = time.monotonic()
    assert state(tmp_path) == (None, None) and time.monotonic() - began < 30
