"""What a cluster's hosts show to others: which ports, and what those say to whoever has no token."""

from __future__ import annotations

import re
import shlex

from harness.cluster.hosts import ROOT
from harness.cluster.launched import Cluster

_SCAN = r"""
import errno, select, socket
found, waiting, poll = [], {}, select.epoll()
ports = iter(range(1, 65536))
while True:
    while len(waiting) < 500 and (port := next(ports, None)):
        one = socket.socket()
        one.setblocking(False)
        if one.connect_ex((HOST, port)) == errno.EINPROGRESS:
            poll.register(one, select.EPOLLOUT)
            waiting[one.fileno()] = (one, port)
    if not waiting:
        break
    for number, _ in poll.poll(5) or [(number, 0) for number in waiting]:
        one, port = waiting.pop(number)
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0 and one.getpeername():
            found.append(port)
        one.close()
print(*sorted(found))
"""
_ASK = r"""
import os, sys, urllib.error, urllib.request
headers = {"Authorization": "Bearer " + os.environ["TOKEN"]} if os.environ["TOKEN"] else {}
for url in sys.argv[1].split():
    job = b'{"entrypoint": "id"}' if url.endswith("+") else None
    try:
        asked = urllib.request.Request(url.rstrip("+"), job, {**headers, "Content-Type": "application/json"})
        print(urllib.request.urlopen(asked, timeout=20).status)
    except urllib.error.HTTPError as error:
        print(error.code)
"""
_CALL = r"""
import sys, grpc
for place in sys.argv[1:]:
    address, _, method = place.partition("/")
    try:
        grpc.insecure_channel(address).unary_unary("/" + method)(b"", timeout=10)
        print("answered")
    except grpc.RpcError as error:
        print(error.code().name)
"""


def documented() -> dict[str, list[tuple[int, int]]]:
    """The ranges of ports that docs/security.md lists, of the `head` and of a `worker`."""
    text = (ROOT / "docs" / "security.md").read_text().partition("## Ports")[2].partition("\n## ")[0]
    found: dict[str, list[tuple[int, int]]] = {"head": [], "worker": []}
    for first, last, where in re.findall(r"^\| (\d+)(?: to (\d+))? \| (\w+)", text, re.MULTILINE):
        for role in found if where == "all" else [where]:
            found[role].append((int(first), int(last or first)))
    return found


def scan(used: Cluster, target: str, source: str) -> list[int]:
    """All ports of a host at which something answers another one."""
    code = _SCAN.replace("HOST", repr(used.hosts.addresses[target]))
    return [int(port) for port in used.hosts.run(source, f"python - <<'END'\n{code}\nEND").split()]


def no_more_than_documented(used: Cluster) -> None:
    """Scans the head and a worker from another worker."""
    listed = documented()
    assert listed["head"] and listed["worker"]
    for target, source in (("head", "worker1"), ("worker1", "worker2")):
        found = scan(used, target, source)
        role = target.rstrip("0123456789")
        more = [port for port in found if not any(first <= port <= last for first, last in listed[role])]
        assert 22 in found and not more, f"{target} shows {more}: {used.hosts.listening(target)}"


def nothing_without_a_token(used: Cluster) -> None:
    """HTTP, `ray job list`, and Ray's own protocol, from another host, which has no token of its own."""
    url, agent = "http://127.0.0.1:8265", "http://head:52365"
    calls = f"{url}/api/jobs/ {url}/api/jobs/+ {url}/nodes?view=summary {agent}/api/job_agent/jobs/+"
    for token, status in (("", "401"), ("wrong", "403")):
        said = used.run(f"TOKEN={token} python - {shlex.quote(calls)} <<'END'\n{_ASK}\nEND").split()
        assert said == [status] * len(calls.split()), dict(zip(calls.split(), said, strict=False))
    said = used.run(f"HOME=/tmp ray job list --address {url} 2>&1 && echo let in", check=False)
    assert "Unauthorized: Missing authentication token" in said and "let in" not in said
    calls = {
        "head:6379": "ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
        "head:6380": "ray.rpc.NodeManagerService/GetNodeStats",
        "head:10001": "ray.rpc.RayletDriver/ClusterInfo",
        "worker1:6380": "ray.rpc.NodeManagerService/GetNodeStats",
        "worker1:6381": "ray.rpc.ObjectManagerService/Push",
    }
    places = " ".join(f"{place}/{method}" for place, method in calls.items())
    said = used.run(f"HOME=/tmp python - {places} <<'END'\n{_CALL}\nEND").split()
    assert said == ["UNAUTHENTICATED"] * len(calls), dict(zip(calls, said, strict=False))
