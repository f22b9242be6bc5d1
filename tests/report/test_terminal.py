"""The console on a real terminal: a pseudoterminal, whose screen is drawn from what a process writes to it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
from pathlib import Path

import pytest
from rich.cells import cell_len

CODES = re.compile(r"\x1b\[[?\d;]*[a-zA-Z]")
ROWS = """
    import sys, time
    from pathlib import Path
    from raytrain.experiment import Experiment
    from raytrain import CNN, Digits
    from raytrain.loggers import Held, RunInfo
    from raytrain.report.console import Console
    console = Console()
    value = Experiment(model=CNN(channels=(8,)), data=Digits(), epochs=44)
    console.planned([("model", "a plan")])
    console.status("starting Ray")
    console.start(RunInfo(Path("run"), "run", value, 23, 1438), Held())
    seconds = {"seconds_data": 1.0, "seconds_compute": 3.0, "memory_bytes": 3 * 2**30}
    for step in range(1, 24):
        console.rows([{"kind": "step", "step": step, "epoch": 1, "loss": 0.5, "lr": 0.05}])
    console.rows([{"kind": "epoch", "epoch": 1, "step": 23, "train_loss": 0.5, "val_loss": 0.25, "val_accuracy": 0.9,
                   "samples_per_second": 1234.5, "seconds": 1.0, **seconds}])
    for step in range(24, 31):
        console.rows([{"kind": "step", "step": step, "epoch": 2, "loss": 0.25, "lr": 0.05}])
        time.sleep(0.1)
    END
    console.close()
"""


def written(columns: int, end: str = "", **environment: str) -> str:
    """What a process writes to a terminal of some columns while it shows a run of made-up rows.

    Args:
        end: code that ends the run.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    dropped = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")
    env = {name: value for name, value in os.environ.items() if name not in dropped}
    code = textwrap.dedent(ROWS).replace("END", end)
    command = [sys.executable, "-c", code]
    env |= {"TERM": "xterm-256color", **environment}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                more = os.read(ours, 1 << 16)
            except OSError:  # all that had the terminal have closed it
                break
            said += more
        process.wait(60)
    os.close(ours)
    assert "Traceback" not in said.decode() or end, said.decode()
    return said.decode()


def screen(said: str, columns: int) -> tuple[list[str], int]:
    """Return the lines that a terminal shows in the end, and how often one wrapped."""
    lines, row, column, wrapped = [""], 0, 0, 0
    for code, text in re.findall(r"(\x1b\[[?\d;]*[a-zA-Z]|[\r\n])|([^\x1b\r\n]+)", said):
        if code == "\r":
            column = 0
        elif code == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif code.endswith("A"):
            row = max(0, row - int(code[2:-1] or 1))
        elif code == "\x1b[2K":
            lines[row] = ""
        elif text:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
            wrapped += cell_len(lines[row].rstrip()) > columns
    return [line.rstrip() for line in lines], wrapped


@pytest.mark.parametrize("columns", [40, 80])
def test_no_line_wraps_and_the_terminal_is_left_clean(columns: int) -> None:
    said = written(columns)
    shown, wrapped = screen(said, columns)
    assert not wrapped and said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l"), "the cursor is shown again"
    assert shown[0].split() == ["model", "a", "plan"] and "1/44" in shown[2] and not any(shown[3:]), "the bar is gone"
    drawn = [CODES.sub("", line) for line in re.split(r"[\r\n]+", said)]
    bar = next(line for line in reversed(drawn) if "━" in line)
    figures = next(line for line in reversed(drawn) if line.startswith("loss"))
    assert bar.startswith("epoch 2/44 ━") and bar.rstrip().endswith(" left") and cell_len(bar.rstrip()) <= columns - 3
    if columns == 80:
        assert "━ step 30/1,012  " in bar
        parts = r"loss 0.2500  lr 0.05  [\d,]+ samples/s  data wait 25%  memory 3.0 GiB"
        assert re.fullmatch(parts, figures.rstrip()), figures


def test_ctrl_c_leaves_the_cursor_shown() -> None:
    said = written(
        80, "from raytrain.driver.observe import watched\nwith watched(console):\n    raise KeyboardInterrupt"
    )
    assert "KeyboardInterrupt" in said
    assert said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l")


def test_what_ctrl_c_says_stays_and_takes_the_bar_away(tmp_path: Path) -> None:
    end = f"""
    import os, signal
    from raytrain.driver.interrupts import Interrupts
    with Interrupts(Path({str(tmp_path)!r})) as interrupts:
        interrupts.saves = True
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)
        step = {{"kind": "step", "step": 40, "epoch": 2, "loss": 0.25, "lr": 0.05}}
        console.rows([step, {{"kind": "epoch", "epoch": 2, "step": 46, "samples_per_second": 1.0, "seconds": 1.0}}])
    """
    shown, wrapped = screen(written(80, textwrap.dedent(end)), 80)
    said = "stopping after this step, with a checkpoint; a second signal stops at once"
    assert not wrapped and [line.split()[0] for line in shown[1:] if line] == [
        "epoch",
        "1/44",
        "stopping",
        "epoch",
        "2/44",
    ]
    assert shown[3] == said and "━" not in "".join(shown)


def test_no_color_has_no_colours() -> None:
    said = written(80, NO_COLOR="1")
    assert not re.search(r"\x1b\[[\d;]*3\dm|\x1b\[[\d;]*38;", said) and "━" in said
    assert re.search(r"\x1b\[[\d;]*m", written(80)), "which are there otherwise"


def test_a_terminal_without_codes_gets_plain_lines() -> None:
    said = written(80, TERM="dumb")
    assert "\x1b" not in said and "starting Ray ..." in said and "epoch 1/44  step 1/1,012  loss 0.5000" in said


def test_a_pipe_gets_no_codes(tmp_path: Path) -> None:
    code = textwrap.dedent(ROWS).replace("END", "")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "\x1b" not in done.stdout and "\r" not in done.stdout
    assert "epoch 1/44  step 1/1,012  loss 0.5000  lr 0.05" in done.stdout.splitlines()
