"""What is printed fits the terminal, and paths and commands can be copied from it."""

from __future__ import annotations

import io
import itertools
import shlex
import subprocess

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from raytrain.report import layout

WORDS = ["a", "seven", "größe", "学习率", "/a/path/that/is/longer/than/any/narrow/terminal", "x" * 30, "é" * 9]


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width, soft_wrap=True)


def test_folded_lines_fit_and_long_words_stand_alone() -> None:
    draws = np.random.default_rng(0)
    for width, before in itertools.product((9, 20, 40, 80), ("", "    run  ", "学  ")):
        for count in (0, 1, 2, 7, 30):
            words = [WORDS[i] for i in draws.integers(len(WORDS), size=count)]
            lines = layout.folded(before, " ".join(words), width)
            assert " ".join(lines).split() == [*before.split(), *words], "nothing is lost or broken"
            for line in lines:
                assert cell_len(line) <= width or line in words, (width, line)
            for line in lines[1:]:
                alone = cell_len(line.split()[0]) > width - cell_len(before)
                assert line.startswith(" " * cell_len(before)) or alone or not before, line


def test_a_text_keeps_its_gaps_and_without_a_terminal_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    assert layout.folded("x  ", "a  b c", 80) == ["x  a  b c"]
    assert layout.folded("x  ", "a  b c", 5) == ["x  a", "   b", "   c"]
    monkeypatch.delenv("COLUMNS", raising=False)
    pipe = Console(file=io.StringIO(), width=20)
    assert layout.columns(pipe) is None and layout.folded("x  ", "word " * 99, None) == ["x  " + "word " * 99]
    monkeypatch.setenv("COLUMNS", "33")
    assert layout.columns(Console(file=io.StringIO())) == 33 and layout.columns(terminal(44)) == 44


@pytest.mark.parametrize("width", [12, 30, 50, 80])
def test_a_folded_command_is_the_same_to_a_shell(width: int) -> None:
    words = ["printf", "%s\\n", "/a path/with spaces", "--lr", "0.1", "$HOME", "it's", "", "x" * 40, "--name", "学习率"]
    lines = layout.folded_command("next:  ", words, width)
    assert all(cell_len(line) <= width or len(shlex.split(line.rstrip("\\"))) == 1 for line in lines), lines
    script = "\n".join(lines).replace("next:", "     ", 1)
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == words[2:]


def test_the_parts_of_the_lowest_rank_go_first() -> None:
    parts = [(2, "two"), (1, "one"), (4, "four"), (3, "three"), (9, "")]
    assert layout.joined(parts, None) == "two  one  four  three"
    assert layout.joined(parts, 20) == "two  four  three" and layout.joined(parts, 12) == "four  three"
    assert layout.joined(parts, 1) == "four"


def test_facts_of_long_names_stay_readable() -> None:
    console = terminal(40)
    facts = [("loss", "0.5"), ("mean absolute percentage error of the left lung", "12.25"), ("学习率", "1")]
    layout.show_facts(console, "a title", facts)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= 40
    assert lines[:2] == ["a title", "  loss                  0.5"] and lines[-2].split() == ["12.25"]
    assert lines[-1] == "  学习率                1", "columns count, not characters"
