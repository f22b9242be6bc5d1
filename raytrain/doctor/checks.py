"""The checks: each is a pure function of the survey, and each warning and failure has a remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from raytrain import errors
from raytrain.doctor.facts import Facts
from raytrain.files import size

_OLDEST_PYTHON = (3, 11)
_GIB = 2**30
_OBJECT_STORE = 0.3
"""Share of a machine's memory that Ray takes for its object store, which is in /dev/shm if that is large enough."""
_SPILLS_BELOW = 0.05
"""Share of a disk that must be free for Ray to spill objects to it."""
_FREE_GPU = 0.9
_DESCRIPTORS = 8192
"""What Ray recommends."""
_SKEW_SECONDS = (1.0, 60.0)
"""Seconds of difference between clocks for a warning and for a failure: the clocks tell which rank failed first, and
storage refuses requests with a wrong time."""

Level = Literal["ok", "warning", "failure"]


@dataclass(frozen=True)
class Verdict:
    """The result of a check on one machine. `remedy` is empty if all is well."""

    level: Level
    what: str
    remedy: str = ""


@dataclass(frozen=True)
class Finding:
    """The result of a check, and its machine."""

    check: str
    machine: str
    level: Level
    what: str
    remedy: str


@dataclass(frozen=True)
class Survey:
    """The facts of this machine and of the cluster's nodes.

    Attributes:
        here: this machine, where the command runs.
        nodes: the nodes of the cluster; one of them is this machine as Ray's processes see it.
        silent: nodes that gave no answer, and why.
        address: the cluster's, if one was asked.
        out: the folder or URL for runs.
        free_cpus: the cluster's CPUs that nobody has taken.
        exposed: whether a node listens on more than the loopback.
        least_nodes: how many nodes the file of `ray up` asks for, the head included; 0 where that is not known.
        refused: why Ray would not be started on this machine, and what helps; asked where no cluster is.
    """

    here: Facts
    nodes: tuple[Facts, ...] = ()
    silent: tuple[tuple[str, str], ...] = ()
    address: str | None = None
    out: str = "runs"
    free_cpus: float | None = None
    exposed: bool = False
    least_nodes: int = 0
    refused: tuple[str, str] | None = None

    @property
    def apart(self) -> bool:
        """Whether the nodes have more than one address, so that they do not meet on the loopback."""
        return len({node.address for node in self.nodes}) > 1


def findings(survey: Survey) -> list[Finding]:
    """Return the results of all checks on all machines."""
    found = []
    for check in CHECKS:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        for machine in (survey.here, *survey.nodes):
            verdict = check(machine, survey)
            if verdict is not None:
                found.append(Finding(name, machine.name, verdict.level, verdict.what, verdict.remedy))
    remedy = "look into its raylet's log in /tmp/ray/session_latest/logs, or start Ray there again"
    return [*found, *(Finding("node", name, "failure", f"no answer: {why}", remedy) for name, why in survey.silent)]


def check_python(machine: Facts, survey: Survey) -> Verdict:
    """New enough, and the same everywhere."""
    ours, theirs = survey.here.python.split("."), machine.python.split(".")
    if (int(theirs[0]), int(theirs[1])) < _OLDEST_PYTHON:
        return Verdict("failure", f"{machine.python}, and raytrain needs 3.11", "install a newer Python")
    if theirs != ours:
        level = "failure" if theirs[:2] != ours[:2] else "warning"
        return Verdict(level, f"{machine.python}, and {survey.here.python} here", "install one Python on all nodes")
    return Verdict("ok", machine.python)


def check_packages(machine: Facts, survey: Survey) -> Verdict:
    """torch, ray and raytrain are there, and the same everywhere."""
    names = ("torch", "ray", "raytrain")
    missing = [name for name in names if getattr(machine, name) is None]
    if missing:
        return Verdict(
            "failure", f"{', '.join(missing)} cannot be imported", "install the locked packages there: `make setup`"
        )
    other = [name for name in names if getattr(machine, name) != getattr(survey.here, name)]
    if other:
        what = "; ".join(f"{name} {getattr(machine, name)}, and {getattr(survey.here, name)} here" for name in other)
        return Verdict("failure", what, "install the same source and lock file on all nodes: `make setup`")
    return Verdict("ok", ", ".join(f"{name} {getattr(machine, name)}" for name in names))


def check_gpu(machine: Facts, survey: Survey) -> Verdict:
    """The driver lists the GPUs, torch and Ray see them, and their memory is free."""
    if machine.gpu_error:
        what = f"there are GPUs, and the driver does not list them: {machine.gpu_error}"
        return Verdict("failure", what, "repair the driver until `nvidia-smi` lists them")
    if not machine.gpus:
        return Verdict("ok", "none")
    cuda, seen = machine.cuda or (None, 0)
    kinds = ", ".join(dict.fromkeys(f"{gpu.name} of {size(gpu.memory)}" for gpu in machine.gpus))
    driver, count = machine.gpus[0].driver, len(machine.gpus)
    if cuda is None:
        what = f"{count} x {kinds}, and this torch is built without CUDA, or cannot be imported"
        return Verdict("failure", what, "install the locked packages: `make setup`")
    if not seen:
        what = f"{count} x {kinds}, and torch's CUDA {cuda} cannot use them with driver {driver}"
        return Verdict("failure", what, f"install a driver for CUDA {cuda}, or look at CUDA_VISIBLE_DEVICES")
    if machine.declared is not None and machine.declared[1] < seen:
        what = f"torch sees {seen} GPUs and Ray counts {machine.declared[1]:g}"
        return Verdict("warning", what, f"start Ray there with `ray start --num-gpus {seen}`")
    taken = [number for number, gpu in enumerate(machine.gpus) if gpu.free < _FREE_GPU * gpu.memory]
    if taken:
        free = ", ".join(f"GPU {n} has {size(machine.gpus[n].free)} free" for n in taken)
        return Verdict("warning", f"{kinds}: {free}", "end what else computes there (`nvidia-smi` lists it)")
    return Verdict("ok", f"{count} x {kinds}, driver {driver}, CUDA {cuda}")


def check_network(machine: Facts, survey: Survey) -> Verdict:
    """The interface that gloo takes, and NCCL where there are GPUs, is one that the other nodes reach."""
    interface, address = machine.gloo
    name = interface or address
    if not address:
        what = f"GLOO_SOCKET_IFNAME is {interface}, and no such interface has an address"
        return Verdict("failure", what, "set it to one that `ip -brief address` lists, or unset it")
    if survey.apart and address.startswith(("127.", "::1")):
        what = f"gloo would take the loopback ({address}), where other nodes cannot reach it"
        remedy = "let the host's name stand for its address in /etc/hosts, or set GLOO_SOCKET_IFNAME before `ray start`"
        return Verdict("failure", what, remedy)
    if machine.gpus and survey.apart and not any(not name.startswith("lo") for name in machine.nccl):
        what = f"NCCL would take {', '.join(machine.nccl) or 'no interface'}, where other nodes cannot reach it"
        return Verdict("failure", what, "set NCCL_SOCKET_IFNAME to the nodes' own interface before `ray start`")
    text = f"gloo takes {name}" + (f" ({address})" if interface else "")
    return Verdict("ok", text + (f", NCCL {', '.join(machine.nccl)}" if machine.gpus else ""))


def check_reachable(machine: Facts, survey: Survey) -> Verdict | None:
    """The head and the other nodes answer."""
    if survey.address is None or machine is survey.here:  # the head is connected, or there would be no survey
        return None
    if machine.unreachable:
        what = f"nothing answers from there at {errors.listed(machine.unreachable, 4)}"
        return Verdict("failure", what, "open all ports between the nodes, and to nothing else")
    return Verdict("ok", "the head and all other nodes")


def check_storage(machine: Facts, survey: Survey) -> Verdict:
    """--out can be written and has room; what one machine writes there, the others read."""
    remedy = "give --out DIR, a folder on storage that all nodes have under one path, or a URL such as s3://bucket/runs"
    if machine.written:
        if machine is survey.here:
            return Verdict("failure", f"{survey.out} cannot be written: {machine.written}", "give a writable --out DIR")
        return Verdict("failure", f"{survey.out} cannot be written there: {machine.written}", remedy)
    if machine.read:
        return Verdict("failure", f"what is written here to {survey.out} is not read there: {machine.read}", remedy)
    if machine.seen:
        return Verdict("failure", f"what is written there to {survey.out} is not read here: {machine.seen}", remedy)
    shared = "" if machine is survey.here else ", shared with this machine"
    if machine.out_free is None:
        return Verdict("ok", f"{survey.out} is written and read{shared}")
    if machine.out_free < _GIB:
        what = f"{survey.out} has {size(machine.out_free)} free"
        return Verdict("warning", what, "make room, or give another --out DIR")
    return Verdict("ok", f"{survey.out} has {size(machine.out_free)} free{shared}")


def check_tmp(machine: Facts, survey: Survey) -> Verdict:
    """/tmp, where Ray keeps its logs and spills objects, has room."""
    free, total = machine.temporary
    if free < _GIB:
        return Verdict("failure", f"{size(free)} free, for Ray's logs and objects", "make room in /tmp")
    if free < _SPILLS_BELOW * total:
        return Verdict("warning", f"{size(free)} free, too full a disk for Ray to spill to", "make room in /tmp")
    return Verdict("ok", f"{size(free)} free")


def check_shared_memory(machine: Facts, survey: Survey) -> Verdict:
    """/dev/shm holds Ray's object store, and the gradients of workers on CPUs."""
    wanted = _OBJECT_STORE * machine.memory
    remedy = "enlarge /dev/shm: `docker run --shm-size 30%`, in Kubernetes an emptyDir of medium Memory".replace(
        "30%", f"{wanted / _GIB:.0f}g"
    )
    if not machine.shared_memory:
        return Verdict("failure", "there is no /dev/shm", remedy)
    if machine.shared_memory < wanted:
        what = f"{size(machine.shared_memory)}, and Ray would take {size(int(wanted))}; it goes to the disk instead"
        return Verdict("warning", what, remedy)
    return Verdict("ok", size(machine.shared_memory))


def check_clock(machine: Facts, survey: Survey) -> Verdict | None:
    """The clocks of nodes agree with this one, as far as the way there and back lets that be known."""
    if machine.skew is None:
        return None
    skew, uncertain = machine.skew
    least, text = abs(skew) - uncertain, f"{abs(skew):,.1f} s {'ahead' if skew > 0 else 'behind'}"
    if least > _SKEW_SECONDS[0]:
        level = "failure" if least > _SKEW_SECONDS[1] else "warning"
        return Verdict(level, f"{text}, known to {uncertain:.2g} s", "let chrony or systemd-timesyncd set the clock")
    return Verdict("ok", f"within {abs(skew) + uncertain:.1g} s of this machine's")


def check_token(machine: Facts, survey: Survey) -> Verdict:
    """A cluster that listens beyond the loopback asks for a token, which only its owner can read."""
    mode, (auth, given) = machine.token_mode, machine.auth_mode
    if mode is not None and mode & 0o077:
        what = f"others may read {machine.token_file} (mode {mode:04o})"
        return Verdict("failure", what, f"`chmod 600 {machine.token_file}`")
    if survey.exposed and auth != "token" and machine is not survey.here:
        what = "Ray asks for no token there, so anyone who reaches its ports can run code"
        remedy = "`ray get-auth-token --generate`, the same file on all nodes, RAY_AUTH_MODE=token before `ray start`"
        return Verdict("failure", what, remedy)
    if auth == "token" and mode is None and not given:
        what = f"RAY_AUTH_MODE is token, and there is no {machine.token_file}"
        return Verdict("failure", what, "copy the head's file there, with mode 0600")
    if mode is None:
        none = "none here" if survey.exposed else "none, and nothing listens beyond the loopback"
        return Verdict("ok", "in RAY_AUTH_TOKEN" if given else none)
    return Verdict("ok", f"{machine.token_file}, mode {mode:04o}")


def check_nodes(machine: Facts, survey: Survey) -> Verdict | None:
    """All nodes that the file of `ray up` asks for have joined: `ray up` ends with 0 before they do."""
    if machine is not survey.here or not survey.least_nodes:
        return None
    there = len(survey.nodes) + len(survey.silent)
    if there < survey.least_nodes:
        what = f"{there} of {survey.least_nodes} nodes are there that the cluster's file asks for"
        remedy = "start it with `raytrain cluster up FILE`; `ray status` says what became of the others"
        return Verdict("warning", what, remedy)
    return Verdict("ok", f"{there}, and the cluster's file asks for {survey.least_nodes}")


def check_jobs(machine: Facts, survey: Survey) -> Verdict | None:
    """The head's dashboard agent takes jobs: it lives on without its port where another process has that."""
    if machine.job_port is None:
        return None
    if machine.job_port <= 0:
        what = "the head's dashboard agent could not open its port, and `raytrain submit` is refused"
        remedy = (
            "free the port (52365 by default; `ss -ltnp` names who has it), or give another one by `ray start --head "
            "--dashboard-agent-listen-port PORT`; then start Ray there again"
        )
        return Verdict("warning", what, remedy)
    return Verdict("ok", f"taken at port {machine.job_port}")


def check_cpus(machine: Facts, survey: Survey) -> Verdict:
    """Ray Data has a CPU besides the workers."""
    if survey.free_cpus is not None and machine is survey.here and survey.free_cpus < 1:
        what = f"{survey.free_cpus:g} CPUs of the cluster are free: workers and Ray Data would wait"
        return Verdict("warning", what, "wait for what runs there (`ray status`), or add nodes")
    if machine.declared is None:
        if machine.cpus < 2 and not survey.nodes:
            return Verdict("warning", "1 CPU, which a worker and Ray Data share", "give the container two CPUs or more")
        return Verdict("ok", f"{machine.cpus}")
    if sum((node.declared or (0, 0))[0] for node in survey.nodes) < 2:
        what = f"Ray counts {machine.declared[0]:g}, and no node has one left for Ray Data"
        return Verdict("warning", what, "start Ray with --num-cpus 2 or more, or add nodes")
    return Verdict("ok", f"Ray counts {machine.declared[0]:g} of {machine.cpus}")


def check_uv_run(machine: Facts, survey: Survey) -> Verdict | None:
    """Ray does not make a new environment on each node, as it does below `uv run`."""
    under, hook = machine.uv_run
    if machine is not survey.here:
        return None
    if under and hook not in ("", "0"):
        what = f"below `uv run` with RAY_ENABLE_UV_RUN_RUNTIME_ENV={hook}, each worker gets an environment made anew"
        return Verdict("warning", what, "unset RAY_ENABLE_UV_RUN_RUNTIME_ENV, or call .venv/bin/raytrain")
    return Verdict("ok", "raytrain keeps Ray from using it" if under else "not used")


def check_open_files(machine: Facts, survey: Survey) -> Verdict:
    """As many files may be open as Ray recommends; Ray raises the soft limit itself."""
    if 0 <= machine.descriptors < _DESCRIPTORS:
        what = f"at most {machine.descriptors}, and Ray recommends {_DESCRIPTORS}"
        return Verdict("warning", what, f"`ulimit -n {_DESCRIPTORS}` before Ray starts, or LimitNOFILE of its service")
    return Verdict("ok", "no limit" if machine.descriptors < 0 else f"{machine.descriptors:,}")


def check_limits(machine: Facts, survey: Survey) -> Verdict | None:
    """The system allows this user what Ray needs: `train` refuses to start where it does not."""
    if survey.address:
        return None
    return Verdict("failure", *survey.refused) if survey.refused else Verdict("ok", "none that Ray meets")


CHECKS: tuple[Callable[[Facts, Survey], Verdict | None], ...] = (
    check_python,
    check_packages,
    check_gpu,
    check_network,
    check_reachable,
    check_storage,
    check_tmp,
    check_shared_memory,
    check_clock,
    check_token,
    check_nodes,
    check_jobs,
    check_cpus,
    check_uv_run,
    check_open_files,
    check_limits,
)
"""All checks, in the order in which they are shown."""
