"""Clusters of several nodes on this machine, which end with a test."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_NODES = """
import contextlib, json, sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args=json.loads(sys.argv[1]))
print("address", cluster.address, flush=True)
nodes = {}
for word, given in map(json.loads, sys.stdin):
    if word == "add":
        node = cluster.add_node(**given)
        nodes[node.node_id] = node
        print("added", node.node_id, flush=True)
    else:
        cluster.remove_node(nodes[given], allow_graceful=False)
        print("killed", flush=True)
for node in [*cluster.worker_nodes, cluster.head_node]:
    with contextlib.suppress(Exception):
        node.kill_all_processes(check_alive=False, allow_graceful=False)
"""


@dataclass(frozen=True)
class Nodes:
    """Nodes that a process of their own has started: the Ray of this process may have a token, and they none."""

    process: subprocess.Popen[str]
    address: str

    def add_node(self, num_cpus: int, **more: Any) -> str:
        """Start a node; return its id."""
        return self._ask("add", {"num_cpus": num_cpus, **more}, "added")

    def kill_node(self, node: str) -> None:
        """Kill all processes of a node that was added."""
        self._ask("kill", node, "killed")

    def _ask(self, word: str, given: Any, answer: str) -> str:
        assert self.process.stdin
        print(json.dumps([word, given]), file=self.process.stdin, flush=True)
        return _wait_for(self.process, answer)


@contextlib.contextmanager
def started(*cpus: int, **head: Any) -> Iterator[Nodes]:
    """A cluster of nodes with so many CPUs each; `head` are further arguments of the first one."""
    options = json.dumps({"num_cpus": cpus[0], "include_dashboard": False, **head})
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _NODES, options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with process:  # closes its input in the end, and waits for it
        nodes = Nodes(process, _wait_for(process, "address"))
        for count in cpus[1:]:
            nodes.add_node(count)
        yield nodes


def _wait_for(process: subprocess.Popen[str], word: str) -> str:
    """Wait for a line that begins with a word, and return the rest."""
    assert process.stdout
    for line in process.stdout:
        if line.startswith(word):
            return line.removeprefix(word).strip()
    raise AssertionError(f"the nodes' process ended with {process.wait()}")
