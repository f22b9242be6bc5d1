"""The command where its surroundings are unusual: output that goes away, limits, names that are no text, no home."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.commands import DIGITS, fails, no_runs, without_ray

from raytrain import cli, errors
from raytrain.driver import limits
from raytrain.report import failure
from raytrain.report.output import Output, Refused

__all__ = ["no_runs", "without_ray"]

RAYTRAIN = Path(sys.executable).with_name("raytrain")
Capture = pytest.CaptureFixture[str]


def shell(folder: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in a folder; `$RAYTRAIN` is the command."""
    known = os.environ | {"RAYTRAIN": str(RAYTRAIN), "DIGITS": DIGITS} | environment
    return subprocess.run(["bash", "-c", script], cwd=folder, env=known, capture_output=True, text=True, check=False)


# Standard output


@pytest.mark.parametrize("arguments", ["--help", "train --help", "train $DIGITS --help", "cluster init aws"])
def test_broken_pipe_ends_a_printing_command_with_141(tmp_path: Path, arguments: str) -> None:
    done = shell(tmp_path, f"$RAYTRAIN {arguments} | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("arguments", ["--help", "--version", "train $DIGITS --help", "cluster init aws"])
def test_a_printing_command_on_a_full_disk_says_so_in_one_line(tmp_path: Path, arguments: str) -> None:
    done = shell(tmp_path, f"$RAYTRAIN {arguments} >/dev/full")
    assert done.returncode == 1
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"


def test_a_plan_goes_on_without_its_output(tmp_path: Path) -> None:
    """What a training prints goes through the same console; tests/integration trains to its end without a reader."""
    done = shell(tmp_path, "$RAYTRAIN train $DIGITS --dry_run >/dev/full")
    assert done.returncode == 0
    assert done.stderr == "note: standard output is gone (No space left on device); the command goes on\n"


def test_closed_standard_streams_are_no_files_of_the_run(tmp_path: Path) -> None:
    """The first file that a process opens would have the number of its standard output."""
    text = "import os; from raytrain.report.output import guard_standard_streams as guard; guard();"
    text += " assert os.open('file', os.O_CREAT | os.O_WRONLY) > 2; print('lost'); os.write(1, b'lost')"
    done = shell(tmp_path, f'{sys.executable} -c "{text}" <&- >&- 2>&-')
    assert done.returncode == 0 and (tmp_path / "file").read_text() == ""
    assert shell(tmp_path, "$RAYTRAIN --help <&- >&- 2>&-").returncode == 0


class Full:
    """A stream on a full disk."""

    tried = 0

    def write(self, text: str) -> int:
        self.tried += 1
        raise OSError(28, "No space left on device")

    flush = write


def test_output_refuses_once(capsys: Capture) -> None:
    strict, lasting = Output(Full(), lasting=False), Output(Full(), lasting=True)  # type: ignore[arg-type]
    with pytest.raises(Refused):
        strict.write("text")
    assert (strict.write("text"), lasting.write("text"), lasting.write("more")) == (4, 4, 4)
    strict.flush()
    lasting.flush()
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_text_that_standard_output_cannot_encode_is_escaped(tmp_path: Path, encoding: str) -> None:
    name = os.fsencode(tmp_path) + b"/\xff\xe9.py"
    Path(os.fsdecode(name)).write_bytes(Path(DIGITS).read_bytes())
    done = subprocess.run(
        [RAYTRAIN, "train", name, "--help"], env=os.environ | {"PYTHONIOENCODING": encoding}, capture_output=True
    )
    assert done.returncode == 0 and b"--epochs" in done.stdout and done.stderr == b""


# Limits of the system


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("ulimit -v 4000000", "3.8 GiB of address space and Ray needs"),
        ("ulimit -n 64", "a process may have 64 open files and Ray needs 128, in `ulimit -n`; raise that limit"),
        ("export RAY_TMPDIR=/dev/null", "Ray cannot write its temporary files, /dev/null; name a folder"),
        (
            "export RAY_TMPDIR=/tmp/" + 60 * "x",
            "RAY_TMPDIR must have at most 34 characters, for the names of Ray's sockets",
        ),
        ("mkdir gone; cd gone; rmdir ../gone", "there is no working directory"),
        ("mkdir $'\\xff'; cd $'\\xff'", "Ray takes only names that are UTF-8 text, "),
    ],
)
def test_an_environment_that_ray_cannot_start_in_is_one_line(tmp_path: Path, script: str, message: str) -> None:
    done = shell(tmp_path, f"{script}; $RAYTRAIN train $DIGITS")
    assert done.returncode == 2 and done.stderr.startswith("error: ") and message in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and not list(tmp_path.glob("**/runs"))


@pytest.mark.parametrize("arguments", [["\udcff.py"], [DIGITS, "--out", "\udcff"], [DIGITS, "--name", "\udcff"]])
def test_a_name_that_is_no_text_is_one_line(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without_ray: None, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "\udcff.py").write_bytes(Path(DIGITS).read_bytes())
    monkeypatch.setattr(sys, "argv", ["raytrain", "train", *arguments])
    assert "UTF-8 text" in fails(capsys, "train", *arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["\udcff.py"]


def test_too_few_processes_for_ray_are_one_line(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, without_ray: None, no_runs: Path
) -> None:
    limit = resource.getrlimit
    few = {resource.RLIMIT_NPROC: (60, 60)}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: few.get(kind) or limit(kind))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # the kernel does not apply that limit to root
    said = fails(capsys, "train", DIGITS, "--out", no_runs)
    assert "more processes and threads are allowed and Ray needs about" in said and "`ulimit -u`" in said
    assert cli.run(["doctor"]) == 1
    assert "more processes and threads are allowed" in capsys.readouterr().out


def test_more_threads_than_a_node_can_use_are_one_line(capsys: Capture, without_ray: None, no_runs: Path) -> None:
    """torch takes any number; the process crashed after 97 s, and with it whatever else wanted a thread."""
    said = fails(capsys, "train", DIGITS, "--scaling.threads_per_worker", "1000000", "--out", no_runs)
    assert "scaling.threads_per_worker must be at most " in said and "got 1000000" in said


# The home directory


def test_a_user_without_a_home_directory_has_a_token_and_a_plan(tmp_path: Path) -> None:
    """As in a container that runs under any user id: Ray would fail, and could not write its token."""
    text = "import os; from raytrain.driver import limits; os.getuid = lambda: 54321; limits.settle_home();"
    text += " limits.give_token(); print(os.environ['HOME'], len(os.environ['RAY_AUTH_TOKEN']))"
    kept = {name: value for name, value in os.environ.items() if name != "HOME" and not name.startswith("RAY_")}
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, check=True)
    assert done.stdout == f"{os.devnull} 64\n"


def test_writable_home_keeps_rays_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE", "MPLCONFIGDIR"):
        monkeypatch.delenv(name, raising=False)
    limits.settle_home()
    limits.give_token()
    assert "RAY_AUTH_TOKEN" not in os.environ and "MPLCONFIGDIR" not in os.environ


def test_commands_that_start_at_once_share_a_token_of_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    token, together = tmp_path / ".ray" / "auth_token", threading.Barrier(8)

    def start(_: int) -> str:
        together.wait()
        limits.give_token()
        return token.read_text()

    with ThreadPoolExecutor(8) as pool:
        found = {*pool.map(start, range(8))}
    assert len(found) == 1 and len(found.pop()) == 64
    assert [*token.parent.iterdir()] == [token] and token.stat().st_mode & 0o777 == 0o600


# The one line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nb\r\n\tc", "a b c"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07end", "red end"),
        ("bell\x07 null\x00 delete\x7f", r"bell\x07 null\x00 delete\x7f"),
        ("left\u202eright", r"left\u202eright"),
        ("name \udcff", r"name \udcff"),
        ("caf\u00e9 \u6587", "caf\u00e9 \u6587"),
        ("x" * 2000, "x" * 400 + " ... " + "x" * 200),
    ],
)
def test_one_line_is_printable_and_short(text: str, line: str) -> None:
    assert errors.one_line(text) == line
    assert str(errors.UserError(text, "", "how")) == f"{line}; how"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("two\nlines \x1b[1mbold"), "error: ValueError: two lines bold, at "),
        (OSError(28, "No space left on device"), "; free disk space (the traceback is in "),
        (RuntimeError("can't start new thread"), "; raise the limit of processes and threads (`ulimit -u`) ("),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), "(`ulimit -v`)"),
        (KeyError(), "error: KeyError, at "),
        (SystemExit("no\nway"), "error: no way"),
    ],
)
def test_unexpected_exception_is_one_line_and_a_file(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, message: str
) -> None:
    def fail(name: str, arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(failure.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(cli, "_call", fail)
    assert cli.run(["train"]) == 1
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1 and "Traceback" not in said
    kept = list(tmp_path.iterdir())
    if isinstance(error, Exception):
        assert f"{__file__}:" in said and f"in {kept[0]})" in said and "Traceback" in kept[0].read_text()
        assert cli.run(["train", "--verbose"]) == 1
        said = capsys.readouterr().err
        assert said.startswith("Traceback") and said.endswith("(the traceback is above)\n")
    assert len(kept) == isinstance(error, Exception)
