"""Jobs on a cluster: what was sent, what they print, how they ended."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from raytrain.report.console import clock, show_plan
from raytrain.report.layout import columns, show_command
from raytrain.report.layout import show as show_line

if TYPE_CHECKING:
    from raytrain.jobs.dashboard import Dashboard
    from raytrain.jobs.job import Job
    from raytrain.jobs.project import Project

_BEGINS = "Running entrypoint for job "
_STYLES = {"SUCCEEDED": "bold green", "FAILED": "bold red", "STOPPED": "bold yellow"}


def submitted(head: Dashboard, job: str, sent: Project, out: str) -> None:
    """Say what was sent where, and how to follow and to stop it."""
    lines = [
        ("job", f"{job} at {head.url}"),
        ("project", f"{sent.folder}: {sent.files:,} files, {sent.size / 2**20:,.1f} MiB"),
        ("out", out),
    ]
    console = _console()
    show_plan(console, lines)
    for name, words in (("follow", ("logs", job, "--follow")), ("stop", ("stop", job))):
        show_command(console, f"{name:>8}  ", _words(head, *words))
    if head.in_the_clear:
        note = "the token travels there unencrypted: on a network that is not yours, use a tunnel"
        show_plan(console, [("note", note)])


class Log:
    """Prints a job's log by lines: its errors on standard error, without what Ray says before the job begins."""

    def __init__(self) -> None:
        self._rest = ""
        self._held: list[str] | None = []
        self._said = False

    def show(self, text: str) -> None:
        """Take a piece of the log."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._line(line)

    def close(self, job: Job) -> None:
        """Print what is left, and how the job ended where it did not say so itself."""
        if self._rest:
            self.show("\n")
        if job.status == "STOPPED":
            print(f"stopped: {job.id}")
        elif job.status == "FAILED" and not self._said:
            for line in self._held or []:
                print(line)
            print(f"error: the job failed: {_why(job)}", file=sys.stderr)
        sys.stdout.flush()

    def _line(self, line: str) -> None:
        if self._held is not None:
            if line.startswith(_BEGINS):
                self._held = None
            else:
                self._held.append(line)
        elif line.startswith("error: "):
            self._said = True
            sys.stdout.flush()
            print(line, file=sys.stderr, flush=True)
        else:
            print(line, flush=True)


def wants_stop() -> bool:
    """Ask, on a terminal, whether to stop the job. An answer that is not understood twice leaves it running."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    question = "\nStop the job? y stops it after a checkpoint, n leaves it running [y/N] "
    for _ in range(2):
        try:
            answer = input(question).strip().lower()
        except (EOFError, UnicodeDecodeError):
            return False
        if answer in ("y", "yes", "s", "stop"):
            return True
        if answer in ("", "n", "no", "l", "leave"):
            return False
        question = f"{answer[:20]!r} is neither yes nor no. Stop the job? [y/N] "
    return False


def left(head: Dashboard, job: str, stopping: bool) -> None:
    """Say that a job goes on, or that it still stops."""
    print(
        f"\n{job} {'is stopping, after a checkpoint' if stopping else 'goes on'}; "
        f"follow it with `{_command(head, 'logs', job, '--follow')}`"
        + ("" if stopping else f", stop it with `{_command(head, 'stop', job)}`"),
        file=sys.stderr,
    )


def lost(head: Dashboard, job: str, why: str) -> None:
    """Say that the end of a job is unknown."""
    print(
        f"error: the cluster is lost, and {job} may go on: {why}; try `{_command(head, 'status', job)}`",
        file=sys.stderr,
    )


def ended(job: Job, log: str) -> None:
    """Say how a job ended, and in its own words where its run is."""
    console = _console()
    console.print(Text(job.status, style=_STYLES.get(job.status, "")).append(f"  {job.id}", style="not bold default"))
    own = [
        line for line in log.splitlines() if line.startswith(("interrupted: ", "the run is ", "the sweep is ", "next:"))
    ]
    for line in own[-3:]:
        show_line(console, "", line)
    if job.status == "STOPPED" and not own:
        show_line(console, "", "it had not begun to train, or did not end in time: there may be no new checkpoint")


def show(jobs: Sequence[Job]) -> None:
    """Print a line for each job, or two where the terminal is narrow; of a single one all there is to say."""
    console = _console()
    if not jobs:
        console.print("no jobs")
    width = max((len(job.id) for job in jobs), default=0)
    for job in jobs:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.started)) if job.started else ""
        lasted = clock((job.ended or time.time()) - job.started) if job.started else ""
        status, rest = f"{job.status:<10}", f"{job.id:<{width}}  {began:<19}  {lasted:>7}"
        room = columns(console)
        together = room is None or cell_len(f"{status}{rest}  {job.command}") <= room
        line = Text(status, style=_STYLES.get(job.status, ""))
        console.print(line.append(f"{rest}  {job.command}" if together else rest, style="not bold default"))
        if not together:
            show_line(console, " " * len(status), job.command)
    if len(jobs) == 1:
        job = jobs[0]
        facts = [("out", job.out), ("exit", "" if job.exit_code is None else str(job.exit_code))]
        facts += [("message", _why(job))] if job.status == "FAILED" else []
        show_plan(console, [(name, text) for name, text in facts if text])


def _why(job: Job) -> str:
    if number := job.killed_by:
        memory = ", perhaps because memory ran out" if number == signal.SIGKILL else ""
        return f"signal {number} ({signal.strsignal(number)}) ended its driver{memory}; {_way_on(job)}"
    lines = [line.strip() for line in job.message.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "Ray does not say why"


def _way_on(job: Job) -> str:
    """Return how the run or the sweep of a job that was killed goes on."""
    words = job.command.replace("--name=", "--name ").split()
    if "--name" not in words[:-1]:
        return "go on with `raytrain resume RUN` on the cluster; its log names the run"
    name = words[words.index("--name") + 1]
    return f"go on with `raytrain submit ... --name {name} --resume`"


def _command(head: Dashboard, *words: str) -> str:
    return shlex.join(_words(head, *words))


def _words(head: Dashboard, *words: str) -> list[str]:
    return ["raytrain", *words, "--address", head.url]


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True)
