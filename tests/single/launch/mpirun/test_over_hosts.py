"""What mpirun is told of other hosts."""

import dataclasses
from pathlib import Path

import pytest

from parallax_runner.errors import LaunchError
from parallax_runner.launch import preloaded
from parallax_runner.launch.hosts import Hosts, Place
from parallax_runner.launch.mpirun import over_hosts
from parallax_runner.launch.mpirun.over_hosts import bind_environment, mpi_environment, mpirun_options
from parallax_runner.launch.preloaded import LIBRARY

PLACES = (Place("localhost", 2, True), Place("a.example", 3, False), Place("10.0.0.7", 1, False))
HOSTS = Hosts(PLACES, "ssh -p 2222", "10.0.0.1", "10.0.0.0/24")
BOTH_WAYS = {"OMPI_MCA_btl_tcp_flags": "send", "OMPI_MCA_btl_tcp_links": "2"}


def test_what_mpirun_is_told() -> None:
    daemon = f"env LD_PRELOAD={LIBRARY} PARALLAX_BIND_TOWARDS=10.0.0.1 OMPI_MCA_btl_tcp_disable_family=6 prted"
    assert mpirun_options(HOSTS) == [
        *("--host", "localhost:2,a.example:3,10.0.0.7:1", "--map-by", "slot"),
        *("--prtemca", "plm_ssh_agent", "ssh -p 2222", "--prtemca", "plm_ssh_no_tree_spawn", "1"),
        *("--prtemca", "oob_tcp_if_include", "10.0.0.0/24", "--mca", "btl_tcp_if_include", "10.0.0.0/24"),
        *("--prtemca", "prte_launch_agent", daemon),
    ]
    assert "prte_launch_agent" not in mpirun_options(HOSTS, {"prte_launch_agent"})


def test_hosts_whose_names_share_a_first_label_are_two_hosts() -> None:
    """PRRTE would cut both names to node1, and start one daemon."""
    places = (Place("node1.a.example", 1, True), Place("node1.b.example", 1, False))
    options = mpirun_options(dataclasses.replace(HOSTS, places=places))
    assert options[options.index("prte_keep_fqdn_hostnames") - 1 :][:3] == [
        "--prtemca",
        "prte_keep_fqdn_hostnames",
        "1",
    ]
    assert "prte_keep_fqdn_hostnames" not in mpirun_options(HOSTS)
    addresses = (Place("10.0.0.1", 1, True), Place("10.0.0.7", 1, False))
    assert "prte_keep_fqdn_hostnames" not in mpirun_options(dataclasses.replace(HOSTS, places=addresses))


def test_behind_a_router_mpi_chooses_its_interface() -> None:
    behind = dataclasses.replace(HOSTS, network=None)
    assert not [word for word in mpirun_options(behind) if "if_include" in word or "prted" in word]
    assert bind_environment(behind, frozenset()) == {}


def test_a_user_s_own_interface_is_not_closed() -> None:
    assert bind_environment(HOSTS, {"btl", "pml"})["PARALLAX_BIND_TOWARDS"] == "10.0.0.1"
    assert bind_environment(HOSTS, {"btl_tcp_if_include"}) == {}
    options = mpirun_options(HOSTS, {"btl_tcp_if_include"})
    assert "oob_tcp_if_include" in options
    assert "prte_launch_agent" not in options and "btl_tcp_if_include" not in options
    assert "oob_tcp_if_include" not in mpirun_options(HOSTS, {"oob_tcp_if_exclude"})


def test_other_hosts_cannot_load_from_a_folder_with_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preloaded, "LIBRARY", Path("/home/me/my runs/libpreloaded.so"))
    with pytest.raises(LaunchError, match=r"/home/me/my runs/libpreloaded.so: .* a space or a colon"):
        bind_environment(HOSTS, frozenset())


def test_large_allreduces_over_three_hosts_go_by_a_ring() -> None:
    env = mpi_environment(HOSTS, frozenset())
    assert env == BOTH_WAYS | {
        "OMPI_MCA_coll": "^han",
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_dynamic_rules_filename": str(Path(over_hosts.__file__).parent / "allreduce.rules"),
    }
    assert Path(env["OMPI_MCA_coll_tuned_dynamic_rules_filename"]).is_file()


def test_two_hosts_and_users_who_choose_keep_open_mpi_s_algorithms() -> None:
    without_workers = dataclasses.replace(PLACES[0], workers=0)
    two = dataclasses.replace(HOSTS, places=(without_workers, *PLACES[1:]))
    assert mpi_environment(two, frozenset()) == BOTH_WAYS
    assert mpi_environment(two, {"btl_tcp_links"}) == {"OMPI_MCA_btl_tcp_flags": "send"}
    assert "OMPI_MCA_coll" not in mpi_environment(HOSTS, {"coll_tuned_allreduce_algorithm"})
