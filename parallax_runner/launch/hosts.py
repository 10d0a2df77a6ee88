"""On which hosts the processes of a run go, and by which address of this machine they reach the driver."""

from __future__ import annotations

import ipaddress
import shlex
import socket
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

import psutil

from parallax_runner.errors import LaunchError
from parallax_runner.launch import bind_address

# Nothing is sent there: the kernel only says which way it would go.
DISCARD_PORT = 9
# For messages of a MB and more Open MPI's own choice takes up to 1.8 times as long over TCP as a ring. With several
# ranks a host it goes by way of one of them (coll/han), slower still from three hosts on (docs/design/0032).
ALLREDUCE_RULES = Path(__file__).with_name("allreduce.rules")
RING_FROM_HOSTS = 3
# By itself Open MPI hands a whole large message to TCP as soon as the receiver has asked for it. What its sender then
# asks for waits behind it, and a link that could be used both ways is used one way at a time (docs/design/0032).
BOTH_WAYS = {"btl_tcp_flags": "send", "btl_tcp_links": "2"}

# With one of these a user has daemons, or ranks, send by interfaces of the user's own choice.
DAEMONS_BY = ("oob_tcp_if", "oob_tcp_include", "oob_tcp_exclude")
RANKS_BY = ("btl_tcp_if", "btl_tcp_disable_family")


@dataclass(frozen=True)
class Place:
    """A host and how many workers run there; `is_here`: it is this machine, and needs no remote shell."""

    name: str
    workers: int
    is_here: bool


@dataclass(frozen=True)
class Hosts:
    """The hosts of a run, at least one of which is another machine. Ranks fill them in order; server i is on host i.

    `remote_shell`, split as a shell does, runs a command on a host. `address` is this machine's own, at which the
    others reach it; `network` ("10.0.0.0/24") is the one that it shares with them, None where a router is between.
    """

    places: tuple[Place, ...]
    remote_shell: str
    address: str
    network: str | None

    @property
    def remote(self) -> tuple[str, ...]:
        """The names of the other machines."""
        return tuple(place.name for place in self.places if not place.is_here)

    def of_server(self, index: int) -> str | None:
        """The host on which a server is to be started by the remote shell, None for this machine."""
        place = self.places[index % len(self.places)]
        return None if place.is_here else place.name

    def mpirun_options(self, by_user: Set[str] = frozenset()) -> list[str]:
        """What mpirun needs to know of them. Only this machine starts daemons, so that no host needs to reach another
        by the remote shell; of several interfaces MPI takes the one by which the hosts reach this machine. `by_user`
        has the names of the user's own parameters."""
        hosts = ",".join(f"{place.name}:{place.workers}" for place in self.places if place.workers)
        options = ["--host", hosts, "--map-by", "slot"]
        options += ["--prtemca", "plm_ssh_agent", self.remote_shell, "--prtemca", "plm_ssh_no_tree_spawn", "1"]
        # Open MPI refuses a parameter that is given twice.
        if self.network is not None and not _has_any(by_user, DAEMONS_BY):
            options += ["--prtemca", "oob_tcp_if_include", self.network]
        if self.network is not None and not _has_any(by_user, RANKS_BY):
            options += ["--mca", "btl_tcp_if_include", self.network]
        if self.bind_environment(by_user) and "prte_launch_agent" not in by_user:
            env = bind_address.preload({}) | self.bind_environment(by_user)
            given = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
            options += ["--prtemca", "prte_launch_agent", f"env {given} prted"]
        return options

    def bind_environment(self, by_user: Set[str]) -> dict[str, str]:
        """What keeps mpirun, its daemons and ranks to the network of `mpirun_options`; empty where others may be used.

        Raises LaunchError where other hosts cannot load the library that does it.
        """
        if not bind_address.is_readable_elsewhere():
            raise LaunchError(
                f"{bind_address.LIBRARY}: the dynamic linker of another host cannot be given a path with a blank or a "
                "colon: runs on several hosts need this project in a folder without them"
            )
        if self.network is None or _has_any(by_user, (*DAEMONS_BY, *RANKS_BY)):
            return {}
        # The library gives IPv6 sockets no address that another host reaches.
        return {bind_address.TOWARDS: self.address, "OMPI_MCA_btl_tcp_disable_family": "6"}

    def mpi_environment(self, by_user: Set[str]) -> dict[str, str]:
        """How MPI sends large messages, as far as the user says nothing of TCP, or of collectives: `by_user` has the
        names of the user's own parameters."""
        sending = {f"OMPI_MCA_{name}": value for name, value in BOTH_WAYS.items() if name not in by_user}
        hosts = [place for place in self.places if place.workers]
        if len(hosts) < RING_FROM_HOSTS or any(name.startswith("coll") for name in by_user):
            return sending
        return sending | {
            "OMPI_MCA_coll": "^han",
            "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
            "OMPI_MCA_coll_tuned_dynamic_rules_filename": str(ALLREDUCE_RULES),
        }


def _has_any(by_user: Set[str], beginnings: tuple[str, ...]) -> bool:
    return any(name.startswith(beginnings) for name in by_user)


def find_hosts(places: Sequence[Place], remote_shell: str) -> Hosts | None:
    """None where all is on this machine. Raises LaunchError where a host's name has no address."""
    remote = next((place.name for place in places if not place.is_here), None)
    if remote is None:
        return None
    address, network = _way_to(remote)
    return Hosts(tuple(places), remote_shell, address, network)


def _way_to(host: str) -> tuple[str, str | None]:
    """This machine's address on the way to a host, and the network of that address if the host is in it."""
    try:
        target = str(socket.getaddrinfo(host, DISCARD_PORT, socket.AF_INET, socket.SOCK_DGRAM)[0][4][0])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((target, DISCARD_PORT))
            own = probe.getsockname()[0]
    except OSError as error:
        raise LaunchError(
            f"host {host!r} of cluster.resource_info cannot be reached: {error.strerror}; expected a name that this "
            "machine can look up, or an IPv4 address to which it has a way"
        ) from error
    masks = [one.netmask for addresses in psutil.net_if_addrs().values() for one in addresses if one.address == own]
    if not masks or masks[0] is None:
        return own, None
    network = ipaddress.ip_network(f"{own}/{masks[0]}", strict=False)
    return own, str(network) if ipaddress.ip_address(target) in network else None
