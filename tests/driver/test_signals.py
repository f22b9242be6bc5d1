"""SIGINT, SIGTERM and SIGHUP: at any moment of a command they end it, without a traceback and without leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import DIGITS, REPOSITORY

from raytrain import UserError, cli
from raytrain.driver import interrupts
from raytrain.driver.endings import RunFailed
from raytrain.driver.guard import COPY_SECONDS
from raytrain.driver.interrupts import Interrupts

HANGS = "import time\nprint('there', flush=True)\ntime.sleep(60)\n"
ENDS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
STUCK = """
import ctypes, sys
sys.argv[0] = "raytrain"
from raytrain.driver import guard, interrupts
mutex = ctypes.create_string_buffer(64)
library = ctypes.CDLL(None)
with interrupts.unwinding():
    print("there", flush=True)
    while True:
        library.pthread_mutex_lock(mutex)  # for ever, and no signal ends it
"""


def started(folder: Path, *command: str, **options: Any) -> subprocess.Popen[str]:
    """A command that has come to where it hangs; modules in the folder stand before the installed ones."""
    process = subprocess.Popen(
        [sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"PYTHONPATH": f"{folder}:{REPOSITORY}"}, **options,
    )  # fmt: skip
    assert process.stdout is not None
    lines = [""]
    while lines[-1] != "there\n":
        lines.append(process.stdout.readline())
        assert lines[-1], f"it ended before: {lines}"
    return process


def train(folder: Path, experiment: Path | str = DIGITS, **options: Any) -> subprocess.Popen[str]:
    command = ["-m", "raytrain.cli", "train", str(experiment), "--out", "runs", "--name", "run"]
    return started(folder, *command, **options)


def experiment(folder: Path, *lines: str) -> Path:
    """A file like experiments/digits.py, with other lines before it."""
    file = folder / "mine.py"
    text = Path(DIGITS).read_text().replace("from __future__ import annotations\n", "")
    file.write_text("\n".join(lines) + f"\n{text}")
    return file


def ended(process: subprocess.Popen[str], number: int, status: int) -> None:
    """Sends a signal and checks that the command says one word, and ends soon."""
    process.send_signal(number)
    said, _ = process.communicate(timeout=20)
    assert process.returncode == status and said == "interrupted\n", said


@pytest.mark.parametrize(("number", "status"), ENDS)
@pytest.mark.parametrize("module", ["numpy", "tyro"])
def test_signal_during_imports_gives_no_traceback(tmp_path: Path, module: str, number: int, status: int) -> None:
    (tmp_path / f"{module}.py").write_text(HANGS)  # the first import of the package, and one of the command line
    ended(train(tmp_path), number, status)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("number", "status"), ENDS)
@pytest.mark.parametrize(
    "lines",
    [
        ("import time", "print('there', flush=True)", "time.sleep(60)"),
        ("import time", "print('there', flush=True)", "try: time.sleep(60)", "except BaseException: 1 / 0"),
    ],
)
def test_signal_while_an_experiment_is_read_ends_the_command(
    tmp_path: Path, lines: tuple[str, ...], number: int, status: int
) -> None:
    ended(train(tmp_path, experiment(tmp_path, *lines)), number, status)
    assert not (tmp_path / "runs").exists()


def test_a_signal_while_the_plan_is_made_leaves_nothing(tmp_path: Path) -> None:
    """A data source with a temporary folder, whose index takes long."""
    lines = """
import tempfile, time
from dataclasses import dataclass
from raytrain import Digits
@dataclass(frozen=True)
class Slow(Digits):
    def index(self):
        with tempfile.TemporaryDirectory(prefix="slow-", dir="."):
            print("there", flush=True)
            time.sleep(60)
""".splitlines()
    file = experiment(tmp_path, *lines)
    file.write_text(file.read_text().replace("data=Digits(", "data=Slow("))
    ended(train(tmp_path, file), signal.SIGTERM, 143)
    assert not list(tmp_path.glob("slow-*")) and not (tmp_path / "runs").exists()


def test_second_signal_ends_a_hanging_main_thread(tmp_path: Path) -> None:
    process = started(tmp_path, "-c", STUCK)
    time.sleep(0.5)  # from the line that it printed into the library
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    second = time.monotonic()
    ended(process, signal.SIGTERM, 130)
    assert time.monotonic() - second < 5


def test_a_second_sighup_does_not_hurry_a_command(tmp_path: Path) -> None:
    """A terminal that closes sends two: one from the kernel, one from the shell."""
    process = started(tmp_path, "-c", STUCK)
    for number in (signal.SIGHUP, signal.SIGHUP):
        time.sleep(0.5)
        process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    ended(process, signal.SIGINT, 129)  # of the first signal


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_copies_of_a_signal_count_once(tmp_path: Path, number: signal.Signals) -> None:
    """`timeout` sends SIGTERM to the command and to its group; a wrapper passes on the terminal's SIGINT."""
    with interrupts.Interrupts(tmp_path) as asked:
        asked.says, asked.saves = False, True
        for _ in range(3):
            signal.raise_signal(number)
        assert asked.signal == number and interrupts.left() is None
        time.sleep(COPY_SECONDS)
        with pytest.raises(interrupts.Stopped):
            signal.raise_signal(number)
        assert interrupts.left() == tmp_path


def test_copies_of_a_signal_do_not_hurry_a_command(tmp_path: Path) -> None:
    process = started(tmp_path, "-c", STUCK)
    time.sleep(0.5)  # from the line that it printed into the library
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(2)
    ended(process, signal.SIGTERM, 143)


def test_second_sighup_is_ignored_and_second_sigint_ends(tmp_path: Path) -> None:
    with interrupts.Interrupts(tmp_path) as asked:
        asked.says, asked.saves = False, True
        for _ in range(2):
            signal.raise_signal(signal.SIGHUP)
        assert asked.signal == signal.SIGHUP and (tmp_path / "stop").exists()
        assert interrupts.left() is None
        with pytest.raises(interrupts.Stopped):
            signal.raise_signal(signal.SIGINT)
        assert interrupts.left() == tmp_path
        assert not interrupts.ends_at_once(), "a program that imports the package goes on, with Ray's shutdown"


def test_a_signal_while_ray_starts_says_what_it_waits_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = []
    with interrupts.Interrupts(tmp_path) as asked, pytest.raises(interrupts.Leave):
        with asked.while_ray_starts():
            signal.raise_signal(signal.SIGINT)
            done.append(not (tmp_path / "stop").exists())
        done.append(False)
    assert done == [True] and asked.signal == signal.SIGINT
    assert capfd.readouterr().err == "stopping once Ray has started; a second signal stops at once\n"


def test_a_signal_waits_for_what_must_not_be_broken_off() -> None:
    done = []
    with pytest.raises(interrupts.Stopped), interrupts.unwinding():
        with interrupts.waiting():
            signal.raise_signal(signal.SIGINT)
            done.append(not interrupts.ends_at_once())
        done.append(False)
    assert done == [True] and interrupts.ends_at_once()


def test_copies_of_a_signal_do_not_break_off_what_unwinds() -> None:
    done = []
    with pytest.raises(interrupts.Stopped), interrupts.unwinding():
        try:
            with interrupts.waiting():
                signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            with interrupts.waiting():
                signal.raise_signal(signal.SIGTERM)
            done.append(True)
    assert done


@pytest.mark.parametrize(
    ("signals", "status"),
    [((signal.SIGINT,), 130), ((signal.SIGTERM,), 143), ((signal.SIGINT, signal.SIGTERM), 130)],
)
@pytest.mark.parametrize(
    "failure",
    [UserError("storage does not answer", "s3://b/r", "try later"), RunFailed("a worker fell", Path("r"), None),
     RuntimeError("Ray is half shut down"), SystemExit(1)],
    ids=lambda failure: type(failure).__name__,
)  # fmt: skip
def test_failure_after_a_signal_keeps_the_signals_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    failure: BaseException, signals: tuple[int, ...], status: int,
) -> None:  # fmt: skip
    def train(name: str, arguments: list[str]) -> None:
        with Interrupts(tmp_path) as interrupts:
            interrupts.says, interrupts.saves = False, True
            for number in signals:
                os.kill(os.getpid(), number)
        raise failure

    monkeypatch.setattr(cli, "_call", train)
    assert cli.run(["train"]) == status
    said = capfd.readouterr().err
    if len(signals) == 2:
        assert said == f"interrupted; go on with `raytrain resume {tmp_path}`\n"
    elif not isinstance(failure, SystemExit):
        assert said.startswith("error: ") and said.count("\n") == 1


def test_failure_keeps_its_status_after_a_signalled_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(name: str, arguments: list[str]) -> None:
        if arguments:
            os.kill(os.getpid(), signal.SIGINT)
        raise UserError("a mistake", "", "")

    monkeypatch.setattr(cli, "_call", train)
    assert [cli.run(["train", "x"]), cli.run(["train"])] == [130, 2]


def test_a_command_under_nohup_ignores_sighup(tmp_path: Path) -> None:
    (tmp_path / "tyro.py").write_text(HANGS)
    process = train(tmp_path, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    ended(process, signal.SIGTERM, 143)


def test_a_program_that_imports_the_package_keeps_its_signals(tmp_path: Path) -> None:
    code = "import signal, raytrain; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout == "True\n"
