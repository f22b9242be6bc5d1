"""`raytrain cluster check`: the files that come with raytrain are clean, and each defect is found, alone, at its line,
with its remedy. Offline: no cloud's SDK, no Ray process, no torch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from copy import deepcopy
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness.cluster.defects import DEFECTS
from helpers.cluster_files import FILLED, filled

from raytrain import cli, cluster, errors
from raytrain.cluster import fields, names
from raytrain.cluster.document import LARGEST_BYTES, Finding, read
from raytrain.driver.ray_internals import cluster_file

ROOT = Path(__file__).parents[2]
YAML = ("aws", "gcp", "azure", "on-premises", "kuberay", "kuberay-job")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without keys and tokens, and a project to mount."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("raytrain", "experiments", "Makefile", "pyproject.toml", "requirements.lock", "README.md", "LICENSE"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def check(text: str) -> list[Finding]:
    Path("cluster.yaml").write_text(text)
    return cluster.check(Path("cluster.yaml"))


def edited(kind: str, old: str, new: str) -> str:
    text = cluster.text(kind)
    assert old in text, f"{kind} has not: {old}"
    return filled(text.replace(old, new, 1))


@pytest.mark.parametrize("kind", cluster.KINDS)
def test_the_shipped_files_are_clean_once_they_are_edited(kind: str) -> None:
    assert check(filled(cluster.text(kind))) == []


@pytest.mark.parametrize("kind", cluster.KINDS)
def test_shipped_file_has_a_finding_per_line_to_edit(kind: str) -> None:
    text = cluster.text(kind)
    marked = {n for n, line in enumerate(text.splitlines(), 1) if "# EDIT" in line and not line.strip().startswith("#")}
    found = check(text)
    assert {finding.line for finding in found} == marked
    code = [line.partition(" #")[0] for line in text.splitlines() if not line.strip().startswith("#")]
    left = {placeholder for placeholder in FILLED if any(placeholder in line for line in code)}
    errors = [finding.what for finding in found if finding.level == "error"]
    assert all(any(placeholder in what for what in errors) for placeholder in left)
    assert (errors != []) == (left != set()) == (kind not in ("slurm", "plain"))


def test_marks_of_edited_and_kept_lines() -> None:
    text = cluster.text("on-premises").replace("192.0.2.", "10.1.2.")
    assert {finding.level for finding in check(text)} == {"warning"}
    text = re.sub("workers: 2 .*", "workers: 2", text).replace("ssh_user: ubuntu", "ssh_user: me")
    assert check(text.replace("mountpoint -q /shared", "mountpoint -q /mnt/runs")) == []


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("aws", "  ~/.ray/auth_token: ~", "  /home/ray/.ray/auth_token: ~"),
        ("aws", "mount -t nfs4 -o nfsvers=4.1,hard,timeo=600,noresvport fs-", "mount fs-"),
        ("gcp", "mount -t nfs -o nfsvers=3,hard,timeo=600 192.0.2.2:/runs", "mount -o hard [fd00::2]:/runs"),
        (
            "aws",
            "    - --ulimit nofile=65536:65536",
            "    - -e TOKENIZERS_PARALLELISM=false -e WANDB_API_KEY_FILE=/run/k",
        ),
        ("aws", "  - cd ~/raytrain && make setup", "  - cd ${HOME}/raytrain && HF_TOKEN=$(cat ~/t) make setup"),
        ("aws", "  - ~/raytrain/.venv/bin/ray stop", "  - pkill -f gcs_server"),
        ("aws", "InstanceType: g6.xlarge", "InstanceType: p5.48xlarge"),
        ("gcp", "mount -t nfs -o nfsvers=3,hard,timeo=600 192.0.2.2:/runs /shared", "mount 'nas:/runs' '/shared'"),
        ("gcp", "mount -t nfs -o nfsvers=3,hard,timeo=600 192.0.2.2:/runs /shared", "mount //nas/runs /shared -o rw"),
        ("on-premises", "mountpoint -q /shared", "sudo mount /shared"),
        ("aws", "  - cd ~/raytrain && make setup", "  - D=~/raytrain; cd ${D} && echo ${X:-y} \\${Z} && make setup"),
        ("aws", "region: us-west-2", "region: eu-central-2"),
        ("gcp", "machineType: g2-standard-8", "machineType: a3-megagpu-8g"),
        ("gcp", "machineType: e2-standard-4", "machineType: n2-custom-4-8192"),
        ("azure", "location: westus2", "location: West US 2"),
        ("azure", "vmSize: Standard_NC4as_T4_v3", "vmSize: Standard_ND96isr_H100_v5"),
        ("kuberay", "rayStartParams: {}\n      template", 'rayStartParams: {num-gpus: "1"}\n      template'),
        (
            *("kuberay", "nvidia.com/gpu: 1\n              volumeMounts"),
            "nvidia.com/mig-1g.5gb: 1\n              volumeMounts",
        ),
        (
            *("kuberay", "            image: registry.example.com"),
            "            env: [{name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf, key: token}}}, "
            "{name: A, value: $(B)}, {name: TOKENIZERS_PARALLELISM, value: 'false'}]\n            image: registry.io",
        ),
        ("kuberay", "              - {name: shm, mountPath: /dev/shm}\n        volumes", "        volumes"),
        ("kuberay-job", "--out /shared/runs --name digits", "--out s3://bucket/runs --name $RAY_JOB_SUBMISSION_ID"),
        ("kuberay-job", "  shutdownAfterJobFinishes", "  backoffLimit: 3\n  shutdownAfterJobFinishes"),
    ],
)
def test_what_works_is_not_found_fault_with(kind: str, old: str, new: str) -> None:
    assert check(edited(kind, old, new)) == []


def test_names_are_checked_by_form_without_botocore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "_aws", dict)
    for old, new in (("region: us-west-2", "region: us-wset-2"), ("g6.xlarge", "g6-xlarge")):
        (finding,) = check(edited("aws", old, new))
        assert "aws has no " in finding.what
    for old, new in (
        ("us-west-2", "eusc-de-east-1"),
        ("us-west-2", "us-gov-west-1"),
        ("g6.xlarge", "p6-b200.48xlarge"),
    ):
        assert check(edited("aws", old, new)) == []


def test_all_names_that_botocore_knows_have_the_form() -> None:
    for field, known in names._aws().items():
        assert known and [name for name in known if not re.fullmatch(names._FORMS["aws", field], name)] == []


def identify(defect: tuple[str, ...]) -> str:
    return f"{defect[0]}: {defect[5]}"


@pytest.mark.parametrize("defect", DEFECTS, ids=identify)
def test_a_defect_is_found_alone_at_its_line_with_its_remedy(defect: tuple[str, ...]) -> None:
    kind, old, new, where, level, what, how = defect
    broken = edited(kind, old, new)
    (finding,) = check(broken)
    index = broken.index(where) + where.startswith("\n")
    assert finding.line == broken[:index].count("\n") + 1
    assert finding.level == {"E": "error", "W": "warning"}[level]
    assert what in finding.what and how in finding.how and "\n" not in str(finding)


def test_there_are_more_than_forty_defects_of_many_kinds() -> None:
    assert len(DEFECTS) >= 40 and len({defect[5] for defect in DEFECTS}) >= 40


def test_a_missing_field_stands_at_the_line_of_what_misses_it() -> None:
    assert [f.line for f in check("a: 1\nprovider:\n  type: aws\n") if "needs region" in f.what] == [2]


def test_merge_keys_and_aliases_are_read_as_yaml_reads_them() -> None:
    text = "base: &b {x: 1, y: 2}\nother: &o {y: 3, z: 4}\nboth:\n  <<: [*b, *o]\n  x: 9\nlist: [*b, 0x1f, 1e3, ~]\n"
    Path("f.yaml").write_text(text)
    (place,), found = read(Path("f.yaml"))
    assert place.plain() == yaml.safe_load(text) and not found
    assert place["both"].fields["x"].line == 5 and place["both"]["z"].line == 2


def test_the_mode_of_the_key_and_of_the_token_is_looked_at(home: Path) -> None:
    (home / ".ray").mkdir()
    for name, text, what in (
        (
            "key.pem",
            edited("aws", "  ssh_user: ubuntu", "  ssh_user: ubuntu\n  ssh_private_key: ~/key.pem"),
            "the SSH key",
        ),
        (".ray/auth_token", filled(cluster.text("aws")), "the token"),
    ):
        (home / name).write_text("secret")
        (home / name).chmod(0o644)
        (finding,) = check(text)
        assert (
            what in finding.what
            and finding.how == f"chmod 600 ~/{name}"
            and f"~/{name}" in text.splitlines()[finding.line - 1]
        )
        (home / name).chmod(0o600)
        assert check(text) == []
    (home / "key.pem").unlink()
    (finding,) = check(edited("aws", "  ssh_user: ubuntu", "  ssh_user: ubuntu\n  ssh_private_key: ~/key.pem"))
    assert "there is no SSH key" in finding.what


def test_other_kinds_beside_a_ray_cluster_are_ignored() -> None:
    claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: raytrain}\nspec: {anything: 1}\n---\n"
    assert check(claim + filled(cluster.text("kuberay"))) == []
    broken = claim + edited("kuberay", "rayVersion: 2.60.0", "rayVersion: 2.0.0")
    (finding,) = check(broken)
    assert "rayVersion: 2.0.0" in broken.splitlines()[finding.line - 1]


@pytest.mark.parametrize(
    ("image", "what"),
    [
        ("registry.example.com:5000/mine/trainer:7", None),
        ("registry.example.com:5000/mine/trainer", "has no tag"),
        ("mine/trainer:nightly-gpu", "another image tomorrow"),
        ("mine/trainer:latest@sha256:" + "0" * 64, None),
        ("mine/ray:2.58.0-py312-cu130", "has Ray 2.58.0"),
        ("rayproject/ray:2.60.0", "Python 3.10, too old"),
        ("rayproject/ray:2.60.0-py312-gpu", None),
        ("rayproject/ray:2.60.0-py311-cu130", None),
    ],
)
def test_images(image: str, what: str | None) -> None:
    found = check(edited("aws", "rayproject/ray:2.60.0-py312-cu130", image))
    assert [what in finding.what for finding in found] == [True] if what else found == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: [1, 2\nb: 3\n", "no YAML"),
        ("a: b: c\n", "cluster.yaml:1"),
        ("a: \x00\n", "no YAML"),
        ("a: &x [*x]\n", "an alias stands inside what it names, cluster.yaml:1"),
        ("a: &x\n  <<: *x\n", "an alias stands inside what it names, cluster.yaml:2"),
        ("a: *nothing\n", "undefined alias"),
        ("a: !!python/object/apply:os.system ['touch pwned']\n", ""),
        ("a: !!python/name:os.system x\n", "no plain value"),
        ("? [1, 2]\n: 3\n", "a key is not text"),
        ("a: 2024-13-45\n", "no value"),
        ("[" * 5_000, "it nests too deeply"),
        ("{a: " * 500 + "1" + "}" * 500, "it nests too deeply"),
        ("x" * (LARGEST_BYTES + 1), "larger than 256 KiB"),
    ],
)
def test_what_is_no_cluster_file_is_one_line(text: str, what: str, home: Path) -> None:
    try:
        found = check(text)
    except errors.UserError as error:
        assert what and what in str(error) and "\n" not in str(error)
    else:
        assert found and what == ""  # a tag on a sequence has no effect: nothing is built from it
    assert not (home / "pwned").exists()


def test_bombs_of_aliases_are_refused_in_no_time() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    long = "s: &s " + "y" * 10_000 + "\nl: [" + ", ".join(["*s"] * 2_000) + "]"
    for text in ("\n".join(lines), long):
        begun = time.monotonic()
        with pytest.raises(errors.UserError, match="with its aliases it has more than 20,000 values"):
            check(text)
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("text", ["", "# nothing\n", "- a\n", "a\n", "a: 1\n---\nb: 2\n"])
def test_a_file_that_is_no_one_mapping_has_a_finding(text: str) -> None:
    (finding,) = check(text)
    assert "one mapping" in finding.what


@pytest.mark.parametrize("kind", YAML)
def test_no_rule_fails_on_a_value_of_another_kind(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value in turn becomes a text, a number, a list, a mapping or nothing; slow Ray sees every eighth."""
    by_ray = cluster_file.refused_cluster
    whole = yaml.safe_load(filled(cluster.text(kind)))

    def places(value: object, path: tuple = ()) -> list[tuple]:
        inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [path, *(found for key, part in inside for found in places(part, (*path, key)))][path == () :]

    odd = ("text", 7, [1], {"a": 1}, None)
    for number, path in enumerate(places(whole)):
        copy = deepcopy(whole)
        part = copy
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = odd[number % len(odd)]
        monkeypatch.setattr(cluster_file, "refused_cluster", (lambda _: None) if number % 8 else by_ray)
        for finding in check(yaml.dump(copy, Dumper=yaml.CSafeDumper)):
            assert finding.line >= 1 and finding.what and finding.how, path


def test_what_cannot_be_read(home: Path) -> None:
    (home / "folder").mkdir()
    for name in ("gone.yaml", "folder", "/dev/zero", "a\0b"):
        with pytest.raises(errors.UserError, match="no such cluster file"):
            cluster.check(Path(name))
    Path("latin.yaml").write_bytes(b"a: \xff\xfe\xe9\n")
    with pytest.raises(errors.UserError, match="no YAML"):
        cluster.check(Path("latin.yaml"))


# The command


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    status = cli.run(["cluster", *arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_command_names_file_and_line_and_exits_2(capsys: Capture) -> None:
    Path("good.yaml").write_text(filled(cluster.text("aws")))
    assert run(capsys, "check", "good.yaml") == (0, "good.yaml: nothing is wrong\n", "")
    Path("bad.yaml").write_text(edited("aws", "  type: aws", "  type: asw"))
    status, out, err = run(capsys, "check", "bad.yaml")
    assert status == 2 and re.fullmatch(r"bad\.yaml:\d+: error: .*; write 'aws'\n", out)
    assert err == "error: 1 error in the cluster's file, bad.yaml; correct it, then check it again\n"
    Path("dear.yaml").write_text(edited("aws", "m6i.xlarge", "g6.xlarge"))
    status, out, err = run(capsys, "check", "dear.yaml")
    assert status == 0 and re.fullmatch(r"dear\.yaml:\d+: warning: .*\n", out) and err == ""


def test_json_has_every_finding(capsys: Capture) -> None:
    Path("bad.yaml").write_text(edited("aws", "  type: aws", "  type: asw"))
    status, out, _ = run(capsys, "check", "bad.yaml", "--json")
    (finding,) = json.loads(out)["findings"]
    assert status == 2 and finding["level"] == "error" and set(finding) == {"line", "level", "what", "how"}
    Path("good.yaml").write_text(filled(cluster.text("aws")))
    assert run(capsys, "check", "good.yaml", "--json")[:2] == (0, '{"file": "good.yaml", "findings": []}\n')


def test_mistakes_on_the_command_line(capsys: Capture) -> None:
    for arguments, said in (
        ((), "`init`, `check` or `up` must come first"),
        (("chekc", "x"), "did you mean cluster check?"),
        (("check", "gone.yaml"), "no such cluster file"),
        (("check",), "FILE"),
        (("check", "a", "b"), "unexpected argument 'b'"),
    ):
        status, out, err = run(capsys, *arguments)
        assert status == 2 and said in err and err.count("\n") == 1 and out == "", err


def test_check_is_quick_and_imports_no_torch_or_sdk(home: Path) -> None:
    Path("cluster.yaml").write_text(filled(cluster.text("aws")))
    code = (
        "import sys, time, subprocess, socket\n"
        "def refuse(*a, **k): raise AssertionError('started or connected')\n"
        "subprocess.Popen.__init__ = socket.socket.connect = refuse\n"
        "from raytrain import cli\n"
        "status = cli.run(['cluster', 'check', 'cluster.yaml'])\n"
        "import ray\n"
        "sdks = ('torch', 'boto3', 'botocore', 'googleapiclient', 'azure')\n"
        "print(status, ray.is_initialized(), [name for name in sdks if name in sys.modules])"
    )
    begun = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=home, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "cluster.yaml: nothing is wrong\n0 False []\n", done.stderr
    assert time.monotonic() - begun < 20  # 0.7 s on an idle machine
    assert not (home / ".ray").exists()


# What the tables say is what the sources say


def test_fields_of_aws_are_those_of_its_sdk() -> None:
    import botocore.session

    model: Any = botocore.session.get_session().get_service_model("ec2").operation_model("RunInstances")
    members = model.input_shape.members
    assert set(members) | {"SubnetIds"} == fields.AWS_NODE
    for name, inside in fields.AWS_INSIDE.items():
        shape = members[name].member if members[name].type_name == "list" else members[name]
        assert set(shape.members) == inside
    for (name, inner), values in fields.AWS_CHOICES.items():
        assert set(members[name].members[inner].enum) == set(values)


def test_fields_of_azure_are_those_of_rays_template() -> None:
    import ray

    folder = Path(ray.__file__).parent / "autoscaler" / "_private" / "_azure"
    parameters = set(json.loads((folder / "azure-vm-template.json").read_text())["parameters"])
    by_ray = {"vmName", "vmTags", "vmCount", "provisionPublicIp", "msi", "nsg", "subnet", "zones"}
    assert parameters - by_ray | {"availability_zone"} == fields.AZURE_MACHINE


def test_fields_of_rays_own_defaults_are_known() -> None:
    import ray

    for kind in ("aws", "gcp", "azure"):
        values = yaml.safe_load((Path(ray.__file__).parent / "autoscaler" / kind / "defaults.yaml").read_text())
        assert set(values["provider"]) <= fields.PROVIDERS[kind]


def test_installed_packages_and_image_match_the_lock() -> None:
    locked = dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    for name in ("ray", "torch"):
        assert metadata.version(name).partition("+")[0] == locked[name]
    cuda = locked["nvidia-cuda-runtime"].partition(".")[0]
    for kind in YAML:
        assert f":{locked['ray']}-py312-cu{cuda}0" in cluster.text(kind) or kind == "on-premises"
