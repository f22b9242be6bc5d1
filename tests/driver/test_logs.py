"""Logs of a run have an upper size, with the lines that a person looks for: the first and the last."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from raytrain.driver import logs, session

_LINES = b"".join(b"line %07d\n" % number for number in range(100_000))


def test_long_log_keeps_its_first_and_last_lines(tmp_path: Path) -> None:
    file = tmp_path / "rank_0.log"
    file.write_bytes(_LINES)
    kept = logs.excerpt(file, 1000).decode().splitlines()
    assert kept[0] == "line 0000000" and kept[-1] == "line 0099999"
    assert [line for line in kept if len(line) != 12] == [
        "[raytrain cut lines out here, to keep this log below 1000 bytes]"
    ]
    assert file.read_bytes() == _LINES
    file.write_bytes(b"x" * 5000)  # one line, as of a progress bar
    assert 900 < len(logs.excerpt(file, 1000)) < 1100


@pytest.mark.parametrize("size", [0, 1, 999, 1000])
def test_a_log_that_is_short_enough_stays_as_it_is(tmp_path: Path, size: int) -> None:
    file = tmp_path / "rank_0.log"
    file.write_bytes(_LINES[:size])
    logs.shorten(file, 1000)
    assert file.read_bytes() == _LINES[:size] == logs.excerpt(file, 1000)


def test_a_log_is_shortened_again_and_again_while_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "rank_0.log"
    with open(file, "ab", buffering=0) as log:
        for number in range(2000):
            log.write(b"line %07d\n" % number)
            logs.shorten(file, 1000)
            assert file.stat().st_size <= 1000
    lines = file.read_text().splitlines()
    assert lines[0] == "line 0000000" and lines[-1] == "line 0001999"
    assert sum("raytrain cut lines" in line for line in lines) == 1


def test_the_logs_of_all_ranks_have_one_limit() -> None:
    assert logs.rank_limit(1) == logs.rank_limit(8) == logs.RANK_BYTES
    assert 1000 * logs.rank_limit(1000) <= logs.RANKS_BYTES


def test_what_a_worker_prints_is_bounded_while_it_runs(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    code = """
import os, sys, time
from pathlib import Path
from types import SimpleNamespace
from raytrain.driver import logs, worker
logs.RANK_BYTES, logs._LOOK_SECONDS = 10_000, 0.02
run = Path(sys.argv[1])
with worker._recorded(SimpleNamespace(run=run, own_output=True), 0):
    os.write(1, b"the first line\\n")
    deadline = time.monotonic() + 60
    for _ in range(5000):
        os.write(1, b"a line that a model prints at every step\\n")
    while time.monotonic() < deadline:
        log = (run / "logs" / "rank_0.log").read_bytes()
        if len(log) <= 10_000 and b"[raytrain cut" in log:  # between the cut and this line only the beginning is there
            break
        time.sleep(0.01)
    os.write(1, b"the last line\\n")
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
    lines = (tmp_path / "logs" / "rank_0.log").read_text().splitlines()
    assert lines[0] == "the first line" and lines[-1] == "the last line"
    assert (tmp_path / "logs" / "rank_0.log").stat().st_size < 11_000


def test_an_error_is_not_lost_where_its_traceback_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    code = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from raytrain.driver import worker
try:
    with worker._recorded(SimpleNamespace(run=Path(sys.argv[1]), own_output=True), 0):
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)  # as a log on a full disk
        raise ValueError("of the model")
except ValueError:
    os._exit(3)
"""
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=120, check=False).returncode == 3
    assert json.loads((tmp_path / "logs" / "rank_0.json").read_text())["error"] == "ValueError: of the model"


def test_logs_of_ray_have_one_limit_and_the_newest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_LOG_BYTES", 1000)
    monkeypatch.setattr(session, "_LOGS_BYTES", 3500)
    source, kept = tmp_path / "session", tmp_path / "ray"
    source.mkdir()
    kept.mkdir()
    (kept / "worker-of-an-earlier-attempt.err").write_bytes(_LINES[:1000])
    for number in range(3):
        (source / f"worker-{number}.err").write_bytes(_LINES)
    session._copy_logs(source, kept)
    assert sorted(file.name for file in kept.iterdir()) == [f"worker-{number}.err" for number in range(3)]
    assert sum(file.stat().st_size for file in kept.iterdir()) <= 3500
