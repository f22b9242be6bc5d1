"""Addresses of ranks on several nodes: what gloo and NCCL would take, and what is said where others do not reach it."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from raytrain.driver import network
from raytrain.driver.network import Place

GOOD = Place("gloo", "one", "eth0", "10.0.0.1", 4000, "", "eth0", "a")
OTHER = replace(GOOD, host="two", address="10.0.0.2", token="b")
THIRD = replace(GOOD, host="three", address="10.0.0.3", token="c")


def never() -> list[list[tuple[Place, str]]]:
    raise AssertionError("asked, though the answer is known")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.1.1", "::1"])
@pytest.mark.parametrize(("library", "variable"), network.VARIABLES.items())
def test_loopback_host_name_names_the_variable_to_set(address: str, library: str, variable: str) -> None:
    wrong = replace(OTHER, library=library, interface="lo", address=address)
    said = network.fault([[GOOD], [wrong]], never)
    assert said == (
        f"{library} on two would use {address} (interface lo), which other nodes cannot reach; "
        f"set {variable}=eth0 in the environment of `ray start` on two"
    )


def test_an_interface_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth9")
    (place,) = network.offer("gloo", "10.0.0.1")
    said = network.fault([[GOOD], [replace(place, host="two")]], never)
    assert said and "gloo on two has no address: there is no interface eth9, which GLOO_SOCKET_IFNAME names" in said


def test_nodes_that_reach_each_other_are_fine() -> None:
    assert network.fault([[GOOD], [OTHER]], lambda: [[], []]) is None


def test_of_several_nodes_the_one_that_most_others_miss_is_named() -> None:
    wrong = replace(THIRD, interface="eth1", address="192.168.5.3")

    def ask() -> list[list[tuple[Place, str]]]:
        return [[(wrong, "no answer")], [(wrong, "no answer")], [(GOOD, "no answer")]]

    assert network.fault([[GOOD], [OTHER], [wrong]], ask) == (
        "one cannot reach gloo on three at 192.168.5.3 (interface eth1): no answer; "
        "set GLOO_SOCKET_IFNAME=eth0 in the environment of `ray start` on three"
    )


def test_a_right_interface_behind_a_firewall_is_to_be_opened() -> None:
    said = network.fault([[GOOD], [OTHER]], lambda: [[(OTHER, "no answer")], []])
    assert said and said.endswith("no answer; open all ports between the nodes, and to nothing else")


def test_offered_place_answers_and_a_namesake_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    (place,) = network.offer("gloo", "10.0.0.1")
    assert (place.interface, place.address, place.host) == ("lo", "127.0.0.1", socket.gethostname()) and place.port
    assert network.unreached([place, place]) == []
    stranger = replace(place, token="0" * 16)
    assert network.unreached([stranger]) == [(stranger, "another host answers there")]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    closed = replace(place, port=port)
    assert network.unreached([closed]) == [(closed, "Connection refused")]
    assert network.unreached([replace(place, port=0)]) == [], "where it cannot listen, nothing is known"


@pytest.mark.parametrize(
    ("backend", "found"),
    [("gloo", ["gloo"]), ("nccl", ["nccl"]), ("cpu:gloo,cuda:nccl", ["gloo", "nccl"]), ("mpi", [])],
)
def test_the_libraries_of_a_backend(backend: str, found: list[str]) -> None:
    assert network.libraries(backend) == found
