"""Hosts on one machine, as namespaces: each has its own network, processes, mounts, name, /tmp, /dev/shm and home, and
an sshd; a bridge joins them, and a folder is shared by all. One more, the launcher, is where a user would sit.

What a host has of this machine is the system's files, the virtual environment (read-only, at its own path: what
`make setup` would have made there) and nothing else. `sshd` is the first process of a host: it reaps the others, and
ends them with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
SHARED = "/mnt/shared"
"""Where the hosts see the shared folder."""
LAUNCHER = "launcher"
_NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")
_NEEDED = ("sshd", "ssh", "ssh-keygen", "rsync", "ip", "tc", "nft", "unshare", "nsenter", "setpriv", "make")
_LEFT_OUT = (".git", ".venv", "runs", "data", "shared", "build", "dist")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROJECT = "/root/raytrain"
_SSHD = """
HostKey /run/keep/files/key
AuthorizedKeysFile /run/keep/files/key.pub
StrictModes no
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
UseDNS no
PidFile none
LogLevel ERROR
Subsystem sftp internal-sftp
"""
_BOOT = r"""
set -eu
mount --make-rprivate /
hostname "$NAME"
ip link set lo up
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd
keep() { mkdir -p "/run/keep/$1"; mount --bind "$2" "/run/keep/$1"; }
keep files "$FILES"; keep venv "$VENV"; keep python "$PYTHON"; keep shared "$SHARE"; keep home "$HOME_OF_ROOT"
[ -z "$PROJECT" ] || keep project "$PROJECT"
for file in hosts nsswitch.conf resolv.conf shadow; do mount --bind "/run/keep/files/$file" "/etc/$file"; done
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /mnt
mount --bind "/run/keep/home" /root
mount -t tmpfs -o mode=1777 tmpfs /tmp
put() { mkdir -p "$2"; mount --bind "/run/keep/$1" "$2"; }
put python "$PYTHON"; mount -o remount,bind,ro "$PYTHON"
put venv "$VENV"; mount -o remount,bind,ro "$VENV"
mount --bind /run/keep/files/editable.pth "$EDITABLE"
put shared /mnt/shared
cp -rnT /etc/skel /root
if [ -n "$PROJECT" ]; then
  put project /root/raytrain
  install -D -m 600 /run/keep/files/key /root/.ssh/id_ed25519
fi
put venv /root/raytrain/.venv; mount -o remount,bind,ro /root/raytrain/.venv
mount --bind /run/keep/files/editable.pth "/root/raytrain/.venv/${EDITABLE#"$VENV"/}"
cd /
echo ready
exec 1>&2
exec env -i PATH="$PATH" "$(command -v sshd)" -D -e -f /run/keep/files/sshd_config
"""


def why_not() -> str | None:
    """Why hosts cannot be made here, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "hosts are namespaces, which take root on Linux"
    if missing := [name for name in _NEEDED if shutil.which(name) is None]:
        return f"hosts need {', '.join(missing)}: install openssh-server, nftables, rsync and iproute2"
    if not (Path(sys.prefix) / ".ready").exists():
        return f"hosts share the environment that `make setup` makes, and {sys.prefix} is none"
    code = "ip link add name b type bridge && ip link add name x type veth peer name y && tc qdisc add dev x " + (
        "root tbf rate 1mbit burst 32kb latency 50ms && mount --make-rprivate / && mount -t tmpfs tmpfs /mnt"
    )
    tried = subprocess.run(
        ["unshare", *_NAMESPACES, "--fork", "sh", "-c", code], capture_output=True, text=True, check=False
    )
    return f"namespaces cannot be made here: {tried.stderr.strip()}" if tried.returncode else None


class Hosts(contextlib.AbstractContextManager["Hosts"]):
    """Hosts `head`, `worker1`, ..., and the launcher, which has the project in ~/raytrain.

    Args:
        folder: where to keep their keys and files, the launcher's copy of the project, and the shared folder.
        count: how many, the launcher not counted.
    """

    def __init__(self, folder: Path, count: int = 3):
        self.names = ["head", *(f"worker{number}" for number in range(1, count))]
        self.addresses = {LAUNCHER: "10.77.0.1"}
        self.addresses |= {name: f"10.77.0.{number}" for number, name in enumerate(self.names, 10)}
        self.shared, self._files, self.project = folder / "shared", folder / "files", folder / "project"
        self._homes = folder / "homes"
        self._first: dict[str, subprocess.Popen[Any]] = {}
        self._pids: dict[str, int] = {}
        try:
            self._write()
            self._start(LAUNCHER)
            self._on(LAUNCHER, "ip link add name bridge type bridge; ip address add 10.77.0.1/24 dev bridge")
            self._on(LAUNCHER, "ip link set bridge up")
            for name in self.names:
                self.start(name)
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all hosts, and with them all that runs on them; their networks and mounts go with their last process."""
        for name in list(self._first):
            self._end(name)

    def run(self, name: str, command: str, timeout: float = 300, check: bool = True) -> str:
        """What a shell command prints on a host, with ~/raytrain/.venv/bin on its PATH, in ~/raytrain.

        Raises:
            AssertionError: it failed, with what it printed.
            subprocess.TimeoutExpired: it took longer than `timeout` seconds.
        """
        with self.popen(name, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            try:
                said = process.communicate(timeout=timeout)[0]
            except BaseException:
                process.kill()
                raise
        assert process.returncode == 0 or not check, f"on {name}: {command}\nended with {process.returncode}:\n{said}"
        return said

    def popen(self, name: str, command: str, **named: Any) -> subprocess.Popen[Any]:
        """Starts a shell command on a host."""
        home = {"HOME": "/root", "USER": "root", "LANG": "C.UTF-8", "TERM": "dumb", "SHELL": "/bin/bash"}
        home["PATH"] = f"{_PROJECT}/.venv/bin:{_PATH}"
        inside = ["bash", "-c", f"cd {_PROJECT} && {command}"]
        return subprocess.Popen([*self._enter(name), *inside], env=home, stdin=subprocess.DEVNULL, **named)

    def start(self, name: str) -> None:
        """Starts a host, with the home that it had, and plugs it in."""
        self._start(name)
        address, pid = self.addresses[name], self._pids[name]
        enter = ["nsenter", "--target", str(self._pids[LAUNCHER]), "--net", "--"]
        card = f"02:00:0a:4d:00:{int(address.rpartition('.')[2]):02x}"  # the same one when it is started again
        veth = ["ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "address", card, "netns", str(pid)]
        subprocess.run([*enter, *veth], check=True)
        self._on(LAUNCHER, f"ip link set {name} master bridge up")
        self._on(name, f"ip address add {address}/24 dev eth0; ip link set eth0 up")
        self._on(name, "until ss -Hltn sport = 22 | grep -q .; do sleep 0.05; done")

    def kill(self, name: str) -> None:
        """Ends a host as a power cut does: nobody hears of it."""
        self._on(LAUNCHER, f"ip link delete {name}")  # with its network it would go later, and `start` adds it again
        self._end(name)

    def unplug(self, name: str) -> None:
        """Takes a host's link down."""
        self._on(LAUNCHER, f"ip link set {name} down")

    def plug_in(self, name: str) -> None:
        """Takes it up again."""
        self._on(LAUNCHER, f"ip link set {name} up")

    def slow_down(self, name: str, megabits: float | None) -> None:
        """Limits what goes to a host and comes from it, in Mbit/s each; None takes the limit away."""
        for host, device in ((LAUNCHER, name), (name, "eth0")):
            if megabits is None:
                self._on(host, f"tc qdisc del dev {device} root")
            else:
                self._on(host, f"tc qdisc add dev {device} root tbf rate {megabits}mbit burst 64kb latency 400ms")

    def processes(self, name: str) -> list[str]:
        """The command lines of all that runs on a host but its sshd."""
        listed = self.run(name, "ps -eo pid=,args=").splitlines()
        lines = [line.strip().partition(" ")[2].strip() for line in listed]
        return [line for line in lines if line and not line.startswith(("ps -eo", "bash -c cd", "sshd", "[sshd]"))]

    def listening(self, name: str) -> dict[int, str]:
        """The TCP ports on which a host listens to others, with the name of the process."""
        found = {}
        for line in self.run(name, "ss -Hltnp").splitlines():
            place, process = line.split()[3], line.partition('users:(("')[2].partition('"')[0]
            host, _, port = place.rpartition(":")
            if not host.startswith(("127.", "[::1]")):
                found[int(port)] = process
        return found

    def _write(self) -> None:
        for folder in (self.shared, self._files):
            folder.mkdir(parents=True)

        def left_out(folder: str, names: list[str]) -> list[str]:
            return [name for name in names if name == "__pycache__" or (Path(folder) == ROOT and name in _LEFT_OUT)]

        shutil.copytree(ROOT, self.project, ignore=left_out, symlinks=True)
        for file in ("requirements.lock", "pyproject.toml"):  # for `make`: the environment has been made from these
            os.utime(self.project / file, (0, 0))
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self._files / "key"], check=True)
        names = "".join(f"{address} {name}\n" for name, address in self.addresses.items())
        for file, text in {
            "hosts": f"127.0.0.1 localhost\n{names}",
            "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\n",
            "resolv.conf": "",
            "shadow": "root:*:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n",
            "sshd_config": _SSHD,
            "editable.pth": _PROJECT,
        }.items():
            (self._files / file).write_text(text)

    def _start(self, name: str) -> None:
        """Starts a host that is not plugged in."""
        (editable,) = Path(sys.prefix).glob("lib/python*/site-packages/_editable_impl_raytrain.pth")
        named = {"NAME": name, "FILES": self._files, "SHARE": self.shared, "VENV": sys.prefix, "EDITABLE": editable}
        home = self._homes / name
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        named |= {"HOME_OF_ROOT": home, "PYTHON": sys.base_prefix, "PROJECT": self.project if name == LAUNCHER else ""}
        environment = {"PATH": _PATH, **{key: str(value) for key, value in named.items()}}
        with open(self._files / f"{name}.log", "ab") as log:
            # Should this process be killed, so are they.
            command = ["setpriv", "--pdeathsig", "KILL", "unshare", *_NAMESPACES, "--fork", "--kill-child"]
            process = self._first[name] = subprocess.Popen(
                [*command, "--mount-proc", "bash", "-c", _BOOT],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready == "ready\n", (self._files / f"{name}.log").read_text()
        self._pids[name] = _child(process.pid)

    def _end(self, name: str) -> None:
        """Ends all of a host's processes, and waits for that."""
        process = self._first.pop(name)
        with contextlib.suppress(ProcessLookupError, KeyError):
            os.kill(self._pids.pop(name), 9)
        if name not in self._pids:
            process.kill()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()

    def _enter(self, name: str) -> list[str]:
        return ["nsenter", "--target", str(self._pids[name]), "--mount", "--uts", "--ipc", "--net", "--pid", "--"]

    def _on(self, name: str, command: str) -> None:
        done = subprocess.run([*self._enter(name), "sh", "-ec", command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"on {name}: {command}: {done.stderr}"


def _child(parent: int) -> int:
    """The process that another one has started."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for file in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                if int(file.read_text().rpartition(")")[2].split()[1]) == parent:
                    return int(file.parent.name)
    raise AssertionError(f"process {parent} has started none")
