"""`make cluster-test`: each row stands for itself, whatever the others came to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from harness.cluster import table as table


class Stand:
    """Stands in for the hosts and the cluster on them; `failures` says how often starting them fails."""

    failures = 0
    up_failures = 0
    open = 0
    seconds: ClassVar[dict[str, float]] = {}

    def __init__(self, *_: object):
        pass

    def __enter__(self) -> Stand:
        Stand.open += 1
        assert Stand.open == 1, "two sets of hosts at one time"
        return self

    def __exit__(self, *_: object) -> None:
        Stand.open -= 1

    def dashboard(self) -> Stand:
        return Stand()

    def up(self) -> None:
        if Stand.up_failures:
            Stand.up_failures -= 1
            raise AssertionError("Ray did not start")

    ready = up


class Opened(Stand):
    """A cluster: its dashboard is not a set of hosts."""

    def __init__(self, *_: object):
        if Stand.failures:
            Stand.failures -= 1
            raise AssertionError("no file for the cluster")

    def dashboard(self) -> Any:
        return pytest.MonkeyPatch.context()


@pytest.fixture(autouse=True)
def passing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that pass on their own."""
    monkeypatch.setattr(table, "why_not", lambda: None)
    monkeypatch.setattr(table, "Hosts", Stand)
    monkeypatch.setattr(table, "Cluster", Opened)
    monkeypatch.setattr(table, "train_here", lambda *_: Path())
    for name in ("no_more_than_documented", "nothing_without_a_token", "refused", "another_ray_goes_on", "bit_equal"):
        monkeypatch.setattr(table, name, lambda *_: None)
    monkeypatch.setattr(table, "sequence", lambda *_: {})
    monkeypatch.setattr(table, "play", lambda *_: Opened())
    monkeypatch.setattr(Stand, "failures", 0)
    monkeypatch.setattr(Stand, "up_failures", 0)


def outcomes(capsys: pytest.CaptureFixture[str]) -> list[bool]:
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    return [row.endswith("| yes |") for row in rows]


def test_all_rows_pass_where_nothing_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert table.main(2, ["one", "two"]) == 0
    assert outcomes(capsys) == [True] * 10 and Stand.open == 0


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("what", ["failures", "up_failures"])
def test_a_start_of_ray_that_fails_costs_its_own_row_alone(
    what: str, count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Stand, what, count)
    assert table.main(2, ["one", "two"]) == 1
    assert outcomes(capsys) == [True, True] + [False] * count + [True] * (8 - count) and Stand.open == 0


def test_failed_reference_run_is_retried_by_the_next_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = [True, False]

    def train_here(*_: object) -> Path:
        if failing and failing.pop(0):
            raise AssertionError("the run of one host failed")
        return Path()

    monkeypatch.setattr(table, "train_here", train_here)
    assert table.main(2, []) == 1
    assert outcomes(capsys) == [False, True]
