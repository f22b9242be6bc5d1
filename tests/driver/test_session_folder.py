"""The folder of a Ray session that raytrain starts: gone with the session, and after a SIGKILL with the next one."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from raytrain.driver import session, session_folder
from raytrain.driver.session_folder import SessionFolder, is_local, remove_dead

_DRIVER = """
import sys, time
from pathlib import Path
from raytrain.driver.session_folder import SessionFolder
folder = SessionFolder(Path(sys.argv[1]))
spilled = folder.path / "session_1" / "ray_spilled_objects_1"
spilled.mkdir(parents=True)
(spilled / "object").write_bytes(bytes(1 << 20))
(folder.path / "session_latest").symlink_to(folder.path / "session_1")
print(folder.path, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run on a file system that is not in the list."""
    monkeypatch.setattr(session_folder, "is_local", lambda _: True)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has a session folder below `tmp_path`, and the folder."""
    process = subprocess.Popen([sys.executable, "-c", _DRIVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process, Path(process.stdout.readline().strip())
    process.kill()
    process.communicate()


def killed(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(30)


def test_a_folder_goes_with_its_session(tmp_path: Path) -> None:
    folder = SessionFolder(tmp_path / "parent")
    assert re.fullmatch(r"ray-[a-z0-9]{4}", folder.path.name) and folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "session_1" / "logs").mkdir(parents=True)
    (folder.path / "session_1" / "logs" / "raylet.out").write_text("text")
    folder.remove()
    assert list((tmp_path / "parent").iterdir()) == []


def test_session_folders_of_dead_processes_are_removed(
    driver: tuple[subprocess.Popen[str], Path], tmp_path: Path
) -> None:
    process, folder = driver
    remove_dead(tmp_path)
    assert (folder / "session_1" / "ray_spilled_objects_1" / "object").stat().st_size == 1 << 20
    killed(process)
    remove_dead(tmp_path)
    assert not folder.exists()


@pytest.mark.parametrize("how", ["open file", "working directory", "command line"])
def test_session_folder_stays_while_a_process_uses_it(
    driver: tuple[subprocess.Popen[str], Path], tmp_path: Path, how: str
) -> None:
    process, folder = driver
    killed(process)
    inside = folder / "session_1"
    with open(inside / "agent.log", "w") as log:
        agent = subprocess.Popen(
            [sys.executable, "-c", "input()", f"--dir={inside}" if how == "command line" else ""],
            stdin=subprocess.PIPE,
            stdout=log if how == "open file" else None,
            cwd=inside if how == "working directory" else None,
        )
    remove_dead(tmp_path)
    stayed = (inside / "agent.log").is_file()
    agent.kill()
    agent.communicate()
    remove_dead(tmp_path)
    assert stayed and not folder.exists()


def test_what_raytrain_did_not_make_stays(
    driver: tuple[subprocess.Popen[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, folder = driver
    killed(process)
    (tmp_path / "ray-abcd" / "session_2026-11-23_04-30-41_782794_1").mkdir(parents=True)  # without a mark
    (tmp_path / "ray" / "session_2026-11-23_04-30-41_782794_2").mkdir(parents=True)
    (tmp_path / "ray-file").write_text("text")
    linked = tmp_path / "elsewhere"
    linked.mkdir()
    (linked / "raytrain.lock").write_text("")
    (tmp_path / "ray-link").symlink_to(linked)
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    remove_dead(tmp_path)
    assert folder.is_dir(), "another user's"
    monkeypatch.undo()
    monkeypatch.setattr(session_folder, "is_local", lambda _: False)
    remove_dead(tmp_path)
    assert folder.is_dir(), "on storage that other machines may write to"
    monkeypatch.setattr(session_folder, "is_local", lambda _: True)
    remove_dead(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"ray-abcd", "ray", "ray-file", "ray-link", "elsewhere"}
    assert (linked / "raytrain.lock").is_file() and list((tmp_path / "ray-abcd").iterdir())


def test_a_mark_is_never_seen_without_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that starts while another one makes its folder must not take that for a dead one's."""
    taken: list[bool] = []
    rename = os.rename

    def look(source: Path, target: Path) -> None:
        remove_dead(tmp_path)
        rename(source, target)
        with open(target) as mark, pytest.raises(BlockingIOError):
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_dead(tmp_path)
        taken.append(True)

    monkeypatch.setattr(os, "rename", look)
    folder = SessionFolder(tmp_path)
    assert taken and folder.path.is_dir()
    folder.remove()


def test_what_a_kill_left_half_removed_is_removed_later(
    driver: tuple[subprocess.Popen[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, folder = driver
    killed(process)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *_, **__: None)  # as if nothing could be removed
        remove_dead(tmp_path)
    assert (folder / "raytrain.lock").is_file() and (folder / "session_1").is_dir()
    remove_dead(tmp_path)
    assert not folder.exists()


def test_concurrent_clean_ups_do_not_disturb_each_other(tmp_path: Path) -> None:
    dead = []
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", _DRIVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        dead.append(Path(process.stdout.readline().strip()))
        killed(process)
        process.stdout.close()
    living = SessionFolder(tmp_path)
    (living.path / "session_1").mkdir()
    threads = [threading.Thread(target=remove_dead, args=(tmp_path,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    remove_dead(tmp_path)
    assert [path for path in dead if path.exists()] == [] and (living.path / "session_1").is_dir()
    living.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/tmp/raytrain-0", True),
        ("/scratch/a", False),
        ("/scratch/local disk/a", True),
        ("/scratchy", True),
        ("/over/a", False),  # the later mount hides the earlier one
    ],
)
def test_only_file_systems_of_one_machine_are_cleaned(path: str, local: bool) -> None:
    mounts = """1 0 8:1 / / rw - ext4 /dev/sda1 rw
2 1 0:44 / /scratch rw,relatime shared:1 - nfs4 server:/a rw
3 2 8:2 / /scratch/local\\040disk rw - xfs /dev/sdb rw
4 1 8:3 / /over rw - xfs /dev/sdc rw
5 4 0:45 / /over rw - fuse.sshfs host:/ rw
"""
    assert is_local(Path(path), mounts) == local
    assert not is_local(Path(path), "")


def test_a_session_gives_ray_folders_of_its_own_and_removes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where objects are spilled elsewhere, and where Ray does not start."""
    ray = tmp_path / "ray"
    spilled = tmp_path / "spilled"
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(ray))
    monkeypatch.setenv("RAY_object_spilling_directory", str(spilled))
    monkeypatch.setattr(session.limits, "check", lambda: None)
    monkeypatch.setattr(session.limits, "give_token", lambda: None)
    seen: list[dict[str, object]] = []

    class Refused(Exception):
        pass

    def init(**options: object) -> None:
        seen.append(options)
        for name in ("_temp_dir", "object_spilling_directory"):
            assert (Path(str(options[name])) / "raytrain.lock").is_file()
        raise Refused

    import ray as module

    monkeypatch.setattr(module, "init", init)
    monkeypatch.setattr(module, "shutdown", lambda: None)
    with pytest.raises(Refused), session.Session(None, False) as own:
        own.start()
    assert Path(str(seen[0]["_temp_dir"])).parent == ray
    assert Path(str(seen[0]["object_spilling_directory"])).parent == spilled
    assert list(ray.iterdir()) == [] == list(spilled.iterdir())
