"""A cluster's address: who answers there is found in seconds, before Ray is let at it, and said in a line."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.commands import DIGITS, fails
from ray.exceptions import TaskUnschedulableError, WorkerCrashedError

from raytrain import errors
from raytrain.driver import credentials, ray_cluster, session
from raytrain.driver.logs import keep_traceback
from raytrain.driver.ray_internals import own_node

TOKEN = "5ecret" * 8
OPEN = "2.60.0"
"""The version of a cluster that requires no token."""


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Starts what answers as a cluster of a version of Ray does, to those who have the token."""
    import grpc

    for name in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")  # set here, so that it is taken back
    servers = []

    def start(version: str) -> str:
        from ray.core.generated import gcs_service_pb2

        messages: Any = gcs_service_pb2  # whose names are made as it is imported

        def answer(_: bytes, context: grpc.ServicerContext) -> bytes:
            if version != OPEN and ("authorization", f"Bearer {TOKEN}") not in context.invocation_metadata():
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")
            return messages.CheckAliveReply(ray_version=version).SerializeToString()

        alive = grpc.method_handlers_generic_handler(
            "ray.rpc.NodeInfoGcsService", {"CheckAlive": grpc.unary_unary_rpc_method_handler(answer)}
        )
        server = grpc.server(ThreadPoolExecutor(1), handlers=[alive])
        servers.append(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(None)


def refused(capsys: pytest.CaptureFixture[str], address: str) -> str:
    return fails(capsys, "train", DIGITS, "--dry_run", "--address", address)


def test_another_token_none_and_another_version_are_refused(
    gcs: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    address = gcs("2.59.0")
    assert f"requires a token, and there is none here ({tmp_path}/.ray/auth_token: No such" in refused(capsys, address)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong")
    assert f"the cluster refuses the token of RAY_AUTH_TOKEN, {address}; " in refused(capsys, address)
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    assert "the cluster has Ray 2.59.0 and this machine 2.60.0" in refused(capsys, address)
    monkeypatch.setenv("RAY_ADDRESS", address)  # what `auto` means
    assert "the cluster has Ray 2.59.0" in refused(capsys, "auto")


def test_a_token_for_a_cluster_that_requires_none_is_refused(
    gcs: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    said = refused(capsys, gcs(OPEN))
    assert "the cluster requires no token, and there is one here (RAY_AUTH_TOKEN), 127.0.0.1:" in said
    assert "set RAY_AUTH_MODE=disabled here" in said


def test_what_listens_and_is_no_cluster(gcs: object, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor(1) as pool:

        def hang_up() -> None:
            for _ in range(2):
                other.accept()[0].close()

        done = pool.submit(hang_up)
        port = other.getsockname()[1]
        assert "no Ray cluster answers: something else answers there, 127.0.0.1:" in refused(
            capsys, f"127.0.0.1:{port}"
        )
        done.result(10)


def test_an_address_of_the_environment_is_taken_back_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = "to use this machine alone"
    assert f"or leave --address out {alone}" in refused(capsys, "127.0.0.1:1")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert f"or unset RAY_ADDRESS {alone}" in fails(capsys, "train", DIGITS, "--dry_run")
    assert f"or unset RAY_ADDRESS {alone}" in refused(capsys, "auto")


def test_session_folder_is_private_to_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user = os.getuid()
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("long" * 20)))  # the path of a socket has 107 characters
    assert credentials.private_folder() == Path(f"/tmp/raytrain-{user}")
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as base:
        monkeypatch.setenv("TMPDIR", base)
        folder = Path(base, f"raytrain-{user}")
        for _ in range(2):
            assert credentials.private_folder() == folder and stat.S_IMODE(folder.stat().st_mode) == 0o700
            folder.chmod(0o755)  # which the second call takes back
        folder.rmdir()
        for squat in (lambda: folder.symlink_to(tmp_path), lambda: folder.write_text("")):
            squat()
            with pytest.raises(errors.UserError, match="set RAY_TMPDIR"):
                credentials.private_folder()
            folder.unlink()
        monkeypatch.setattr(os, "getuid", lambda: user + 1)
        Path(base, f"raytrain-{user + 1}").mkdir()  # another user was here first
        with pytest.raises(errors.UserError, match="must belong to you"):
            credentials.private_folder()
        monkeypatch.setenv("RAY_TMPDIR", base)
        assert credentials.private_folder() == Path(base)


def test_the_logs_of_a_run_are_what_a_person_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Ray's logs, those of a run that failed, with the end of long ones."""
    ray, logs = tmp_path / "ray", tmp_path / "logs"
    for name, text in (
        ("raylet.out", b"x" * (1 << 20) + b"the node ran out of memory\n"),
        ("raylet.err", b""),
        ("worker-1.err", b":job_id:01000000\n:actor_name:RayTrainWorker\n"),
        ("worker-2.err", b":job_id:01000000\nSegmentation fault\n"),
        ("events/event_GCS.log", b"{}"),
        ("dashboard_agent.log", b"text"),
    ):
        (ray / name).parent.mkdir(parents=True, exist_ok=True)
        (ray / name).write_bytes(text)
    monkeypatch.setattr(session.own_node, "session_logs", lambda: ray)
    monkeypatch.setitem(session.sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    own = session.Session(None, False)
    monkeypatch.setitem(session.sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    for failed, kept in ((False, []), (True, ["raylet.out", "worker-2.err"])):
        (logs / "train-1").mkdir(parents=True)
        for name, text in (("rank_0.log", "text"), ("rank_1.log", ""), ("place_0.json", "{}"), ("workers.jsonl", "{}")):
            (logs / name).write_text(text)
        own.keep_logs(logs, failed)
        assert sorted(path.name for path in logs.glob("ray/*")) == kept
        assert {path.name for path in logs.iterdir()} - {"ray"} == {"rank_0.log", "workers.jsonl"}
    text = (logs / "ray" / "raylet.out").read_bytes()
    assert len(text) < (1 << 20) + 100 and text.endswith(b"the node ran out of memory\n")


def test_a_node_that_lives_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ray._private import services

    asked: list[tuple[Any, ...]] = []

    def late(*arguments: Any) -> str:
        asked.append(arguments)
        if len(asked) % 3:
            raise RuntimeError("no such node yet")
        return "there"

    monkeypatch.setattr(services, "get_node", late)
    raylet = tmp_path / "raylet"
    shutil.copyfile(shutil.which("sleep") or "", raylet)
    raylet.chmod(0o755)
    with subprocess.Popen([raylet, "60"]) as process:
        with own_node.patient_start():
            assert services.get_node("address", "id") == "there" and asked == 3 * [("address", "id")]
        monkeypatch.setattr(own_node, "START_SECONDS", 0)
        with own_node.patient_start(), pytest.raises(RuntimeError, match="no such node yet"):
            services.get_node("address", "id")
        process.kill()
    monkeypatch.setattr(own_node, "START_SECONDS", 60)
    with own_node.patient_start(), pytest.raises(ConnectionError, match=r"^Ray's node ended while it started$"):
        services.get_node("address", "id")
    assert services.get_node is late


@pytest.mark.parametrize("first", ["import ray", ""])
def test_token_is_used_where_the_experiment_file_has_imported_ray(first: str) -> None:
    code = f"""
        {first}
        from types import SimpleNamespace
        from raytrain.driver import session

        def connect(*_):
            from ray import _raylet
            print(_raylet.get_authentication_mode() == _raylet.AuthenticationMode.TOKEN)

        session._knock = lambda address: None
        session.Session._cluster = SimpleNamespace(connect=connect)
        session.Session("127.0.0.1:1", verbose=False)
    """
    environment = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"}
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment | {"RAY_AUTH_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert said.stdout == "True\n", said.stderr


@pytest.mark.parametrize(("wish", "connects"), [(None, False), ("1", True)])
def test_ray_of_a_notebook_that_has_ended_joins_no_other(
    monkeypatch: pytest.MonkeyPatch, wish: str | None, connects: bool
) -> None:
    from ray._private import auto_init_hook

    monkeypatch.setattr(auto_init_hook, "enable_auto_connect", True)  # as where `import ray` came first
    monkeypatch.setitem(os.environ, "RAY_ENABLE_AUTO_CONNECT", wish or "")
    if wish is None:
        del os.environ["RAY_ENABLE_AUTO_CONNECT"]
    session._settle()
    assert auto_init_hook.enable_auto_connect is connects


def test_busy_machine_on_which_ray_does_not_start_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def late(**_: Any) -> None:
        raise Exception("The current node timed out during startup. This could happen because some of the raylet ...")

    monkeypatch.setattr("ray.init", late)
    with pytest.raises(TimeoutError, match="Ray did not start in time; wait until other processes need fewer CPUs"):
        ray_cluster.start_here({}, verbose=False)
    try:
        ray_cluster.start_here({}, verbose=False)
    except TimeoutError:
        keep_traceback(tmp_path)
    assert "timed out during startup" in (tmp_path / "logs" / "driver.log").read_text(), "the line names this folder"


@pytest.mark.parametrize(("there", "patch"), [("9.9.1", False), (f"3.{sys.version_info.minor}.99", True)])
def test_another_python_there_is_named(monkeypatch: pytest.MonkeyPatch, there: str, patch: bool) -> None:
    from ray._private.utils import check_version_info

    def init(**_: Any) -> None:
        check_version_info({"ray_version": ray_cluster.ray.__version__, "python_version": there}, "127.0.0.1:1")

    monkeypatch.setattr(ray_cluster.ray, "init", init)
    here = ".".join(map(str, sys.version_info[:3]))
    with pytest.raises(
        errors.UserError, match=f"the cluster has Python {there} and this machine {here}, .*"
    ) as refused:
        ray_cluster.connect("127.0.0.1:1", verbose=False)
    assert ("RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL=minor" in str(refused.value)) == patch


def test_a_node_that_dies_while_it_is_asked_for_a_file_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The head takes a node for alive until it has missed some of its heartbeats."""
    nodes = [{"NodeID": name, "NodeManagerHostname": name, "Alive": name != "d"} for name in "abcd"]
    says: dict[str, Any] = {"b": TaskUnschedulableError("the node is gone"), "c": True}

    def get(asked: str) -> bool:
        if isinstance(says[asked], Exception):
            raise says[asked]
        return says[asked]

    here = SimpleNamespace(get_node_id=lambda: "a")
    known = SimpleNamespace(nodes=lambda: nodes, get=get, get_runtime_context=lambda: here)
    monkeypatch.setattr(ray_cluster, "ray", known)
    monkeypatch.setattr(ray_cluster, "ask", lambda node, *_, **__: node["NodeID"])
    ray_cluster.check_shared(tmp_path / "f")
    says["c"] = False
    with pytest.raises(errors.UserError, match="the nodes c do not see it"):
        ray_cluster.check_shared(tmp_path / "f")
    says["c"] = WorkerCrashedError()
    with pytest.raises(WorkerCrashedError):
        ray_cluster.check_shared(tmp_path / "f")
