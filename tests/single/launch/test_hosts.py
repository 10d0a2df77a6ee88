"""Where processes go, and how this machine's own address is found."""

import socket
from types import SimpleNamespace

import pytest

from parallax_runner.errors import LaunchError
from parallax_runner.launch import hosts
from parallax_runner.launch.hosts import Hosts, Place, find_hosts

PLACES = (Place("localhost", 2, True), Place("a.example", 3, False), Place("10.0.0.7", 1, False))
HOSTS = Hosts(PLACES, "ssh -p 2222", "10.0.0.1", "10.0.0.0/24")


def test_all_on_this_machine_is_no_matter_of_hosts() -> None:
    assert find_hosts([Place("localhost", 2, True)], "ssh") is None


def test_a_server_is_started_where_it_belongs() -> None:
    assert [HOSTS.of_server(index) for index in range(3)] == [None, "a.example", "10.0.0.7"]
    assert HOSTS.remote == ("a.example", "10.0.0.7")


def test_own_address_and_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """127.0.0.2 stands for another machine that is reached by the interface lo."""
    found = find_hosts([Place("127.0.0.2", 1, False)], "ssh")
    assert found is not None
    assert found.address.startswith("127.")
    assert found.network == "127.0.0.0/8"
    only = SimpleNamespace(address=found.address, netmask="255.255.255.255")
    monkeypatch.setattr(hosts.psutil, "net_if_addrs", lambda: {"lo": [only]})
    behind = find_hosts([Place("127.0.0.9", 1, False)], "ssh")
    assert behind is not None and behind.network is None


def test_a_name_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(hosts.socket, "getaddrinfo", unknown)
    with pytest.raises(
        LaunchError, match=r"host 'nowhere.example' in cluster.resource_info cannot be reached: Name or"
    ):
        find_hosts([Place("localhost", 1, True), Place("nowhere.example", 1, False)], "ssh")
