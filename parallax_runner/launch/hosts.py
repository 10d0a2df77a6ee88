"""The hosts where the processes of a run are started, and this machine's address, which the processes use to reach the
driver."""

from __future__ import annotations

import ipaddress
import itertools
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from parallax_runner.errors import LaunchError

# Nothing is sent to this port. It is only used to learn from the kernel which route a packet would take.
DISCARD_PORT = 9


@dataclass(frozen=True)
class Place:
    """A host and the number of workers on it. `is_here` marks this machine, which needs no remote shell."""

    name: str
    workers: int
    is_here: bool


@dataclass(frozen=True)
class Hosts:
    """The hosts of a run, including at least one other machine. Ranks fill the hosts in order. Server i runs on host i
    modulo the number of hosts.

    `remote_shell` is the command that runs other commands on a host; it is split into words like a shell command.
    `address` is the address at which the other hosts reach this machine. `network` ("10.0.0.0/24") is the network that
    this machine shares with the other hosts, or None if there is a router between them. `is_allocated` means that a
    batch system, not the remote shell, starts mpirun's daemons on the hosts.
    """

    places: tuple[Place, ...]
    remote_shell: str
    address: str
    network: str | None
    is_allocated: bool = False

    @property
    def remote(self) -> tuple[str, ...]:
        """The names of the other machines."""
        return tuple(place.name for place in self.places if not place.is_here)

    def of_worker(self, rank: int) -> Place:
        """Returns the place where a rank runs."""
        ends = itertools.accumulate(place.workers for place in self.places)
        return next(place for place, end in zip(self.places, ends, strict=True) if rank < end)

    def of_server(self, index: int) -> str | None:
        """Returns the host where the remote shell starts server `index`, or None if the server is on this machine."""
        place = self.places[index % len(self.places)]
        return None if place.is_here else place.name


def find_hosts(places: Sequence[Place], remote_shell: str) -> Hosts | None:
    """Returns the hosts, or None if all places are on this machine. Raises LaunchError if there is no route to the
    first other host."""
    remote = next((place.name for place in places if not place.is_here), None)
    if remote is None:
        return None
    address, network = way_to(remote)
    return Hosts(tuple(places), remote_shell, address, network)


def way_to(host: str) -> tuple[str, str | None]:
    """Returns the address from which this machine sends to a host. Also returns the network of that address if the host
    is on the same network, otherwise None.

    Raises LaunchError if the host's name has no address, or if there is no route to the host.
    """
    try:
        target = str(socket.getaddrinfo(host, DISCARD_PORT, socket.AF_INET, socket.SOCK_DGRAM)[0][4][0])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((target, DISCARD_PORT))
            own = probe.getsockname()[0]
    except OSError as error:
        raise LaunchError(
            f"host {host!r} in cluster.resource_info cannot be reached: {error.strerror}; expected a name that this "
            "machine can resolve, or an IPv4 address to which it has a route"
        ) from error
    masks = [one.netmask for addresses in psutil.net_if_addrs().values() for one in addresses if one.address == own]
    if not masks or masks[0] is None:
        return own, None
    network = ipaddress.ip_network(f"{own}/{masks[0]}", strict=False)
    return own, str(network) if ipaddress.ip_address(target) in network else None
