"""The AWS file, launched by Ray's own launcher, with moto in the place of EC2: its machines are none to log in to."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
import yaml
from moto import mock_aws

from raytrain import cluster

MINE = "203.0.113.7/32"


@pytest.fixture
def ec2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An account's EC2; Ray writes its SSH key below a home of the test's."""
    (tmp_path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)  # of the tests' own S3
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    at_once = SimpleNamespace(sleep=lambda _: None, time=time.time)  # Ray waits twice 15 s for a new role
    monkeypatch.setattr("ray.autoscaler._private.aws.config.time", at_once)
    with mock_aws(config={"iam": {"load_aws_managed_policies": True}}):
        yield boto3.client("ec2", region_name="us-west-2")


def test_file_launches_head_and_spot_workers_in_own_group(ec2: Any) -> None:
    from ray.autoscaler._private.commands import _bootstrap_config
    from ray.autoscaler._private.providers import _get_node_provider
    from ray.autoscaler.tags import TAG_RAY_NODE_KIND, TAG_RAY_USER_NODE_TYPE

    # What the file's remark says to do, once:
    group = ec2.create_security_group(GroupName="raytrain", Description="raytrain")["GroupId"]
    ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": MINE}]}
    inside = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[ssh, inside])
    image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    text = cluster.text("aws").replace("sg-0123456789abcdef0", group).replace("ami-0123456789abcdef0", image)

    config = _bootstrap_config(yaml.safe_load(text), no_config_cache=True)
    provider = _get_node_provider(config["provider"], config["cluster_name"])
    for kind, role in (("head", "head"), ("gpu", "worker"), ("gpu", "worker")):
        node = copy.deepcopy(config["available_node_types"][kind]["node_config"])
        provider.create_node(node, {TAG_RAY_NODE_KIND: role, TAG_RAY_USER_NODE_TYPE: kind}, 1)

    machines = [one for each in ec2.describe_instances()["Reservations"] for one in each["Instances"]]
    assert [(one["InstanceType"], one.get("InstanceLifecycle")) for one in machines] == [
        ("m6i.xlarge", None),
        ("g6.xlarge", "spot"),
        ("g6.xlarge", "spot"),
    ]
    for one in machines:
        assert one["MetadataOptions"]["HttpTokens"] == "required"
        assert [each["GroupId"] for each in one["SecurityGroups"]] == [group]
        assert one["ImageId"] == image
        (disk,) = one["BlockDeviceMappings"]
        assert disk["Ebs"]["DeleteOnTermination"]
    for volume in ec2.describe_volumes()["Volumes"]:
        assert (volume["Size"], volume["VolumeType"], volume["Encrypted"]) == (200, "gp3", True)
    rules = [rule for each in ec2.describe_security_groups()["SecurityGroups"] for rule in each["IpPermissions"]]
    assert {one["CidrIp"] for rule in rules for one in rule["IpRanges"]} == {MINE}

    provider.terminate_nodes(provider.non_terminated_nodes({}))
    left = [one["State"]["Name"] for each in ec2.describe_instances()["Reservations"] for one in each["Instances"]]
    assert set(left) == {"terminated"} and not ec2.describe_volumes()["Volumes"]
