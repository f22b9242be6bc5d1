"""The checks of who can reach a cluster of `ray up`, and who can read its secrets."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Literal

from raytrain.cluster.description import COMMANDS, RAY_START, Cluster
from raytrain.cluster.document import Finding, Place

_WORLD = re.compile(r"(?<![\d.])0\.0\.0\.0/0|(?<![\w:])::/0")
_TOKEN_MODE = re.compile(r"RAY_AUTH_MODE=[\"']?token\b")
_SECRET_NAME = re.compile(r"(?:\w+_)?(?:SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_KEY|PRIVATE_KEY)")
_SECRET = re.compile(rf"\b({_SECRET_NAME.pattern})(?:=|: )[\"']?[^\"'$`\s;&|]")
_VARIABLE = re.compile(r"\$\{\w+\}|\$[A-Z_][A-Z0-9_]*\b")
_BRACED = re.compile(r"(?<!\\)\$\{([A-Z_][A-Z0-9_]*)\}")
_NODE = {"HOME", "USER", "PATH", "PWD", "SHELL", "HOSTNAME", "UID", "RAY_HEAD_IP", "RAY_OVERRIDE_RESOURCES"}
"""Variables that a shell on a node has: the system's, and Ray's."""
_SHELL = (
    *COMMANDS,
    *("run_options", "head_run_options", "worker_run_options", "UserData", "metadata", "value"),
)
"""Fields that a shell reads, which expands variables."""
_GROUPS = ("SecurityGroupIds", "NetworkInterfaces", "LaunchTemplate")
_START = "export RAY_AUTH_MODE=token; ... ray start"
_MOUNT = "~/.ray/auth_token: ~/.ray/auth_token"


def variables(cluster: Cluster) -> Iterator[Finding]:
    """Find variables that are never expanded, and those that a node's shell expands although they are not set."""
    yield from unexpanded(cluster.top, _SHELL)
    targets = cluster.top["file_mounts"].fields
    yield from unexpanded(Place({name: Place(name, place.line) for name, place in targets.items()}, 1), ())
    shell = [place for place in cluster.top.scalars() if place.name in COMMANDS or place.name.endswith("run_options")]
    text = "\n".join(place.text for place in shell)
    for place in shell:
        for name in dict.fromkeys(_BRACED.findall(place.text)):
            if name not in _NODE and not re.search(
                rf"\b{name}=(?![\"']?\${{?{name})|\b(?:for|read)\s[^;]*\b{name}\b", text
            ):
                yield place.warning(
                    f"${{{name}}} is expanded on the node, where nothing in this file sets it", "write the value itself"
                )


def unexpanded(top: Place, shell: Collection[str]) -> Iterator[Finding]:
    """Find `${VAR}` outside the fields that a shell reads."""
    for place in top.scalars():
        if place.name not in shell and (found := _VARIABLE.search(place.text)):
            yield place.error(f"nothing expands {found[0]} here", "write the value itself")


def secrets(places: Iterable[Place]) -> Iterator[Finding]:
    """Find secrets that a text sets."""
    for place in places:
        if found := _SECRET.search(place.text):
            yield place.error(f"{found[1]} is in plain text here", "mount a file, mode 600, and name its path")


def environment(place: Place) -> Iterator[Finding]:
    """Find secrets among the environment variables of all containers in a document."""
    name, value = place["name"].text, place["value"]
    if _SECRET_NAME.fullmatch(name) and value.text and not value.text.startswith("$"):
        yield value.error(f"{name} is in plain text here", "take it from a Secret: valueFrom.secretKeyRef")
    for inside in place:
        yield from environment(inside)


def network(cluster: Cluster) -> Iterator[Finding]:
    """Check who can reach the machines."""
    provider = cluster.top["provider"]
    inside = provider["use_internal_ips"].value is True
    for place in cluster.top.scalars():
        if _WORLD.search(place.text):
            yield place.error("0.0.0.0/0 lets the whole world in", "give your own address: A.B.C.D/32")
    if cluster.provider == "azure" and not inside:
        yield provider["use_internal_ips"].error(
            "Ray's network rules open port 22 of every public address to the world", "add use_internal_ips: true"
        )
    if cluster.provider == "azure" and provider["use_external_head_ip"].value is True:
        yield provider["use_external_head_ip"].error(
            "Ray's network rules open port 22 of the head to the world", "remove it, and reach the head from inside"
        )
    nodes = {name: kind["node_config"] for name, kind in cluster.types.items()}
    aws = nodes if cluster.provider == "aws" else {}
    yield from _first(
        {name: node for name, node in aws.items() if not inside and all(node[field].empty for field in _GROUPS)},
        "SecurityGroupIds, and the group that Ray makes opens port 22 to 0.0.0.0/0",
        "name a group of your own",
    )
    options = {name: node["MetadataOptions"]["HttpTokens"] for name, node in aws.items()}
    yield from _first(
        {name: place for name, place in options.items() if place.text != "required"},
        "HttpTokens: required, and IMDSv1 hands credentials to any request",
        "add MetadataOptions: {HttpTokens: required}",
        "warning",
    )
    gcp = nodes if cluster.provider == "gcp" and not inside else {}
    yield from _first(
        {name: node for name, node in gcp.items() if node["networkInterfaces"].empty},
        "networkInterfaces, and the default network opens port 22 to the world",
        "name a subnetwork whose firewall lets your address in",
    )


def _first(
    places: dict[str, Place], lacks: str, how: str, level: Literal["error", "warning"] = "error"
) -> Iterator[Finding]:
    """Yield one finding for all node types that lack the same: they often share their lines by an alias."""
    if places:
        names = " and ".join(repr(name) for name in places)
        what = f"node type{'s' if len(places) > 1 else ''} {names} without {lacks}"
        yield Finding(min(place.line for place in places.values()), level, what, how)


def token(cluster: Cluster) -> Iterator[Finding]:
    """Check token authentication on the head and on the workers."""
    top = cluster.top
    options = [*top["docker"]["run_options"].items]
    both = any(_TOKEN_MODE.search(place.text) for place in options)
    profile = cluster.commands("setup_commands", *(() if cluster.docker else ("initialization_commands",)))
    both = both or any(_TOKEN_MODE.search(place.text) and "bashrc" in place.text for place in profile)
    for role in ("head", "worker"):
        commands = top[f"{role}_start_ray_commands"]
        if commands.empty:
            if role == "head" or not cluster.alone:
                yield commands.error(
                    f"there are no {role}_start_ray_commands, and Ray's own start without a token",
                    f"add `{_START}`",
                )
            continue
        starts = [command for command in commands.items if RAY_START.search(command.text)]
        more = any(_TOKEN_MODE.search(place.text) for place in top["docker"][f"{role}_run_options"].items)
        for start in starts:
            mode = _TOKEN_MODE.search(start.text)
            if not both and not more and (mode is None or mode.start() > start.text.index("ray start")):
                yield start.error(
                    f"the {role} starts without RAY_AUTH_MODE=token in the same command", f"write `{_START} ...`"
                )
    yield from _token_file(cluster)
    yield from secrets(top.scalars())
    credentials = top["provider"]["aws_credentials"]
    if not credentials.empty:
        yield credentials.error("credentials are in plain text here", "remove them: boto3 reads ~/.aws and IAM roles")


def _token_file(cluster: Cluster) -> Iterator[Finding]:
    mounts = cluster.top["file_mounts"]
    tokens = {target: source for target, source in mounts.fields.items() if target.endswith(".ray/auth_token")}
    elsewhere = any("RAY_AUTH_TOKEN_PATH" in place.text for place in cluster.top.scalars())
    if not tokens and not elsewhere:
        yield mounts.error("file_mounts bring no token, and nodes cannot join", f"add {_MOUNT}")
    rays = any("rayproject/ray" in image.text for image, _ in cluster.images())
    for target, place in tokens.items():
        if rays and not target.startswith(("~", "/home/ray/")):
            yield place.error(
                f"{target} is not the home of who runs Ray in the container",
                f"write {_MOUNT}",
            )


def keys(cluster: Cluster) -> Iterator[Finding]:
    """Check the modes of local secret files, and of mounted ones."""
    key = cluster.top["auth"]["ssh_private_key"]
    if key.text and not _here(key).is_file():
        yield key.error(f"there is no SSH key {key.text}", "name one that is there, or leave the field out")
    mounts = cluster.top["file_mounts"].fields
    tokens = [source for target, source in mounts.items() if target.endswith("auth_token")]
    for place, what in [(key, "the SSH key"), *((token, "the token") for token in tokens)]:
        file = _here(place)
        if place.text and file.is_file() and stat.S_IMODE(file.stat().st_mode) & 0o077:
            yield place.error(f"others can read {what} {place.text}", f"chmod 600 {place.text}")
    for target, source in mounts.items():
        if source not in tokens and source.text and not _here(source).exists():
            yield source.error(f"{source.text}, which {target} is to be, is not here", "name a file that is there")
        if any((_here(source) / name).exists() for name in ("pyproject.toml", ".venv")):
            yield source.warning(
                f"all of {source.text} is read before a node starts, with .venv and runs, whatever rsync_exclude says",
                "mount what `make setup` needs, one by one, as the file of `raytrain cluster init` does",
            )
    for place in cluster.top["rsync_exclude"].items:
        if place.text.strip("/") == "data" and not place.text.startswith("/"):
            yield place.error(
                f"{place.text!r} leaves out every folder of that name, also raytrain/data, a part of the package",
                "write '/data/'",
            )


def _here(place: Place) -> Path:
    """A path on this machine, as `ray up` takes it."""
    return Path(os.path.expanduser(place.text))
