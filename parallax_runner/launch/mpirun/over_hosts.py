"""Options and variables that make mpirun start ranks on other hosts and restrict them to one network."""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Set
from pathlib import Path

from parallax_runner.errors import LaunchError
from parallax_runner.launch import bind_address, preloaded
from parallax_runner.launch.block_signals import BLOCK_SIGNALS
from parallax_runner.launch.hosts import Hosts

# Over TCP, for messages of 1 MB or more, the algorithm that Open MPI chooses takes up to 1.8 times as long as a ring.
# With several ranks per host, Open MPI routes data through one rank of each host (coll/han), which is even slower on
# three or more hosts (docs/design/0032).
ALLREDUCE_RULES = Path(__file__).with_name("allreduce.rules")
RING_FROM_HOSTS = 3
# By default, Open MPI hands a whole large message to TCP as soon as the receiver requests the message. The sender's own
# requests then queue behind the message, and a full-duplex link carries data in one direction at a time
# (docs/design/0032).
BOTH_WAYS = {"btl_tcp_flags": "send", "btl_tcp_links": "2"}
# By default, PRRTE cuts host names at the first dot, and takes hosts that differ only behind it for one host.
KEEP_NAMES = "prte_keep_fqdn_hostnames"

# Prefixes of the parameters that choose the network interfaces of daemons and of ranks.
DAEMONS_BY = ("oob_tcp_if", "oob_tcp_include", "oob_tcp_exclude")
RANKS_BY = ("btl_tcp_if", "btl_tcp_disable_family")


def mpirun_options(hosts: Hosts, by_user: Set[str] = frozenset()) -> list[str]:
    """Returns mpirun's options for these hosts. This machine starts the daemons on all hosts, so the other hosts need
    no remote shell to one another. MPI uses the network over which the hosts reach this machine. `by_user` contains the
    names of the user's own parameters."""
    places = ",".join(f"{place.name}:{place.workers}" for place in hosts.places if place.workers)
    options = ["--host", places, "--map-by", "slot"]
    if not hosts.is_allocated:
        options += ["--prtemca", "plm_ssh_agent", hosts.remote_shell, "--prtemca", "plm_ssh_no_tree_spawn", "1"]
    # Parameters that the user has set are omitted here, because Open MPI refuses a parameter that is given twice.
    if hosts.network is not None and not _has_any(by_user, DAEMONS_BY):
        options += ["--prtemca", "oob_tcp_if_include", hosts.network]
    if hosts.network is not None and not _has_any(by_user, RANKS_BY):
        options += ["--mca", "btl_tcp_if_include", hosts.network]
    if _share_a_first_label(hosts) and KEEP_NAMES not in by_user:
        options += ["--prtemca", KEEP_NAMES, "1"]
    agent = _launch_agent(hosts, by_user)
    if agent and "prte_launch_agent" not in by_user:
        options += ["--prtemca", "prte_launch_agent", f"{agent} prted"]
    return options


def _share_a_first_label(hosts: Hosts) -> bool:
    """Returns whether two host names, such as node1.a.example and node1.b.example, begin with the same label."""
    names = {place.name for place in hosts.places}
    labels = {name if _is_address(name) else name.partition(".")[0] for name in names}
    return len(labels) < len(names)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _launch_agent(hosts: Hosts, by_user: Set[str]) -> str:
    """Returns the prefix of the daemon's command on a host. The prefix sets the variables of `bind_environment`, and
    makes the daemon ignore the signals that a batch system sends to all processes."""
    words = list(BLOCK_SIGNALS) if hosts.is_allocated else []
    if env := bind_environment(hosts, by_user):
        env = preloaded.environment({}) | env
        words = ["env", *(f"{name}={shlex.quote(value)}" for name, value in env.items()), *words]
    return " ".join(words)


def bind_environment(hosts: Hosts, by_user: Set[str]) -> dict[str, str]:
    """Returns the variables that restrict mpirun, its daemons and its ranks to the network that `mpirun_options`
    selects. Returns no variables if other networks may be used.

    Raises LaunchError if other hosts cannot load the library that binds sockets.
    """
    if not preloaded.is_readable_elsewhere():
        raise LaunchError(
            f"{preloaded.LIBRARY}: the dynamic linker on another host cannot load a library whose path contains a "
            "space or a colon. For runs on several hosts, install this project in a folder whose path contains neither"
        )
    if hosts.network is None or _has_any(by_user, (*DAEMONS_BY, *RANKS_BY)):
        return {}
    # The library binds IPv6 sockets to an address that other hosts cannot reach.
    return {bind_address.TOWARDS: hosts.address, "OMPI_MCA_btl_tcp_disable_family": "6"}


def mpi_environment(hosts: Hosts, by_user: Set[str]) -> dict[str, str]:
    """Returns the environment variables that control how MPI sends large messages. Parameters for TCP and for
    collectives that the user has set are not overridden; `by_user` contains their names."""
    sending = {f"OMPI_MCA_{name}": value for name, value in BOTH_WAYS.items() if name not in by_user}
    places = [place for place in hosts.places if place.workers]
    if len(places) < RING_FROM_HOSTS or any(name.startswith("coll") for name in by_user):
        return sending
    return sending | {
        "OMPI_MCA_coll": "^han",
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_dynamic_rules_filename": str(ALLREDUCE_RULES),
    }


def _has_any(by_user: Set[str], beginnings: tuple[str, ...]) -> bool:
    return any(name.startswith(beginnings) for name in by_user)
