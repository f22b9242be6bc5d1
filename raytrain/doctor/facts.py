"""The facts of one machine, gathered on it.

`gather` is sent to the nodes of a cluster by value, with the functions that it calls, since a node may lack raytrain.
So this module and what it imports need the standard library alone, and the result is JSON.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import platform
import resource
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raytrain.driver.credentials import token_file
from raytrain.driver.network import answers, gloo, interfaces, nccl, of_host_name
from raytrain.files import is_url
from raytrain.machine import host_cpus, host_memory

if TYPE_CHECKING:
    from raytrain.checkpoint.storage import Storage

_TORCH = """
import json, torch
print(json.dumps([torch.version.cuda, torch.cuda.device_count()]))
"""


@dataclass(frozen=True)
class Gpu:
    """A GPU by nvidia-smi. `memory` and `free` are in bytes."""

    name: str
    memory: int
    free: int
    driver: str


@dataclass(frozen=True)
class Facts:
    """The facts of one machine. Sizes are in bytes.

    Attributes:
        name: the machine, for people.
        address: its address in the cluster; of this machine without a cluster, empty.
        raytrain: the version and a hash of the source, since two clones may have one version.
        gpu_error: why there is no list of GPUs, although the machine has the device files of some.
        cuda: the CUDA of torch, and how many GPUs torch sees; asked only where there are GPUs.
        gloo: the interface and the address that gloo would take.
        nccl: the interfaces that NCCL would take.
        temporary: what is free on the disk of /tmp, and its size.
        shared_memory: the size of /dev/shm; 0 where there is none.
        out_free: what is free on the disk of `--out`; None for a URL, and where the folder is not there.
        written, read: why the probe could not be written to `--out`, and that of this machine not read there.
        token_mode: the permissions of the token's file; None where there is no such file.
        auth_mode: RAY_AUTH_MODE, and whether RAY_AUTH_TOKEN is set.
        uv_run: whether `uv run` started this process, and RAY_ENABLE_UV_RUN_RUNTIME_ENV.
        descriptors: the hard limit of open files, up to which Ray raises the soft one.
        unreachable: addresses of other nodes at which nothing answers from here.
        declared: the CPUs and GPUs that Ray counts on a node.
        skew: seconds by which the clock is ahead of the driver's, and the most that this measurement may be off.
        job_port: of the head, the port at which its dashboard agent takes jobs; -1 where the agent could not open it.
        seen: why the driver could not read what this node wrote to `--out`.
    """

    name: str
    address: str
    python: str
    torch: str | None
    ray: str | None
    raytrain: str | None
    cpus: int
    memory: int
    gpus: tuple[Gpu, ...]
    gpu_error: str | None
    cuda: tuple[str | None, int] | None
    gloo: tuple[str, str]
    nccl: tuple[str, ...]
    temporary: tuple[int, int]
    shared_memory: int
    out_free: int | None
    written: str | None
    read: str | None
    token_file: str
    token_mode: int | None
    auth_mode: tuple[str, bool]
    uv_run: tuple[bool, str]
    descriptors: int
    unreachable: tuple[str, ...]
    declared: tuple[float, float] | None = None
    skew: tuple[float, float] | None = None
    job_port: int | None = None
    seen: str | None = None

    @classmethod
    def of(cls, answer: dict[str, Any], **more: Any) -> Facts:
        """Return the facts from the result of `gather` and from the driver."""
        gpus = tuple(Gpu(**gpu) for gpu in answer["gpus"])
        lists = {name: tuple(value) for name, value in answer.items() if isinstance(value, list)}
        return cls(**{**answer, **lists, "gpus": gpus, **more})


def gather(
    out: str, own: str, other: str, name: str = "this machine", peers: Sequence[tuple[str, int]] = ()
) -> dict[str, Any]:
    """Return the facts of the machine that this runs on, as JSON's types.

    Args:
        out: the folder to look at, or a URL.
        own: the file to write there, which holds its name; `remove` takes it away.
        other: the file to read there, likewise.
        peers: hosts and ports that should answer.
    """
    found = interfaces()
    gpus, gpu_error = _gpus()
    written, read = probe(out, own, write=True), probe(out, other)
    shared = Path("/dev/shm")
    token = token_file()
    temporary = shutil.disk_usage("/tmp")
    return {
        "name": name,
        "address": "",
        "python": platform.python_version(),
        "torch": _version("torch"),
        "ray": _version("ray"),
        "raytrain": _source("raytrain"),
        "cpus": host_cpus(),
        "memory": host_memory(),
        "gpus": gpus,
        "gpu_error": gpu_error,
        "cuda": _cuda() if gpus else None,
        "gloo": gloo(found, os.environ.get("GLOO_SOCKET_IFNAME", ""), of_host_name()),
        "nccl": nccl(list(found), os.environ.get("NCCL_SOCKET_IFNAME", "")),
        "temporary": [temporary.free, temporary.total],
        "shared_memory": shutil.disk_usage(shared).total if shared.is_dir() else 0,
        "out_free": shutil.disk_usage(out).free if os.path.isdir(out) else None,
        "written": written,
        "read": read,
        "token_file": str(token),
        "token_mode": stat.S_IMODE(token.stat().st_mode) if token.is_file() else None,
        "auth_mode": [os.environ.get("RAY_AUTH_MODE", ""), "RAY_AUTH_TOKEN" in os.environ],
        "uv_run": [_under_uv(), os.environ.get("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "")],
        "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "unreachable": [f"{host}:{port}" for host, port in peers if not answers(host, port)],
    }


def probe(out: str, file: str, write: bool = False) -> str | None:
    """Write a file that holds its own name, or read one. Return why that failed, or None."""
    try:
        if is_url(out):
            if write:
                _storage(out).write(file, file.encode())
            return None if write or _storage(out).read(file) == file.encode() else "it has other contents"
        path = Path(out, file)
        if write:
            path.write_text(file)
            return None
        deadline = time.monotonic() + 2  # network file systems may show a new file a little later
        while not path.is_file() and time.monotonic() < deadline:
            time.sleep(0.1)
        return None if path.read_text() == file else "it has other contents"
    except Exception as error:  # any error of the file system is a finding
        return getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__


def _storage(out: str) -> Storage:
    from raytrain.checkpoint.storage import Storage  # by the node's own raytrain: these functions are sent by value

    return Storage(out)


def clock() -> float:
    """Return the time of the machine that this runs on, in seconds since 1970."""
    return time.time()


def remove(out: str, files: Sequence[str]) -> None:
    """Remove the files that were written."""
    with contextlib.suppress(Exception):
        if is_url(out):
            for file in files:
                _storage(out).remove(file)
        else:
            for file in files:
                Path(out, file).unlink(missing_ok=True)


def _gpus() -> tuple[list[dict[str, Any]], str | None]:
    """Return the GPUs, as Gpu's fields, and why nvidia-smi does not list GPUs that exist."""
    fields = "name,memory.total,memory.free,driver_version"
    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    there = any(Path("/dev").glob("nvidia[0-9]*"))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi: {error}" if there else None
    if done.returncode:
        return [], " ".join((done.stdout + done.stderr).split()) if there else None
    found = []
    for line in done.stdout.splitlines():
        name, *sizes, driver = (part.strip() for part in line.split(","))
        memory, free = (int(text) * 2**20 if text.isdigit() else 0 for text in sizes)  # [N/A] where it is split
        found.append({"name": name, "memory": memory, "free": free, "driver": driver})
    return found, None


def _cuda() -> list[Any]:
    """Return torch's version of CUDA and number of GPUs, from a separate process: Ray hides GPUs from a task without
    GPUs."""
    environment = {name: value for name, value in os.environ.items() if (name, value) != ("CUDA_VISIBLE_DEVICES", "")}
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        done = subprocess.run([sys.executable, "-c", _TORCH], capture_output=True, timeout=120, env=environment)
        return json.loads(done.stdout)
    return [None, 0]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _source(package: str) -> str | None:
    """Return the version of a package, and a hash of its source."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    root, digest = Path(spec.submodule_search_locations[0]), hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes() + b"\0")
    return f"{_version(package) or 'not installed'} (source {digest.hexdigest()[:8]})"


def _under_uv() -> bool:
    """Return whether an ancestor of this process is `uv run`, which Ray looks for in the same way."""
    pid = os.getpid()
    with contextlib.suppress(OSError, ValueError, IndexError):
        while pid > 1:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            if os.path.basename(command[0]) == "uv" and "run" in command:
                return True
    return False
