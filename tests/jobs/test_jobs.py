"""Jobs, against a server that plays a dashboard: every mistake in a line, every outcome by its exit status."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.commands import DIGITS, REPOSITORY, fails
from helpers.head import BEGINS, Cut, Head, serving
from helpers.projects import COPIED, PROJECT, write
from ray._private import ray_constants

from raytrain import cli, errors
from raytrain.jobs import dashboard, follow, job, project
from raytrain.report import jobs as report
from raytrain.run import copies, experiment_file, repository
from raytrain.user_code import sources

TOKEN = "5ecret" * 8
pytestmark = pytest.mark.filterwarnings("ignore:ssl=None is deprecated:DeprecationWarning")  # Ray's client gives it


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a token, and no address in the environment."""
    monkeypatch.setattr(follow, "_PAUSE_SECONDS", 0.05)
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    (folder := tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def head() -> Iterator[Head]:
    with serving(Head()) as server:
        yield server


@pytest.fixture
def working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that the user is in, with what belongs to it and what does not."""
    folder = tmp_path / "work"
    for name, text in {
        "mine/digits.py": Path(DIGITS).read_text(),
        "net.py": "",
        "auth_token": TOKEN,
        "runs/old/experiment.json": "{}",
        ".git/config": TOKEN,
        ".venv/pyvenv.cfg": "",
        "mine/__pycache__/digits.pyc": "",
        "big/weights.pth": "x" * 300_000,
        "big/more.pth": "x" * 200_000,
        "secret.txt": TOKEN,
        ".gitignore": "secret.txt\nignored.py\n",
        "ignored.py": Path(DIGITS).read_text(),
        "a sweep.py": "from raytrain import *\nfrom raytrain import Grid, Sweep\n"
        "sweep = Sweep(Experiment(MLP(), Digits()), axes=(Grid('optimizer.lr', (0.1, 0.2)),))\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    return folder


def put_token(home: Path, text: str = TOKEN) -> None:
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text(text)


# What answers, and whom it lets in


@pytest.fixture
def elsewhere() -> Iterator[Callable[[bytes | None], str]]:
    """Servers that are no dashboard: what each says to whoever connects; None for nothing."""
    servers: list[socket.socket] = []

    def start(says: bytes | None) -> str:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def serve() -> None:
            with server:
                while True:
                    try:
                        peer, _ = server.accept()
                    except OSError:
                        return
                    if says is not None:
                        peer.recv(10_000)
                        peer.sendall(says)
                        peer.close()
                    else:
                        servers.append(peer)

        threading.Thread(target=serve, daemon=True).start()
        return f"http://127.0.0.1:{server.getsockname()[1]}"

    yield start
    for server in servers:
        server.close()


def test_nothing_listens_there(capsys: pytest.CaptureFixture[str]) -> None:
    said = fails(capsys, "status", "--address", "http://127.0.0.1:1")
    assert said.startswith("error: no Ray dashboard answers: Connection refused, http://127.0.0.1:1; give the URL")


def test_a_host_that_nobody_knows(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no Ray dashboard answers: " in fails(capsys, "status", "--address", "http://nobody.invalid:8265")


def test_silent_address_is_given_up_within_15_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as full:  # its queue is, and a connection to it waits
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        began = time.monotonic()
        said = fails(capsys, "submit", DIGITS, "--out", "/x", "--address", f"http://127.0.0.1:{full.getsockname()[1]}")
        assert "no Ray dashboard answers: nothing within 5 s" in said and time.monotonic() - began < 15
        for one in waiting:
            one.close()


def test_a_name_s_look_up_that_takes_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dashboard, "_ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(dashboard, "_greet", lambda url: time.sleep(3))
    assert "nothing within 0 s" in fails(capsys, "status", "--address", "http://x:8265")


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n<html>hello</html>", "something else answers there, with 200 to /api/version"),
        (b"HTTP/1.0 404 Not Found\r\n\r\n", "answers there, with 404"),
        (b"HTTP/1.0 403 Forbidden\r\n\r\n", "answers there, with 403"),
        (b"HTTP/1.0 200 OK\r\n\r\n[1]", "answers there, with 200"),
        (b'HTTP/1.0 200 OK\r\n\r\n{"ray_version": 2}', "answers there, with 200"),
        (b"HTTP/1.0 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "answers there, with 302"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "the server there does not speak HTTP"),
        (b"\x00\x00\x18\x04\x00\x00\x00\x00\x00\xff\xff", "the server there does not speak HTTP"),
        (b"", "the server there does not speak HTTP|closed connection|Remote end"),
    ],
)
def test_what_is_no_dashboard(
    elsewhere: Callable[[bytes | None], str], capsys: pytest.CaptureFixture[str], says: bytes, why: str
) -> None:
    said = fails(capsys, "logs", "it", "--address", elsewhere(says))
    assert said.startswith("error: no Ray dashboard answers: ") and re.search(why, said)


def test_what_connects_and_says_nothing(
    elsewhere: Callable[[bytes | None], str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "_CONNECT_SECONDS", 0.3)
    assert "answers: nothing within" in fails(capsys, "stop", "it", "--address", elsewhere(None))


@pytest.mark.parametrize(
    ("address", "suggested"),
    [
        ("10.0.0.1:6379", "http://10.0.0.1:8265"),
        ("ray://head:10001", "http://head:8265"),
        ("auto", "http://HOST:8265"),
        ("head", "http://head:8265"),
        ("http://", "http://HOST:8265"),
        ("http://head:port", "http://HOST:8265"),
        ("ftp://head", "http://head:8265"),
    ],
)
def test_an_address_that_is_no_url_of_a_dashboard(
    capsys: pytest.CaptureFixture[str], address: str, suggested: str
) -> None:
    said = fails(capsys, "status", "--address", address)
    assert "this is not the URL of a dashboard" in said and f"give one such as {suggested} " in said


def test_an_address_must_be_given_or_be_a_url_in_the_environment(
    head: Head, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert "no cluster is named" in fails(capsys, "status")
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        with monkeypatch.context() as patch:
            patch.setenv(name, head.url)
            assert cli.run(["status"]) == 0
        assert re.search(r"^RUNNING +it ", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize("version", ["2.59.1", "3.0.0", "1" * 500])
def test_another_ray_there_is_refused_with_both_versions(
    head: Head, capsys: pytest.CaptureFixture[str], version: str
) -> None:
    head.version = version
    said = fails(capsys, "status", "--address", head.url)
    assert f"the cluster has Ray {version[:40]} and this machine 2.60.0" in said and len(said) < 300


def test_another_patch_release_is_taken(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    head.version = "2.60.7"
    assert cli.run(["status", "--address", head.url]) == 0


def test_missing_wrong_and_malformed_tokens_are_refused(
    head: Head, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    head.token = TOKEN
    where = home / ".ray" / "auth_token"
    said = fails(capsys, "status", "--address", head.url)
    assert f"the cluster requires a token, and there is none here ({where}: No such file or directory)" in said
    put_token(home, "wrong")
    assert f"the cluster refuses the token of {where}" in fails(capsys, "status", "--address", head.url)
    for text in ("", "two words", "é"):
        where.write_text(text)
        assert f"requires a token, and {where} holds none" in fails(capsys, "status", "--address", head.url)
    where.write_text(TOKEN)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "another")
    assert "refuses the token of RAY_AUTH_TOKEN" in fails(capsys, "status", "--address", head.url)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert "RAY_AUTH_MODE is `disabled` here" in fails(capsys, "status", "--address", head.url)


@pytest.mark.parametrize("place", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "home"])
def test_token_is_rays_and_sent_only_on_request(
    head: Head, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if place == "home":
        put_token(home, TOKEN + "\n")
    elif place == "RAY_AUTH_TOKEN":
        monkeypatch.setenv(place, TOKEN)
    else:
        (tmp_path / "token").write_text(TOKEN)
        monkeypatch.setenv(place, str(tmp_path / "token"))
    assert cli.run(["status", "--address", head.url]) == 0
    assert {given for *_, given, _ in head.asked} == {None}
    head.asked, head.token = [], TOKEN
    assert cli.run(["status", "--address", head.url]) == 0
    assert [given for *_, given, _ in head.asked] == [None, f"Bearer {TOKEN}", f"Bearer {TOKEN}"]


def test_the_token_does_not_cross_the_internet_in_the_clear(home: Path) -> None:
    put_token(home)
    with pytest.raises(errors.UserError, match="would cross the internet unencrypted"):
        dashboard._with_token("http://8.8.8.8:8265")
    for url, in_the_clear in {
        "https://8.8.8.8": False,
        "http://127.0.0.1:1": False,
        "http://[::1]:1": False,
        "http://10.0.0.1:8265": True,
        "http://[fd00::1]:8265": True,
    }.items():
        assert dashboard._with_token(url).in_the_clear == in_the_clear
    assert TOKEN not in repr(dashboard._with_token("http://10.0.0.1:8265"))


# What is sent


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["mine/digits.py"], "--out is not given, and a job runs in a temporary copy"),
        (["mine/digits.py", "--out", "runs"], "--out runs is relative"),
        (["mine/digits.py", "--out", "s3://key:password@bucket/runs"], "the URL holds a password"),
        (["a sweep.py", "--out", "s3://bucket/runs?endpoint_override=http://me:hidden@host"], "(endpoint_override)"),
        (["mine/none.py", "--out", "/x"], "no such experiment file, mine/none.py"),
        (["net.py", "--out", "/x"], "not an experiment: it defines no `experiment`, net.py"),
        (["mine", "--out", "/x"], "this is a directory"),
        (["ignored.py", "--out", "/x"], "this file would not be sent"),
        (["mine/digits.py", "--out", "/x", "--optimizer.lrr", "1"], "did you mean --optimizer.lr?"),
        (["mine/digits.py", "--out", "/x", "--optimizer.lr", "-1"], "lr = -1.0 is out of range"),
        (["a sweep.py", "--out", "/x", "--optimizer.lr", "1"], "--optimizer.lr is what the sweep varies"),
        (["mine/digits.py", "--out", "/x", "--address", "http://u:p@h"], "the URL holds a password"),
        (["mine/digits.py", "--out", "/x", "--env", "A"], "must be NAME=VALUE, got 'A'"),
        (["mine/digits.py", "--out", "/x", "--env", "A=1", "A=2"], "A is given twice"),
        (["mine/digits.py", "--out", "/x", "--env", "WANDB_API_KEY=1"], "WANDB_API_KEY is the name of a secret"),
        ([], "EXPERIMENT must come first"),
    ],
)
def test_a_mistake_is_said_before_anything_is_sent(
    head: Head, working: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    address = [] if "--address" in arguments else ["--address", head.url]
    assert says in fails(capsys, "submit", *arguments, *(address if arguments else []))
    assert not head.requests("PUT") and not head.requests("POST")


def test_a_head_whose_agent_has_no_port_is_said_with_what_to_do(
    head: Head, working: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head.refuses = "No available agent to submit job, please try again later."
    said = fails(capsys, "submit", "mine/digits.py", "--out", "/x", "--address", head.url)
    assert "the cluster takes no jobs: the dashboard agent of its head does not answer" in said
    assert "--dashboard-agent-listen-port PORT" in said and "raytrain doctor" in said
    head.refuses = "Traceback:\nno room for the package"
    said = fails(capsys, "submit", "mine/digits.py", "--out", "/x", "--address", head.url)
    assert "the cluster refuses it: " in said and "no room for the package" in said


def test_too_large_project_names_its_largest_files(
    head: Head, working: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "_LIMIT", 450_000)
    arguments = ("submit", "mine/digits.py", "--out", "/x", "--address", head.url)
    said = fails(capsys, *arguments)
    assert re.search(r"the largest files are big/weights.pth \(0.3 MiB\), big/more.pth \(0.2 MiB\), \S+ \(0.0", said)
    (working / ".rayignore").write_text("more.pth\n")
    assert cli.run([*arguments, "--no_wait"]) == 0 and capsys.readouterr().out
    monkeypatch.setattr(project, "_MOST_FILES", 3)
    assert "the project has too many files, 4 or more" in fails(capsys, *arguments)


def test_a_project_may_have_as_much_as_rays_dashboard_takes() -> None:
    assert project._LIMIT == ray_constants.DASHBOARD_CLIENT_MAX_SIZE == 100 * 2**20


def test_a_proxy_that_takes_less_is_said_with_what_to_do(
    head: Head, working: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head.most = 200
    said = fails(capsys, "submit", "mine/digits.py", "--out", "/x", "--address", head.url)
    assert f"takes no project of 0.5 MiB (HTTP status 413), {head.url}; keep data and weights" in said
    assert said.endswith("name them in a .rayignore")


@pytest.mark.parametrize("file", ["mine/folder.py", "swept.py"])
def test_data_that_stay_behind_are_an_error_before_anything_is_sent(
    head: Head, working: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    experiment = 'Experiment(MLP(), ImageFolder("plates"))'
    swept = f"Sweep({experiment}, axes=(Grid('optimizer.lr', (0.1, 0.2)),))"
    value = f"sweep = {swept}" if file == "swept.py" else f"experiment = {experiment}"
    (working / file).write_text(f"from raytrain import *\nfrom raytrain import Grid, Sweep\n{value}\n")
    arguments = ("submit", file, "--out", "/x", "--no_wait", "--address", head.url)
    assert cli.run([*arguments]) == 0  # they are not here either: perhaps the job makes them
    (working / "plates" / "a").mkdir(parents=True)
    (working / "plates" / "a" / "1.png").write_text("")
    assert cli.run([*arguments]) == 0 and capsys.readouterr().out
    (working / ".rayignore").write_text("plates\n")
    sent = len(head.requests("PUT"))
    said = fails(capsys, *arguments)
    assert (
        f"data.root = 'plates' is relative to the project, and these data would not be sent with it, {working}" in said
    )
    assert "give a path that all nodes have (--data.root /shared/data)" in said
    assert "'../work/plates' is relative" in fails(capsys, *arguments, "--data.root", "../work/plates")
    assert len(head.requests("PUT")) == sent
    assert cli.run([*arguments, "--data.root", str(working / "plates")]) == 0


def test_downloaded_data_may_stay_behind(head: Head, working: Path) -> None:
    (working / "mnist.py").write_text("from raytrain import *\nexperiment = Experiment(MLP(), MNIST('data'))\n")
    (working / "data").mkdir()
    assert cli.run(["submit", "mnist.py", "--data.download", "--out", "/x", "--no_wait", "--address", head.url]) == 0


def test_a_job_that_misses_a_file_is_told_what_is_sent(tmp_path: Path) -> None:
    folder = tmp_path / "working_dir_files" / "_ray_pkg_0123"
    said = str(errors.no_such_file(folder / "plates", "folder", ["plate"]))
    assert said.startswith(f"no such folder, {folder}/plates; a job has only the files that were sent with its project")
    assert "by an absolute path that all nodes have" in said
    assert str(errors.no_such_file(tmp_path / "x", "folder")).endswith("check the spelling, or give an absolute path")


def test_rays_client_sends_no_token_unasked(head: Head, working: Path) -> None:
    """In a process of its own, since Ray reads RAY_AUTH_MODE once."""
    command = [sys.executable, "-m", "raytrain.cli", "submit", "mine/digits.py", "--out", "/x", "--address", head.url]
    for token in ({}, {"RAY_AUTH_TOKEN": TOKEN}):
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "RAY_AUTH_MODE": "token", **token}
        done = subprocess.run([*command, "--no_wait"], env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and done.stderr == ""
    assert len(head.requests("PUT")) == 2 and not [one for one in head.asked if one[2]]


def test_what_is_sent_and_what_is_not(
    head: Head, home: Path, working: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")  # --address goes before
    (working / "kept.txt").write_text(TOKEN)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(working / "kept.txt"))
    head.token = TOKEN
    out, flags = working / "out [1]", ["--optimizer.lr", "0.5", "--name", "a b", "--model.channels", "4", "8"]
    (out / "old").mkdir(parents=True)
    (out / "old" / "file").touch()
    arguments = ["mine/digits.py", *flags[:2], "--address", head.url, "--no_wait", *flags[2:], "--out", str(out)]
    assert cli.run(["submit", *arguments]) == 0
    job = capsys.readouterr().out.strip()
    assert re.fullmatch(r"raytrain-a-b-[0-9a-f]{6}", job)
    ((*_, package),) = head.requests("PUT")
    sent = zipfile.ZipFile(io.BytesIO(package)).namelist()
    assert sorted(name for name in sent if not name.endswith("/")) == [
        *(".gitignore", "a sweep.py", "big/more.pth", "big/weights.pth", "mine/digits.py", "net.py")
    ]
    ((*_, body),) = head.requests("POST", "/api/jobs/")
    asked = json.loads(body)
    assert asked["submission_id"] == job and asked["runtime_env"]["working_dir"].startswith("gcs://")
    assert asked["metadata"] == {
        "command": shlex.join(["raytrain", "train", "mine/digits.py", *flags, "--out", str(out)]),
        "out": str(out),
    }
    words = shlex.split(asked["entrypoint"].partition('exec "$python" ')[2])
    assert words == ["-m", "raytrain.cli", "train", "mine/digits.py", *flags, "--out", str(out), "--address", "auto"]
    assert {given for _, path, given, _ in head.asked if path != "/api/version"} == {f"Bearer {TOKEN}"}
    assert not [path for _, path, _, body in head.asked if TOKEN.encode() in body or TOKEN in path]
    assert os.environ["RAY_API_SERVER_ADDRESS"] == "http://127.0.0.1:1"


def test_a_sweep_is_submitted_as_one(head: Head, working: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "commit_of", lambda _: repository.Commit("abc", True))
    more = ["--env", "WANDB_MODE=offline", "A=", "--trials", "2", "--no_wait"]
    assert cli.run(["submit", "a sweep.py", "--out", "/x", "--address", head.url, *more]) == 0
    ((*_, body),) = head.requests("POST")
    assert json.loads(body)["metadata"]["command"] == "raytrain sweep 'a sweep.py' --out /x --trials 2"
    known = json.loads(body)["runtime_env"]["env_vars"]
    assert known["RAYTRAIN_GIT"] == "abc with changes", "the copy has no .git"
    assert known["WANDB_MODE"] == "offline" and known["A"] == ""


def test_file_with_a_sweep_and_an_experiment_is_neither(working: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (working / "both.py").write_text((working / "a sweep.py").read_text() + "\nexperiment = sweep.experiment\n")
    said = fails(capsys, "submit", "both.py", "--address", "http://localhost:1", "--out", "/shared")
    assert (
        "this file has both a `sweep` and an `experiment`, both.py; `raytrain sweep both.py` runs the sweep; " in said
    )
    assert "else give the experiment another name there" in said
    assert said == fails(capsys, "train", "both.py", "--out", "/shared")


@pytest.mark.parametrize("flag", ["first", "last"])
def test_question_for_precision_and_batch_is_submitted_as_a_sweep(head: Head, working: Path, flag: str) -> None:
    arguments = ["mine/digits.py", "--out", "/x", "--trial_epochs", "2", "--name", "it", "--resume"]
    arguments = ["--precision_and_batch", *arguments] if flag == "first" else [*arguments, "--precision_and_batch"]
    assert cli.run(["submit", *arguments, "--address", head.url, "--no_wait"]) == 0
    ((*_, body),) = head.requests("POST")
    begins = "raytrain sweep mine/digits.py --precision_and_batch --out /x --trial_epochs 2 --name it --resume"
    assert json.loads(body)["metadata"]["command"] == begins


def test_mistake_in_a_submitted_question_is_one_line(working: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = ("submit", "--precision_and_batch", "mine/digits.py", "--out", "/x", "--address", "http://127.0.0.1:1")
    assert "--precision is what the command varies" in fails(capsys, *question, "--precision", "bf16")
    assert "--resume needs the name of the run" in fails(capsys, *question, "--resume")
    assert "trial_epoch" in fails(capsys, *question, "--trial_epoch", "2")


def test_project_is_the_working_directory_unless_a_home(
    working: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert project.project(Path("mine/digits.py"), "/x").experiment == "mine/digits.py"
    monkeypatch.chdir(tmp_path / "home")
    found = project.project(working / "mine/digits.py", "/x")
    assert (found.folder, found.experiment, found.files) == (working / "mine", "digits.py", 1)
    (home / "digits.py").write_text("")
    put_token(home)
    (home / "work").mkdir()
    (home / "work" / "digits.py").write_text("")
    assert project.project(Path("work/digits.py"), "/x").folder == home / "work"
    assert project.project(Path("digits.py"), "/x").files == 2  # without the token
    monkeypatch.chdir(working)
    assert project.project(Path("runs/old/experiment.json"), "/x").folder == working / "runs/old"


def test_job_has_the_experiments_and_the_runs_modules(working: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(working / "mine", PROJECT)
    monkeypatch.chdir(working / "mine")
    assert COPIED | {"exp.py"} <= set(project._sizes(project.project(Path("exp.py"), "/x").folder, ()))
    value, source = experiment_file.load("exp.py")
    run = working / "mine" / "runs" / "one"
    run.mkdir(parents=True)
    copies.keep(value, source, run)
    experiment_file.save(value, run / "experiment.json")
    sources.activate(None)
    found = project.project(run / "experiment.json", "/x")
    sent = {"experiment.py", "experiment.json", "sources.json", *(f"modules/{name}" for name in COPIED)}
    assert found.folder == run and set(project._sizes(run, found.excludes)) == sent


# How it goes, and how it ends


def follows(head: Head, *more: str) -> int:
    return cli.run(["logs", "it", "--follow", "--address", head.url, *more])


@pytest.mark.parametrize(
    ("ends", "status", "says"),
    [
        (("SUCCEEDED", 0), 0, ""),
        (("FAILED", 2, "Job entrypoint command failed"), 2, "error: the job failed: Job entrypoint command failed"),
        (("FAILED", 1), 1, "error: the job failed: Ray does not say why"),
        (("FAILED", None, "Runtime env failed:\n  no space left\n"), 1, "error: the job failed: no space left"),
        (("FAILED", -9, "starting the workers ..."), 137, "error: the job failed: signal 9 (Killed) ended its driver"),
        (("FAILED", 137), 137, "error: the job failed: signal 9 (Killed) ended its driver, perhaps because memory"),
        (("FAILED", -11), 139, "error: the job failed: signal 11 (Segmentation fault) ended its driver; go on with"),
        (("FAILED", 143), 143, "error: the job failed"),
        (("STOPPED", None), 143, ""),
    ],
)
def test_the_exit_status_is_the_job_s_true_outcome(
    head: Head, capsys: pytest.CaptureFixture[str], ends: tuple, status: int, says: str
) -> None:
    head.ends(*ends)
    assert follows(head) == status
    said = capsys.readouterr()
    assert said.err.startswith(says) and said.err.count("\n") == bool(says)


def test_an_error_of_the_job_is_the_one_line_on_standard_error(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    head.log = BEGINS + "reading ...\nerror: the run asks for 2 GPUs and the cluster has 0; ask for less\n"
    head.ends("FAILED", 2, "failed")
    assert follows(head) == 2
    said = capsys.readouterr()
    assert said.err == "error: the run asks for 2 GPUs and the cluster has 0; ask for less\n"
    assert said.out == "reading ...\n"


def test_a_log_whose_connection_breaks_is_shown_once_and_whole(
    head: Head, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f"line {n} é\n" for n in range(40)]
    head.log = BEGINS + "".join(lines) + "no line's end"
    begun = BEGINS + "".join(lines[:10])

    def breaks(send: Callable[[str], None]) -> None:
        send(begun + lines[10][:4])
        raise Cut

    def breaks_at_once(send: Callable[[str], None]) -> None:
        head.away = 2
        raise Cut

    def goes_on(send: Callable[[str], None]) -> None:
        for piece in (begun[:30], begun[30:], "".join(lines[10:25])):
            send(piece)
        head.ends("SUCCEEDED", 0)  # and the rest was not sent

    head.streams = [breaks, breaks_at_once, lambda send: None, goes_on]
    assert follows(head) == 0
    said = capsys.readouterr()
    assert said.out == "".join(lines) + "no line's end\n" and said.err == ""
    assert len(head.requests("GET", "/api/jobs/it/logs/tail")) == 4


def test_a_job_that_is_over_is_printed_at_once(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    head.log = BEGINS + "one\ntwo\n"
    head.ends("SUCCEEDED", 0)
    assert follows(head) == 0 and capsys.readouterr().out == "one\ntwo\n"
    assert not head.requests("GET", "/api/jobs/it/logs/tail"), "Ray's client is not needed"


def test_a_stream_that_is_silent_for_long_is_opened_again(
    head: Head, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_QUIET_SECONDS", 0.3)
    over, waited = threading.Event(), list[bool]()

    def hangs(send: Callable[[str], None]) -> None:
        send(BEGINS + "one\n")
        waited.append(over.wait(20))

    def goes_on(send: Callable[[str], None]) -> None:
        send(BEGINS + "one\ntwo\n")
        head.log = BEGINS + "one\ntwo\n"
        head.ends("SUCCEEDED", 0)

    head.streams = [hangs, goes_on]
    assert follows(head) == 0 and capsys.readouterr().out == "one\ntwo\n"
    assert not waited, "the silent stream was left while it was open"
    over.set()


def test_a_stream_that_does_not_end_with_the_job_is_left(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    left, waited = threading.Event(), list[bool]()

    def hangs(send: Callable[[str], None]) -> None:
        send(BEGINS + "one\n")
        head.log = BEGINS + "one\ntwo\n"
        head.ends("SUCCEEDED", 0)
        waited.append(left.wait(20))

    head.streams = [hangs]
    assert follows(head) == 0 and capsys.readouterr().out == "one\ntwo\n"
    assert not waited, "the stream was left while it was open"
    left.set()


@pytest.mark.parametrize("gone", ["cluster", "job"])
def test_a_cluster_that_is_lost_is_no_success(
    head: Head, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    monkeypatch.setattr(follow, "_LOST_SECONDS", 0.5)

    def lose(send: Callable[[str], None]) -> None:
        if gone == "job":
            head.job["submission_id"] = "another"
        head.away = 1000

    head.streams = [lose]
    assert follows(head) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: the cluster is lost, and it may go on: ") and said.count("\n") == 1


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_without_a_terminal_leaves_the_job_running(
    head: Head, working: Path, capsys: pytest.CaptureFixture[str], number: int, status: int
) -> None:
    def interrupt(send: Callable[[str], None]) -> None:
        os.kill(os.getpid(), number)
        time.sleep(1)

    head.streams = [interrupt]
    assert cli.run(["submit", "mine/digits.py", "--out", "/x", "--address", head.url]) == status
    job, said = head.job["submission_id"], capsys.readouterr().err
    assert f"{job} goes on; follow it with `raytrain logs {job} --follow --address {head.url}`" in said
    assert f"raytrain stop {job} --address {head.url}" in said
    assert not head.requests("POST", f"/api/jobs/{job}/stop")


@pytest.mark.parametrize(
    ("answers", "stops"),
    [
        *((answer, True) for answer in ("y", "Y", " yes ", "s", "stop", "Stop")),
        *((answer, False) for answer in ("", "n", "No", "leave", "LEAVE")),
        ("sotp|y", True),
        ("maybe|", False),
        ("?|?|y", False),
        ("EOF", False),
        ("x|EOF", False),
    ],
)
def test_the_question_of_ctrl_c_does_what_the_answer_means(
    answers: str, stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        text = answers.split("|")[len(asked) - 1]
        if text == "EOF":
            raise EOFError
        return text

    monkeypatch.setattr("builtins.input", answer)
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert report.wants_stop() == stops
    assert len(asked) <= 2 and all("[y/N]" in question for question in asked)


@pytest.mark.parametrize("answer", ["y\n", "y\n\x03", "\x03"])
def test_ctrl_c_on_a_terminal_asks_and_stops_the_job_on_yes(head: Head, working: Path, answer: str) -> None:
    """In a process of its own, whose terminal is ours."""
    reached, yes = threading.Event(), answer.startswith("y")
    head.stops = answer != "y\n\x03"  # or it goes on writing its checkpoint

    def waits(send: Callable[[str], None]) -> None:
        send(BEGINS + "training\n")
        reached.set()
        while head.job["status"] == "RUNNING":
            time.sleep(0.05)
        send("interrupted: step 3\n")

    head.streams, head.log = [waits], BEGINS + "training\ninterrupted: step 3\n"
    command = [sys.executable, "-m", "raytrain.cli", "submit", "mine/digits.py", "--out", "/x", "--address", head.url]
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                               env={**os.environ, "PYTHONPATH": str(REPOSITORY)})  # fmt: skip
    os.close(theirs)
    assert reached.wait(60)
    said = read_until(ours, "training")
    process.send_signal(signal.SIGINT)
    said += read_until(ours, "[y/N]")
    if yes:
        os.write(ours, b"y\n")
    if answer.endswith("\x03"):
        time.sleep(1)  # for the question to be waited on, or for the job to be asked
        process.send_signal(signal.SIGINT)
    ends = {"y\n": "stopped: ", "y\n\x03": "is stopping, after a checkpoint", "\x03": "goes on; follow it"}
    said += read_until(ours, ends[answer])
    assert process.wait(30) == 130
    os.close(ours)
    assert bool(head.requests("POST", f"/api/jobs/{head.job['submission_id']}/stop")) == yes
    assert said.count("training") == 1 and said.count("[y/N]") == 1
    head.ends("STOPPED")


def read_until(terminal: int, text: str) -> str:
    said = ""
    while text not in said:
        try:
            piece = os.read(terminal, 1000).decode()
        except OSError:
            piece = ""
        assert piece, f"{text!r} did not come: {said!r}"
        said += piece
    return said


def test_stop_waits_for_the_end_and_says_where_the_run_is(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    head.log = BEGINS + "interrupted: step 7, best accuracy 0.9\nthe run is in /x/1\nnext:  raytrain resume /x/1\n"
    assert cli.run(["stop", "it", "--address", head.url]) == 0
    said = capsys.readouterr().out
    assert "STOPPED  it\ninterrupted: step 7, best accuracy 0.9\nthe run is in /x/1\nnext:  raytrain resume" in said
    assert len(head.requests("POST", "/api/jobs/it/stop")) == 1
    assert cli.run(["stop", "it", "--address", head.url]) == 0 and "STOPPED  it" in capsys.readouterr().out
    assert len(head.requests("POST", "/api/jobs/it/stop")) == 1  # it had ended
    head.log = BEGINS
    assert cli.run(["stop", "it", "--address", head.url]) == 0
    assert "there may be no new checkpoint" in capsys.readouterr().out


def test_jobs_are_listed_and_shown(head: Head, capsys: pytest.CaptureFixture[str]) -> None:
    head.ends("FAILED", 2, "last available logs:\nerror: no")
    assert cli.run(["status", "--address", head.url]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^FAILED +it +2023-11-1\d \d\d:\d\d:\d\d +0:09  raytrain train x.py$", said, re.MULTILINE)
    assert cli.run(["status", "it", "--address", head.url]) == 0
    said = capsys.readouterr().out
    assert "out  /shared/runs" in said and "exit  2" in said and "message  error: no" in said
    assert cli.run(["status", "--json", "--address", head.url]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert cli.run(["status", "it", "--json", "--address", head.url]) == 0
    assert json.loads(capsys.readouterr().out) == one and (one["status"], one["exit_code"]) == ("FAILED", 2)
    assert cli.run(["logs", "it", "--address", head.url]) == 0 and capsys.readouterr().out == BEGINS


@pytest.mark.parametrize("command", ["status", "logs", "stop"])
def test_a_job_that_is_not_there(head: Head, capsys: pytest.CaptureFixture[str], command: str) -> None:
    head.job["submission_id"] = "raytrain-digits-012345"
    said = fails(capsys, command, "raytrain-digit-012345", "--address", head.url)
    assert "no job 'raytrain-digit-012345' there; did you mean raytrain-digits-012345?" in said
    assert "no job '../version' there" in fails(capsys, command, "../version", "--address", head.url)


def test_output_of_a_failed_job_start_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    log = report.Log()
    log.show("Runtime env is setting up.\nno space")
    log.close(job.Job("it", "FAILED", "raytrain train x.py", message="it failed"))
    said = capsys.readouterr()
    assert said.out == "Runtime env is setting up.\nno space\n" and said.err == "error: the job failed: it failed\n"


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("raytrain train x.py --name a --out /x", "`raytrain submit ... --name a --resume`"),
        ("raytrain train x.py --out /x --resume --name=a", "`raytrain submit ... --name a --resume`"),
        ("raytrain train x.py --out /x", "`raytrain resume RUN` on the cluster; its log names the run"),
    ],
)
def test_a_killed_driver_says_how_its_run_goes_on(capsys: pytest.CaptureFixture[str], command: str, says: str) -> None:
    log = report.Log()
    log.show(BEGINS + "starting the workers ...\n")
    log.close(job.Job("it", "FAILED", command, exit_code=-9, message="starting the workers ..."))
    assert capsys.readouterr().err.endswith(f"memory ran out; go on with {says}\n")
