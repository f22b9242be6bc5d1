"""`raytrain doctor`: each check by facts made by hand, what is printed, and this machine."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.commands import fails

from raytrain import cli, doctor
from raytrain.doctor import CHECKS, Facts, Gpu, Survey, facts, findings
from raytrain.doctor.facts import gather, gloo, nccl, probe, remove
from raytrain.machine import host_cpus
from raytrain.report import doctor as report

GIB = 2**30
HERE = Facts(
    name="this machine",
    address="",
    python="3.12.4",
    torch="2.15.0",
    ray="2.60.0",
    raytrain="0.1.0 (source 0123abcd)",
    cpus=8,
    memory=64 * GIB,
    gpus=(),
    gpu_error=None,
    cuda=None,
    gloo=("eth0", "10.0.0.1"),
    nccl=("eth0",),
    temporary=(100 * GIB, 200 * GIB),
    shared_memory=32 * GIB,
    out_free=100 * GIB,
    written=None,
    read=None,
    token_file="/home/u/.ray/auth_token",
    token_mode=0o600,
    auth_mode=("token", False),
    uv_run=(False, ""),
    descriptors=65536,
    unreachable=(),
)
HEAD = replace(HERE, name="head", address="10.0.0.1", declared=(8.0, 0.0), skew=(0.001, 0.002))
NODE = replace(HEAD, name="node", address="10.0.0.2", gloo=("eth0", "10.0.0.2"))
GPUS = {"gpus": (Gpu("H100", 80 * GIB, 79 * GIB, "580.1"),) * 2, "cuda": ("13.0", 2), "declared": (8.0, 2.0)}
CLUSTER = Survey(HERE, (HEAD, NODE), (), "10.0.0.1:6379", "/shared/runs", 16.0, exposed=True)

DEFECTS: list[tuple[str, dict[str, Any], dict[str, Any], str, str, str]] = [
    # check, what the node has, what the cluster has, level, what is said, the remedy
    ("python", {"python": "3.10.9"}, {}, "failure", "3.10.9, and raytrain needs 3.11", "newer Python"),
    ("python", {"python": "3.13.4"}, {}, "failure", "3.13.4, and 3.12.4 here", "one Python on all"),
    ("python", {"python": "3.12.9"}, {}, "warning", "3.12.9, and 3.12.4 here", "one Python on all"),
    ("packages", {"raytrain": None}, {}, "failure", "raytrain cannot be imported", "`make setup`"),
    ("packages", {"torch": None, "ray": None}, {}, "failure", "torch, ray cannot be imported", "`make setup`"),
    ("packages", {"torch": "2.14.0"}, {}, "failure", "torch 2.14.0, and 2.15.0 here", "lock file on all"),
    ("packages", {"ray": "2.59.0"}, {}, "failure", "ray 2.59.0, and 2.60.0 here", "lock file on all"),
    ("packages", {"raytrain": "0.1.0 (source ffff0000)"}, {}, "failure", "raytrain 0.1.0 (source ffff0000)", "same"),
    ("gpu", {"gpu_error": "driver/library mismatch"}, {}, "failure", "driver/library mismatch", "repair the driver"),
    ("gpu", GPUS | {"cuda": (None, 0)}, {}, "failure", "2 x H100 of 80.0 GiB, and this torch is", "`make setup`"),
    ("gpu", GPUS | {"cuda": ("13.0", 0)}, {}, "failure", "cannot use them with driver 580.1", "install a driver"),
    ("gpu", GPUS | {"declared": (8.0, 1.0)}, {}, "warning", "torch sees 2 GPUs and Ray counts 1", "--num-gpus 2"),
    ("gpu", GPUS | {"gpus": (GPUS["gpus"][0], Gpu("H100", 80 * GIB, 9 * GIB, "580.1"))}, {}, "warning",
     "GPU 1 has 9.0 GiB free", "nvidia-smi"),
    ("network", {"gloo": ("eth9", "")}, {}, "failure", "GLOO_SOCKET_IFNAME is eth9", "ip -brief address"),
    ("network", {"gloo": ("lo", "127.0.1.1")}, {}, "failure", "gloo would take the loopback (127.0.1.1)", "/etc/hosts"),
    ("network", GPUS | {"nccl": ("lo",)}, {}, "failure", "NCCL would take lo", "NCCL_SOCKET_IFNAME"),
    ("network", GPUS | {"nccl": ()}, {}, "failure", "NCCL would take no interface", "NCCL_SOCKET_IFNAME"),
    ("reachable", {"unreachable": ("10.0.0.1:6379",)}, {}, "failure", "from there at 10.0.0.1:6379", "open all ports"),
    ("reachable", {"unreachable": tuple(f"h:{n}" for n in range(9))}, {}, "failure", "h:3 and 5 more", "open all"),
    ("storage", {"written": "Permission denied"}, {}, "failure", "written there: Permission denied", "--out DIR"),
    ("storage", {"read": "No such file"}, {}, "failure", "written here to /shared/runs is not read there", "s3://"),
    ("storage", {"seen": "No such file"}, {}, "failure", "written there to /shared/runs is not read here", "s3://"),
    ("storage", {"out_free": GIB // 2}, {}, "warning", "/shared/runs has 512.0 MiB free", "make room"),
    ("tmp", {"temporary": (GIB // 2, 9 * GIB)}, {}, "failure", "512.0 MiB free", "make room in /tmp"),
    ("tmp", {"temporary": (4 * GIB, 100 * GIB)}, {}, "warning", "too full a disk for Ray", "make room in /tmp"),
    ("shared memory", {"shared_memory": 0}, {}, "failure", "there is no /dev/shm", "--shm-size 19g"),
    ("shared memory", {"shared_memory": 64 * 2**20}, {}, "warning", "Ray would take 19.2 GiB", "--shm-size 19g"),
    ("clock", {"skew": (-2.0, 0.1)}, {}, "warning", "2.0 s behind, known to 0.1 s", "chrony"),
    ("clock", {"skew": (3600.0, 0.1)}, {}, "failure", "3,600.0 s ahead", "chrony"),
    ("token", {"token_mode": 0o644}, {}, "failure", "(mode 0644)", "`chmod 600 /home/u/.ray/auth_token`"),
    ("token", {"token_mode": 0o640}, {}, "failure", "(mode 0640)", "`chmod 600 /home/u/.ray/auth_token`"),
    ("token", {"auth_mode": ("disabled", False)}, {}, "failure", "Ray asks for no token there", "RAY_AUTH_MODE=token"),
    ("token", {"auth_mode": ("", True), "token_mode": None}, {}, "failure", "asks for no token", "RAY_AUTH_MODE=token"),
    ("token", {"token_mode": None}, {}, "failure", "there is no /home/u/.ray/auth_token", "mode 0600"),
    ("jobs", {"job_port": -1}, {}, "warning", "could not open its port", "--dashboard-agent-listen-port"),
    ("open files", {"descriptors": 4096}, {}, "warning", "at most 4096, and Ray recommends 8192", "`ulimit -n 8192`"),
    ("node", {}, {"silent": (("node", "timeout"),)}, "failure", "no answer: timeout", "start Ray there again"),
]  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: f"{defect[0]}: {defect[4]}")
def test_a_defect_of_a_node_is_found_alone_with_its_remedy(defect: tuple) -> None:
    check, has, cluster, level, what, remedy = defect
    survey = replace(CLUSTER, nodes=(HEAD, replace(NODE, **has)), **cluster)
    (found,) = (finding for finding in findings(survey) if finding.level != "ok")
    assert (found.check, found.machine, found.level) == (check, "node", level)
    assert what in found.what and remedy in found.remedy


@pytest.mark.parametrize(
    ("check", "survey", "level", "what", "remedy"),
    [
        ("python", Survey(replace(HERE, python="3.9.1")), "failure", "raytrain needs 3.11", "newer Python"),
        ("limits", Survey(HERE, refused=("64 files", "raise it")), "failure", "64 files", "raise it"),
        ("storage", Survey(replace(HERE, written="disk full"), out="runs"), "failure", "runs cannot be written: disk",
         "give a writable --out DIR"),
        ("cpus", Survey(replace(HERE, cpus=1)), "warning", "a worker and Ray Data share", "two CPUs"),
        ("cpus", replace(CLUSTER, free_cpus=0.5), "warning", "0.5 CPUs of the cluster are free", "ray status"),
        ("cpus", replace(CLUSTER, nodes=(replace(HEAD, declared=(1.0, 0.0)),)), "warning", "left for Ray Data",
         "--num-cpus 2"),
        ("uv run", Survey(replace(HERE, uv_run=(True, "1"))), "warning", "RAY_ENABLE_UV_RUN_RUNTIME_ENV=1", "unset"),
        ("nodes", replace(CLUSTER, least_nodes=3), "warning", "2 of 3 nodes are there", "raytrain cluster up FILE"),
        ("token", Survey(replace(HERE, token_mode=0o604)), "failure", "others may read", "chmod 600"),
    ],
)  # fmt: skip
def test_each_defect_is_found_alone(check: str, survey: Survey, level: str, what: str, remedy: str) -> None:
    (found,) = (finding for finding in findings(survey) if finding.level != "ok")
    assert (found.check, found.level) == (check, level) and what in found.what and remedy in found.remedy


@pytest.mark.parametrize(
    "survey",
    [
        Survey(HERE),
        CLUSTER,
        replace(CLUSTER, nodes=(replace(HEAD, job_port=52365), NODE)),
        replace(CLUSTER, least_nodes=2),
        Survey(replace(HERE, gloo=("lo", "127.0.0.1"))),
        replace(CLUSTER, nodes=(replace(HEAD, gloo=("lo", "127.0.0.1")),)),  # one node needs no other address
        replace(CLUSTER, nodes=(replace(HEAD, auth_mode=("disabled", False)),), exposed=False),
        replace(CLUSTER, nodes=(HEAD, replace(NODE, **GPUS))),
        replace(CLUSTER, nodes=(HEAD, replace(NODE, token_mode=None, auth_mode=("token", True)))),
        replace(CLUSTER, nodes=(HEAD, replace(NODE, skew=(5.0, 4.5)))),  # it may as well be a slow way
        replace(CLUSTER, nodes=(HEAD, replace(NODE, out_free=None))),
        Survey(replace(HERE, uv_run=(True, ""))),
        Survey(replace(HERE, uv_run=(True, "0"), descriptors=-1)),
    ],
)
def test_what_is_well_is_not_found_fault_with(survey: Survey) -> None:
    assert [finding for finding in findings(survey) if finding.level != "ok"] == []


def test_each_check_can_fail_or_warn() -> None:
    names = {check.__name__.removeprefix("check_").replace("_", " ") for check in CHECKS}
    assert names <= {defect[0] for defect in DEFECTS} | {"cpus", "uv run", "limits", "nodes"}


def test_gloo_interface_is_the_named_or_the_host_s() -> None:
    interfaces = {"lo": "127.0.0.1", "eth0": "10.0.0.1"}
    assert gloo(interfaces, "", "10.0.0.1") == ("eth0", "10.0.0.1")
    assert gloo(interfaces, "", "127.0.1.1") == ("", "127.0.1.1")
    assert gloo(interfaces, "eth0,eth1", "127.0.0.1") == ("eth0", "10.0.0.1")
    assert gloo(interfaces, "eth9", "10.0.0.1") == ("eth9", "")


@pytest.mark.parametrize(
    ("wanted", "takes"),
    [
        ("", ("ib0", "ib1")),
        ("eth", ("eth0", "eth1")),
        ("=eth0,ib", ("eth0",)),
        ("^ib,docker,lo", ("eth0", "eth1")),
        ("^=ib0,lo", ("eth0", "eth1", "ib1", "docker0")),
        ("en", ()),
    ],
)
def test_nccl_takes_the_interfaces_that_its_rules_say(wanted: str, takes: tuple[str, ...]) -> None:
    assert nccl(["lo", "eth0", "eth1", "ib0", "ib1", "docker0"], wanted) == takes


def test_nccl_takes_docker_or_loopback_only_as_a_last_resort() -> None:
    assert nccl(["lo", "docker0", "eth0"], "") == ("eth0",)
    assert nccl(["lo", "docker0"], "") == ("docker0",) and nccl(["lo"], "") == ("lo",)


def test_a_probe_is_written_read_and_removed(tmp_path: Path) -> None:
    assert probe(str(tmp_path), "mark", write=True) is None and probe(str(tmp_path), "mark") is None
    (tmp_path / "other").write_text("something else")
    assert probe(str(tmp_path), "other") == "it has other contents"
    assert probe(str(tmp_path), "missing") == "No such file or directory"
    assert probe(str(tmp_path / "nowhere"), "mark", write=True) == "No such file or directory"
    remove(str(tmp_path), ["mark", "missing"])
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_probe_at_a_url(s3: str) -> None:
    assert probe(f"{s3}/probe", "mark", write=True) is None and probe(f"{s3}/probe", "mark") is None
    remove(f"{s3}/probe", ["mark"])
    assert "mark" in str(probe(f"{s3}/probe", "mark"))


def test_the_facts_are_those_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (token := tmp_path / "token").write_text("secret")
    token.chmod(0o640)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
    answer = gather(str(tmp_path), "own", "own", peers=[("127.0.0.1", 1)])
    found = Facts.of(json.loads(json.dumps(answer)), skew=(0.0, 0.0))
    assert found == Facts.of(answer, skew=(0.0, 0.0)), "they travel as JSON"
    assert found.cpus == host_cpus() and (found.token_mode, found.read) == (0o640, None)
    assert found.unreachable == ("127.0.0.1:1",) and "source" in str(found.raytrain)
    assert "secret" not in json.dumps(answer)


def fake_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_gpus_are_those_that_nvidia_smi_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_smi(tmp_path, monkeypatch, "echo 'NVIDIA H200, 143771, 143000, 580.95'; echo 'MIG, [N/A], [N/A], 580.95'")
    assert facts._gpus() == (
        [
            {"name": "NVIDIA H200", "memory": 143771 * 2**20, "free": 143000 * 2**20, "driver": "580.95"},
            {"name": "MIG", "memory": 0, "free": 0, "driver": "580.95"},
        ],
        None,
    )


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_this_machine_is_looked_at_and_left_as_it_is(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.run(["doctor", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert status == any(finding["level"] == "failure" for finding in said["findings"])
    assert (said["address"], said["out"], len(said["machines"])) == (None, "runs", 1)
    assert said["machines"][0]["torch"].startswith("2.") and list(alone.iterdir()) == []
    assert all(finding["remedy"] for finding in said["findings"] if finding["level"] != "ok")


@pytest.mark.parametrize(("has", "status", "last"), [
    ({}, 0, "nothing is wrong"),
    ({"descriptors": 1024}, 0, "1 warning"),
    ({"written": "disk full", "descriptors": 1024, "token_mode": 0o666}, 1, "2 failures, 1 warning"),
])  # fmt: skip
def test_failures_end_it_with_1_and_warnings_are_shown(
    has: dict, status: int, last: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "examine", lambda address, out: Survey(replace(HERE, **has)))
    assert cli.run(["doctor"]) == status
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == last and said.err == ""
    for finding in findings(Survey(replace(HERE, **has))):
        assert finding.what in said.out and finding.remedy in said.out


def test_what_machines_have_in_common_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    slow = replace(NODE, name="other", descriptors=1024)
    survey = replace(CLUSTER, nodes=(HEAD, NODE, slow), silent=(("lost", "timeout"),))
    report.show(survey, findings(survey))
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    assert ["ok", "python", "this machine, head, node, other: 3.12.4"] in lines
    assert ["warning", "open", "files    other: at most 1024, and Ray recommends 8192"] in lines
    assert ["failure", "node", "lost: no answer: timeout"] in lines
    whole = replace(CLUSTER, nodes=(HEAD, NODE))
    report.show(whole, findings(whole))
    said = capsys.readouterr().out
    assert "all: 3.12.4" in said and "all nodes: the head and all other nodes" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["here"], "unexpected argument 'here'; see `raytrain doctor --help`"),
        (["--adress", "auto"], "unknown flag --adress; did you mean --address?"),
        (["--address", "nowhere"], "an address is HOST:PORT (6379 by default) or `auto`, nowhere; "),
        (["--address", "http://h:1"], "an address is HOST:PORT (6379 by default) or `auto`, http://h:1; "),
    ],
)
def test_mistakes_are_one_line(
    alone: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert message in fails(capsys, "doctor", *arguments)
