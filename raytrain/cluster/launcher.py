"""The checks of a file for `ray up`. Ray's schema is applied too, but it accepts any name under `provider` and
`node_config`, and checks neither open ports, costs nor versions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from ipaddress import ip_address

from raytrain.cluster import fields, names, security, upkeep, versions
from raytrain.cluster.description import RAY_START, SIZES, Cluster
from raytrain.cluster.document import Finding, Place
from raytrain.driver.ray_internals import cluster_file

_STOP = re.compile(r"\bray stop\b|\bp?kill\b")
_PORT = re.compile(r"--port[= ](\d+)")
_NUM_GPUS = re.compile(r"--num-gpus[= ](\d+)")
_ADDRESS_PORT = re.compile(r"RAY_HEAD_IP\}?[\"']?:(\d+)")


def check(top: Place) -> list[Finding]:
    """Yield the findings for the values of a file for `ray up`."""
    cluster = Cluster(top)
    found = [finding for rule in _RULES for finding in rule(cluster)]
    return found + _by_ray(top, found)


def _by_ray(top: Place, found: list[Finding]) -> list[Finding]:
    """Yield Ray's own error, if the rules here have not found it."""
    refused = cluster_file.refused_cluster(top.plain())
    if refused is None:
        return []
    path, message = refused
    named = re.search(r"`(\w+)`", message)
    place = top.at(*path) if path else top[named[1]] if named else top
    errors = {finding.line for finding in found if finding.level == "error"}
    if place.line in errors or "Additional properties" in message or (not path and not named and errors):
        return []
    field = ".".join(str(key) for key in path)
    return [place.error(f"Ray refuses it: {field + ': ' if field else ''}{message}", "give what Ray's schema asks for")]


def _names(cluster: Cluster) -> Iterator[Finding]:
    """Check for fields that have no effect."""
    schema = cluster_file.cluster_schema().get("properties", {})
    top = cluster.top
    if not schema:
        yield top.warning("this is not the Ray that raytrain knows: its schema was not asked", "run `make setup`")
        return
    yield from top.unknown([*schema, "min_workers"], "the file")
    if top["min_workers"].there and cluster.provider != "local":
        yield top["min_workers"].error(
            "min_workers of the whole cluster is not read", "give each node type its own under available_node_types"
        )
    for name in ("auth", "docker"):
        yield from top[name].unknown(schema[name]["properties"], name)
    node = next(iter(schema["available_node_types"]["patternProperties"].values()))["properties"]
    for name, kind in cluster.types.items():
        yield from kind.unknown(node, f"node type {name!r}")
        yield from kind["docker"].unknown(node["docker"]["properties"], "docker of a node type")
    yield from top["provider"]["security_group"].unknown(("GroupName", "IpPermissions"), "security_group")


def _provider(cluster: Cluster) -> Iterator[Finding]:
    """Check the provider's fields, and the required ones."""
    provider, kind = cluster.top["provider"], cluster.provider
    if kind not in fields.PROVIDERS:
        if kind not in ("", "external", "fake_multinode", "aliyun", "vsphere", "readonly", "spark", "kuberay"):
            yield from Place({kind: provider["type"]}, 1).unknown(fields.PROVIDERS, "Ray's launcher")
        return
    misspelt = list(provider.unknown(fields.PROVIDERS[kind], f"provider {kind}"))
    yield from misspelt
    for name in fields.NEEDED[kind]:
        if provider[name].empty and not any(repr(name) in finding.how for finding in misspelt):
            yield provider[name].error(f"provider {kind} needs {name}", f"add {name} under provider")
    region = provider["region"].text
    for zone in provider["availability_zone"].text.split(","):
        if kind in ("aws", "gcp") and region and zone.strip() and not zone.strip().startswith(region):
            yield provider["availability_zone"].error(
                f"zone {zone.strip()} is not in region {region}", f"name zones of {region}, as {region}{_zone(kind)}"
            )


def _zone(kind: str) -> str:
    return "a" if kind == "aws" else "-a"


def _machines(cluster: Cluster) -> Iterator[Finding]:
    """Check the fields of `node_config`."""
    for name, kind in cluster.types.items():
        node = kind["node_config"]
        if cluster.cloud and not cluster.machine(kind).empty and cluster.size(kind).empty:
            yield node.error(f"node type {name!r} has no {SIZES[cluster.provider]}", "name the machine")
        if cluster.provider == "aws":
            yield from node.unknown(fields.AWS_NODE, "an AWS node_config")
            for field, inside in fields.AWS_INSIDE.items():
                for place in node[field].items or [node[field]]:
                    yield from place.unknown(inside, field)
            for (field, inner), allowed in fields.AWS_CHOICES.items():
                place = node[field][inner]
                if place.there and place.text not in allowed:
                    yield place.error(f"{inner} is {place.text!r}", f"use one of {', '.join(allowed)}")
        elif cluster.provider == "gcp":
            yield from node.unknown(fields.GCP_NODE, "a GCP node_config")
        elif cluster.provider == "azure":
            yield from node.unknown(fields.AZURE_NODE, "an Azure node_config")
            yield from cluster.machine(kind).unknown(fields.AZURE_MACHINE, "azure_arm_parameters")
            priority = cluster.machine(kind)["priority"]
            if priority.there and priority.text not in fields.AZURE_PRIORITIES:
                yield priority.error(
                    f"priority is {priority.text!r}", f"use one of {', '.join(fields.AZURE_PRIORITIES)}"
                )


def _sums(cluster: Cluster) -> Iterator[Finding]:
    """Check the numbers of workers."""
    top, head = cluster.top, cluster.top["head_node_type"]
    if cluster.cloud and cluster.types and head.text not in cluster.types:
        names = ", ".join(cluster.types)
        if not head.there:
            yield head.error("there is no head_node_type", f"add it: one of {names}")
        else:
            yield head.error(f"head_node_type {head.text!r} is not a node type", f"name one of {names}")
    if cluster.cloud and not cluster.types:
        yield top["available_node_types"].warning(
            "available_node_types is missing, so Ray chooses the machines",
            "name the head's and the workers'",
        )
    most = top["max_workers"]
    if cluster.cloud and cluster.types and not most.there:
        yield most.warning("max_workers is missing, so Ray takes 2", "say how many machines you are ready to pay for")
    if most.number is None or not cluster.types:
        return
    least = 0
    for name, kind in cluster.types.items():
        low, high = kind["min_workers"].number or 0, kind["max_workers"].number
        if high is not None and low > high:
            yield kind["min_workers"].error(
                f"node type {name!r} has min_workers {low} > max_workers {high}", "swap them"
            )
            return
        least += low
    if least > most.number:
        yield most.error(
            f"max_workers is {most.number}, and the node types' min_workers come to {least}", f"raise it to {least}"
        )


def _gpus(cluster: Cluster) -> Iterator[Finding]:
    """Compare the GPUs of the machines, of `resources`, by which the autoscaler plans, and of `ray start`."""
    starts = {
        role: next(
            (found for c in cluster.commands(f"{role}_start_ray_commands") if (found := _NUM_GPUS.search(c.text))), None
        )
        for role in ("head", "worker")
    }
    for name, kind in cluster.types.items():
        declared, real = kind["resources"]["GPU"], names.gpus(cluster, kind)
        if declared.number is not None and real is not None and declared.number != real:
            level = declared.error if declared.number > real else declared.warning
            what = f"GPU is {declared.number} under resources, and {cluster.size(kind).text} has {real}"
            yield level(what, f"write GPU: {real}, or leave resources empty, and Ray counts them")
        count = declared.number if declared.number is not None else real
        start = starts["head" if kind is cluster.head else "worker"]
        if start and count is not None and int(start[1]) != count:
            # What resources say overrides --num-gpus; without it, fewer GPUs than there are lie idle.
            level = kind.error if declared.number is not None or int(start[1]) > count else kind.warning
            what = f"node type {name!r} has {count} GPUs, and its `ray start` has --num-gpus={start[1]}"
            yield level(what, "leave --num-gpus out: Ray counts them")


def _addresses(cluster: Cluster) -> Iterator[Finding]:
    """Check the settings of on-premises machines."""
    if cluster.provider != "local":
        return
    top, provider = cluster.top, cluster.top["provider"]
    for name in ("available_node_types", "head_node_type"):
        if not top[name].empty:
            yield top[name].error(f"{name} is not for provider local", "remove it: head_ip and worker_ips say all")
    if provider["coordinator_address"].there:
        return
    for name in ("head_ip", "worker_ips"):
        if not provider[name].there:
            yield provider[name].error(f"provider local needs {name}", f"add {name} under provider")
    seen: dict[str, int] = {}
    for place in [provider["head_ip"], *provider["worker_ips"].items]:
        if place.text in seen:
            yield place.error(f"{place.text} occurs twice, also in line {seen[place.text]}", "give each machine once")
        elif place.text and _loopback(place.text):
            yield place.error(
                f"{place.text} is every machine's own address", "give the one that the others reach it by"
            )
        seen.setdefault(place.text, place.line)
    count, least = len(provider["worker_ips"].items), top["min_workers"].number
    if least is not None and least > count:
        yield top["min_workers"].error(f"min_workers is {least}, and there are {count} worker_ips", f"write {count}")
    if top["auth"]["ssh_user"].empty:
        yield top["auth"]["ssh_user"].error("there is no auth.ssh_user", "name the user that SSH logs in as")


def _loopback(text: str) -> bool:
    try:
        return ip_address(text).is_loopback
    except ValueError:
        return text == "localhost"


def _versions(cluster: Cluster) -> Iterator[Finding]:
    """Check the versions of Ray, torch and CUDA."""
    installs = any(
        "make setup" in command.text for command in cluster.all_commands()
    )  # an environment with its own Ray
    for image, gpu in cluster.images():
        yield from versions.check_image(image, gpu, used=not installs)
    yield from versions.check_commands(cluster.all_commands())
    setup = cluster.top["setup_commands"]
    if cluster.cloud and not setup.there:
        yield setup.error(
            "there are no setup_commands, and Ray's own install a development wheel",
            "add `cd ~/raytrain && make setup`",
        )
    elif setup.empty and all(cluster.top[name].empty for name in ("head_setup_commands", "worker_setup_commands")):
        yield setup.warning(
            "setup_commands are empty: nothing installs the project", "add `cd ~/raytrain && make setup`"
        )
    for kind in cluster.types.values():
        machine = cluster.machine(kind)
        image = machine["ImageId"]
        if cluster.provider == "aws" and (image.empty or image.text.lower() == "latest_dlami"):
            if machine["LaunchTemplate"].empty:
                yield image.error("without ImageId Ray takes an image with Ubuntu 18.04", "name an AMI of your region")
        elif "latest" in image.text:
            yield image.warning("this image may be another one tomorrow", "name its id: ami-...")
        if machine["imageVersion"].text == "latest":
            yield machine["imageVersion"].warning("this image may be another one tomorrow", "name its version")
        for disk in machine["disks"].items:
            source = disk["initializeParams"]["sourceImage"]
            if "/family/" in source.text:
                yield source.warning("a family may be another image tomorrow", "name the image: .../global/images/NAME")


def _start(cluster: Cluster) -> Iterator[Finding]:
    """Check `ray start` on the head and on the workers."""
    top = cluster.top
    ports: dict[str, str] = {}
    for role in ("head", "worker"):
        commands = top[f"{role}_start_ray_commands"]
        starts = [command for command in commands.items if RAY_START.search(command.text)]
        if not commands.empty and not starts:
            yield commands.error(f"{role}_start_ray_commands do not start Ray", "add `ray start ...`")
        for start in starts:
            text = start.text
            if role == "head":
                ports["head"] = (_PORT.search(text) or ("", "6379"))[1]
                if "--head" not in text:
                    yield start.error("the head's `ray start` has no --head", "add --head")
                if "--autoscaling-config" not in text:
                    yield start.error(
                        "without --autoscaling-config no worker ever starts",
                        "add --autoscaling-config=~/ray_bootstrap_config.yaml",
                    )
                if re.search(r"--dashboard-host[= ][\"']?(0\.0\.0\.0|::)", text):
                    yield start.warning(
                        "the dashboard listens on all addresses",
                        "leave --dashboard-host out: `ray dashboard FILE` tunnels",
                    )
            elif "RAY_HEAD_IP" not in text:
                yield start.error("the worker's `ray start` has no address", "add --address=$RAY_HEAD_IP:6379")
            elif ports.get("head") and (port := _ADDRESS_PORT.search(text)) and port[1] != ports["head"]:
                yield start.error(
                    f"workers ask at port {port[1]}, and the head listens at {ports['head']}", "use one port for both"
                )
        if starts and not any(_STOP.search(command.text) for command in commands.items):
            yield starts[0].warning(
                "a second `ray up` finds Ray running and fails", f"begin {commands.name} with `ray stop`"
            )


_RULES: tuple[Callable[[Cluster], Iterator[Finding]], ...] = (
    *(_names, _provider, _machines, names.check, _sums, _gpus, _addresses, _versions, _start),
    *(
        security.variables,
        security.network,
        security.token,
        security.keys,
        upkeep.storage,
        upkeep.costs,
        upkeep.container,
    ),
)
