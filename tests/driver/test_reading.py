"""What a command says while its reading waits for CPUs that other runs hold."""

from __future__ import annotations

import pytest

from raytrain.driver import reading
from raytrain.loggers import Logger


def test_a_long_wait_is_told_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    class Observer(Logger):
        def note(self, text: str) -> None:
            said.append(text)

    said: list[str] = []
    monkeypatch.setattr(reading, "why_no_block", lambda seconds, needs: f"{seconds:g} s")
    for seconds in range(30, 3600, 30):
        reading.wait_for_blocks(Observer(), seconds)
    assert said == ["30 s", "60 s", "120 s", "240 s", "480 s", "960 s", "1920 s"]
