"""Start a cluster with `ray up`, and wait until every node that its file asks for has joined.

`ray up` ends with 0 once the head runs. The autoscaler on the head starts the workers later, and reports nothing to the
user when one of them does not join.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from raytrain import errors
from raytrain.cluster import document
from raytrain.cluster.description import Cluster

_RAY = (sys.executable, "-m", "ray.scripts.scripts")
_AUTOSCALER_V2 = "RAY_UP_enable_autoscaler_v2"
_LOCAL = "local.cluster.node"
"""Ray's one node type of an on-premises cluster, the head included."""
_STATUS = "export RAY_AUTH_MODE=token PATH=~/raytrain/.venv/bin:$PATH; ray status --address 127.0.0.1:{}"
_PORT = re.compile(r"--port[= ](\d+)")
_SDK = {
    "aws": ("boto3", "raytrain[aws]"),
    "gcp": ("googleapiclient", "google-api-python-client"),
    "azure": ("azure", "azure-cli"),
}
"""By provider: the module that Ray's launcher imports, and what pip installs for it."""
_PAUSE_SECONDS = 5.0
_ANSWER_SECONDS = 120.0
_FAILED_SECONDS = 60.0
"""How long missing machines of an on-premises cluster may all be `uninitialized`. Before their setup begins that lasts
seconds; after a failed setup it lasts for good, since the autoscaler tries each address once."""


class Incomplete(Exception):
    """Ray refused to start the cluster, or nodes are missing."""


def up(path: Path, minutes: float, yes: bool, say: Callable[[str], None]) -> None:
    """Start the cluster of a file for `ray up`, which has been checked.

    Args:
        path: the file.
        minutes: how long the nodes may take to join once the head runs.
        yes: start, or restart a cluster that runs, without `ray up`'s question.
        say: takes lines on the progress.

    Raises:
        UserError: this is no file for `ray up`, or what its cloud needs is not installed.
        Incomplete: `ray up` failed, or not all nodes joined in time.
    """
    wanted, port = nodes(path), _port(path)
    _check_installed(path)
    # Autoscaler v2, the default of `ray up`, leaves out workers of on-premises clusters (seen with Ray 2.60).
    environment = {_AUTOSCALER_V2: "0", **os.environ}
    if environment[_AUTOSCALER_V2] == "1":
        say(f"warning: autoscaler v2 may leave out workers; unset {_AUTOSCALER_V2} to start the cluster with v1")
    done = subprocess.run([*_RAY, "up", *(["--yes"] if yes else []), str(path)], env=environment, check=False)
    if done.returncode:
        raise Incomplete(f"`ray up` ended with {done.returncode}; its output above says why")
    began, said = time.monotonic(), ""
    changed = began
    while True:
        status = _status(path, port)
        there = joined(status)
        missing = {name: count - there.get(name, 0) for name, count in wanted.items() if there.get(name, 0) < count}
        if not missing:
            return
        rest = ", ".join(
            f"{count} {'node' if count == 1 else 'nodes'} of type {name}" for name, count in missing.items()
        )
        waits = pending(status)
        line = f"waiting for {rest}" + (f" ({'; '.join(waits)})" if waits else "")
        if line != said:
            say(said := line)
            changed = time.monotonic()
        failed = _LOCAL in missing and bool(waits) and all(one.endswith(", uninitialized") for one in waits)
        if failed and time.monotonic() - changed > _FAILED_SECONDS:
            why = f"why is in monitor.out of Ray's logs on the head: {'; '.join(waits)[:300]}"
            raise Incomplete(f"{rest} failed to start, and Ray does not try again; {why}")
        if time.monotonic() - began > 60 * minutes:
            last = status.strip().splitlines()[-1:] if not there else waits
            raise Incomplete(
                f"{rest} did not join within {minutes:g} minutes" + (f": {'; '.join(last)[:300]}" if last else "")
            )
        time.sleep(_PAUSE_SECONDS)


def _check_installed(path: Path) -> None:
    (top, *_), _ = document.read(path)
    provider = Cluster(top).provider
    module, package = _SDK.get(provider, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        what = f"`ray up` needs {module} for the provider {provider}, which is not installed"
        raise errors.UserError(what, str(path), f"pip install '{package}'")


def nodes(path: Path) -> dict[str, int]:
    """Return how many nodes of each type a file asks for, the head included.

    Raises:
        UserError: this is no file for `ray up`.
    """
    documents, _ = document.read(path)
    if len(documents) != 1 or documents[0]["provider"].empty:
        raise errors.UserError(
            "`ray up` does not start what this file describes", str(path), "for Kubernetes, take `kubectl apply -f`"
        )
    cluster = Cluster(documents[0])
    if cluster.provider == "local":
        machines = len(cluster.top["provider"]["worker_ips"].items)
        least = cluster.top["min_workers"].number
        return {_LOCAL: 1 + (machines if least is None else min(least, machines))}
    wanted = {name: kind["min_workers"].number or 0 for name, kind in cluster.types.items()}
    head = cluster.top["head_node_type"].text
    wanted[head] = wanted.get(head, 0) + 1
    return {name: count for name, count in wanted.items() if count}


def joined(status: str) -> dict[str, int]:
    """Return how many nodes of each type have joined, by what `ray status` prints."""
    found: dict[str, int] = {}
    for section in re.findall(r"^(?:Active|Idle):\n((?: .*\n)*)", status, re.MULTILINE):
        for count, name in re.findall(r"^ (\d+) (\S+)$", section, re.MULTILINE):
            found[name] = found.get(name, 0) + int(count)
    return found


def pending(status: str) -> list[str]:
    """Return the lines of `ray status` on pending and failed nodes."""
    sections = re.findall(r"^(?:Pending|Recent failures):\n((?: .*\n)*)", status, re.MULTILINE)
    return [line.strip() for section in sections for line in section.splitlines() if not line.startswith(" (no ")]


def _port(path: Path) -> str:
    """Return the port that the head's `ray start` gives to the GCS."""
    (top, *_), _ = document.read(path)
    found = (_PORT.search(command.text) for command in top["head_start_ray_commands"].items)
    return next((port[1] for port in found if port), "6379")


def _status(path: Path, port: str) -> str:
    """Return what `ray status` prints on the head, or why the head did not answer."""
    try:
        command = [*_RAY, "exec", str(path), _STATUS.format(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"the head did not answer `ray status` within {_ANSWER_SECONDS:.0f} s"
    return done.stdout + (done.stderr if done.returncode else "")
