"""The addresses that gloo and NCCL take for a rank, and whether the other nodes reach them.

Both choose an interface. With a host name that resolves to 127.0.0.1, or a second network card, they may choose an
interface that other nodes do not reach. The process group then waits for its timeout of half an hour.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

_SIOCGIFADDR = 0x8915
_CONNECT_SECONDS = 10.0
"""How long a connection may take: three lost packets (1, 2 and 4 s) are no fault."""
_LISTEN_SECONDS = 30.0
VARIABLES = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}


@dataclass(frozen=True)
class Place:
    """The address at which a library on one node can be reached.

    Attributes:
        library: "gloo" or "nccl".
        host: the node's host name.
        interface: what the library takes; empty where the address is of no interface that is known.
        address: its address; empty where the interface has none.
        port: where a probe listens at that address; 0 where it cannot.
        why: why there is no address; empty where there is one, or may be one of IPv6.
        known: the interface that has the node's address in the Ray cluster; empty where there is none.
        token: what the probe answers, since another host may have the same address.
    """

    library: str
    host: str
    interface: str
    address: str
    port: int
    why: str
    known: str
    token: str


def libraries(backend: str) -> list[str]:
    """Return those of gloo and NCCL that a backend of torch.distributed names, such as "cpu:gloo,cuda:nccl"."""
    named = {part.rpartition(":")[2] for part in backend.lower().split(",")}
    return [library for library in VARIABLES if library in named]


def offer(backend: str, cluster_address: str) -> list[Place]:
    """Return the addresses of this node's gloo and NCCL, and answer there for half a minute.

    Args:
        backend: that of the process group.
        cluster_address: this node's address in the Ray cluster, which the other nodes reach.
    """
    found = interfaces()
    known = next((name for name, address in found.items() if address == cluster_address), "")
    places = []
    for library in libraries(backend):
        if library == "gloo":
            interface, address = gloo(found, os.environ.get(VARIABLES[library], ""), of_host_name())
        else:
            interface = next(iter(nccl(list(found), os.environ.get(VARIABLES[library], ""))), "")
            address = found.get(interface, "")
        token, port, why = secrets.token_hex(8), 0, ""
        if address:
            with contextlib.suppress(OSError):  # no proof of a fault: the process group will tell
                port = _answer(address, token)
        elif interface and interface not in (
            name for _, name in socket.if_nameindex()
        ):  # others may have an IPv6 address
            why = f"there is no interface {interface}, which {VARIABLES[library]} names"
        places.append(Place(library, socket.gethostname(), interface, address, port, why, known, token))
    return places


def unreached(places: Sequence[Place]) -> list[tuple[Place, str]]:
    """Return which of the other nodes' places do not answer from here, and why."""
    there = [place for place in places if place.port]
    with ThreadPoolExecutor(max(1, len(there))) as pool:
        reasons = list(pool.map(_try, there))
    return [(place, reason) for place, reason in zip(there, reasons, strict=True) if reason]


def fault(of_nodes: Sequence[Sequence[Place]], ask: Callable[[], Sequence[Sequence[tuple[Place, str]]]]) -> str | None:
    """Return what is wrong with the addresses of several nodes, in one line with the variable to set, or None.

    Args:
        of_nodes: what `offer` returned on each node.
        ask: calls `unreached` on each node, with the places of the others.
    """
    for place in (place for places in of_nodes for place in places):
        if place.address.startswith("127.") or place.address == "::1":
            at = f"{place.address} (interface {place.interface or 'lo'})"
            return f"{place.library} on {place.host} would use {at}, which other nodes cannot reach; {_remedy(place)}"
        if place.why:
            return f"{place.library} on {place.host} has no address: {place.why}; {_remedy(place)}"
    failed = [(node, place, reason) for node, found in enumerate(ask()) for place, reason in found]
    if not failed:
        return None
    # Most nodes are right: the one that most others miss is the one to change.
    counts: dict[Place, int] = {}
    for _, place, _ in failed:
        counts[place] = counts.get(place, 0) + 1
    worst = max(counts, key=lambda place: counts[place])
    node, reason = next((node, reason) for node, place, reason in failed if place == worst)
    seeker = of_nodes[node][0].host if of_nodes[node] else "another node"
    at = f"{worst.address}" + (f" (interface {worst.interface})" if worst.interface else "")
    return f"{seeker} cannot reach {worst.library} on {worst.host} at {at}: {reason}; {_remedy(worst)}"


def gloo(interfaces: dict[str, str], wanted: str, of_host_name: str) -> tuple[str, str]:
    """Return the interface and the address that gloo takes: GLOO_SOCKET_IFNAME's, else the one of the host's own name.

    Args:
        interfaces: addresses by interface.
        wanted: GLOO_SOCKET_IFNAME.
        of_host_name: the address that the host's name stands for, if a socket can be bound to it, else the loopback's.
    """
    if wanted:
        name = wanted.partition(",")[0]
        return name, interfaces.get(name, "")
    return next((name for name, address in interfaces.items() if address == of_host_name), ""), of_host_name


def nccl(interfaces: Sequence[str], wanted: str) -> tuple[str, ...]:
    """Return the interfaces that NCCL takes, by its own rules: NCCL_SOCKET_IFNAME's (names or the beginnings of names,
    after ^ those to leave out, after = whole names), else InfiniBand's, else all but docker's and the loopback."""
    if wanted:
        names = wanted.lstrip("^=").split(",")
        exact = wanted.startswith(("=", "^="))
        chosen = [i for i in interfaces if (i in names if exact else i.startswith(tuple(names)))]
        return tuple(i for i in interfaces if i not in chosen) if wanted.startswith("^") else tuple(chosen)
    fast = [i for i in interfaces if i.startswith("ib")]
    usual = [i for i in interfaces if not i.startswith(("docker", "lo", "virbr"))]
    docker = [i for i in interfaces if i.startswith("docker")]
    return tuple(fast or usual or docker or interfaces)


def interfaces() -> dict[str, str]:
    """Return IPv4 addresses by interface."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[name] = socket.inet_ntoa(answer[20:24])
    return found


def of_host_name() -> str:
    """Return the first address of the host's own name to which a socket can be bound, as gloo does; else the
    loopback's."""
    with contextlib.suppress(OSError):
        for family, *_, place in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as trying:
                trying.bind((place[0], 0))
                return str(place[0])
    return "127.0.0.1"


def _answer(address: str, token: str) -> int:
    """Answer connections to an address of this node with a token, in a side thread; return the port.

    Raises:
        OSError: no socket can be bound there.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, 0), family=family, backlog=256)
    server.settimeout(1)
    port = server.getsockname()[1]
    end = time.monotonic() + _LISTEN_SECONDS

    def serve() -> None:
        with server:
            while time.monotonic() < end:
                with contextlib.suppress(OSError):
                    client = server.accept()[0]
                    with client:
                        client.settimeout(1)
                        client.sendall(token.encode())

    threading.Thread(target=serve, daemon=True, name="address").start()
    return port


def _try(place: Place) -> str:
    """Return why a place does not answer; empty if it answers."""
    try:
        with socket.create_connection((place.address, place.port), timeout=_CONNECT_SECONDS) as connection:
            said = b""
            while len(said) < len(place.token) and (more := connection.recv(64)):
                said += more
    except OSError as error:
        return "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
    return "" if said == place.token.encode() else "another host answers there"


def _remedy(place: Place) -> str:
    """Return what to set where, or to open."""
    variable = VARIABLES[place.library]
    if place.known and place.known == place.interface:
        return "open all ports between the nodes, and to nothing else"
    name = place.known or "INTERFACE (`ip -brief address` lists them)"
    return f"set {variable}={name} in the environment of `ray start` on {place.host}"


def answers(host: str, port: int) -> bool:
    """Return whether a server listens at an address."""
    try:
        socket.create_connection((host, port), timeout=1).close()
        return True
    except OSError:
        return False
