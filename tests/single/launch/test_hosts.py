"""Where processes go, what mpirun is told of it, and how this machine's own address is found."""

import dataclasses
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from parallax_runner.errors import LaunchError
from parallax_runner.launch import bind_address, hosts
from parallax_runner.launch.bind_address import LIBRARY
from parallax_runner.launch.hosts import Hosts, Place, find_hosts

PLACES = (Place("localhost", 2, True), Place("a.example", 3, False), Place("10.0.0.7", 1, False))
HOSTS = Hosts(PLACES, "ssh -p 2222", "10.0.0.1", "10.0.0.0/24")
BOTH_WAYS = {"OMPI_MCA_btl_tcp_flags": "send", "OMPI_MCA_btl_tcp_links": "2"}


def test_all_on_this_machine_is_no_matter_of_hosts() -> None:
    assert find_hosts([Place("localhost", 2, True)], "ssh") is None


def test_what_mpirun_is_told() -> None:
    daemon = f"env LD_PRELOAD={LIBRARY} PARALLAX_BIND_TOWARDS=10.0.0.1 OMPI_MCA_btl_tcp_disable_family=6 prted"
    assert HOSTS.mpirun_options() == [
        *("--host", "localhost:2,a.example:3,10.0.0.7:1", "--map-by", "slot"),
        *("--prtemca", "plm_ssh_agent", "ssh -p 2222", "--prtemca", "plm_ssh_no_tree_spawn", "1"),
        *("--prtemca", "oob_tcp_if_include", "10.0.0.0/24", "--mca", "btl_tcp_if_include", "10.0.0.0/24"),
        *("--prtemca", "prte_launch_agent", daemon),
    ]
    assert "prte_launch_agent" not in HOSTS.mpirun_options({"prte_launch_agent"})


def test_behind_a_router_mpi_chooses_its_interface() -> None:
    behind = dataclasses.replace(HOSTS, network=None)
    assert not [word for word in behind.mpirun_options() if "if_include" in word or "prted" in word]
    assert behind.bind_environment(frozenset()) == {}


def test_a_user_s_own_interface_is_not_closed() -> None:
    assert HOSTS.bind_environment({"btl", "pml"})["PARALLAX_BIND_TOWARDS"] == "10.0.0.1"
    assert HOSTS.bind_environment({"btl_tcp_if_include"}) == {}
    options = HOSTS.mpirun_options({"btl_tcp_if_include"})
    assert "oob_tcp_if_include" in options
    assert "prte_launch_agent" not in options and "btl_tcp_if_include" not in options
    assert "oob_tcp_if_include" not in HOSTS.mpirun_options({"oob_tcp_if_exclude"})


def test_other_hosts_cannot_load_from_a_folder_with_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind_address, "LIBRARY", Path("/home/me/my runs/libbind_address.so"))
    with pytest.raises(LaunchError, match=r"/home/me/my runs/libbind_address.so: .* a blank or a colon"):
        HOSTS.bind_environment(frozenset())


def test_large_allreduces_over_three_hosts_go_by_a_ring() -> None:
    env = HOSTS.mpi_environment(frozenset())
    assert env == BOTH_WAYS | {
        "OMPI_MCA_coll": "^han",
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_dynamic_rules_filename": str(Path(hosts.__file__).parent / "allreduce.rules"),
    }
    assert Path(env["OMPI_MCA_coll_tuned_dynamic_rules_filename"]).is_file()


def test_two_hosts_and_users_who_choose_keep_open_mpi_s_algorithms() -> None:
    without_workers = dataclasses.replace(PLACES[0], workers=0)
    two = dataclasses.replace(HOSTS, places=(without_workers, *PLACES[1:]))
    assert two.mpi_environment(frozenset()) == BOTH_WAYS
    assert two.mpi_environment({"btl_tcp_links"}) == {"OMPI_MCA_btl_tcp_flags": "send"}
    assert "OMPI_MCA_coll" not in HOSTS.mpi_environment({"coll_tuned_allreduce_algorithm"})


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
        LaunchError, match=r"host 'nowhere.example' of cluster.resource_info cannot be reached: Name or"
    ):
        find_hosts([Place("localhost", 1, True), Place("nowhere.example", 1, False)], "ssh")
