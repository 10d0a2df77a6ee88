"""Lets ranks that were started without mpirun find each other through Horovod's own store, which rank 0 runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil

from parallax_runner.collectives.backend_ops import ListenOn, Meeting


@contextmanager
def ranks_found(meeting: Meeting, listen_on: ListenOn, start_store: Callable[[], int]) -> Iterator[None]:
    """Sets the variables that make Horovod connect the ranks through Gloo. Horovod must be initialized within the
    block. The launcher must already have chosen Gloo and set the variables that contain this rank's position.

    Gloo listens only on this host's address on the route to the driver. Blocks until rank 0 runs the store, which
    `start_store` starts on a port that it returns. Raises LookupError if no interface has the address.
    """
    if os.environ["HOROVOD_RANK"] == "0":
        meeting.publish_store(f"{meeting.own_address}:{start_store()}")
    host, _, port = meeting.store_address().rpartition(":")
    os.environ |= {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_GLOO_IFACE": interface_of(meeting.own_address),
    }
    # Horovod ignores HOROVOD_GLOO_IFACE for its second Gloo device, which binds to the address of the host's name.
    with listen_on(meeting.own_address):
        yield


def interface_of(address: str) -> str:
    """Returns the name of the network interface that has an address. Raises LookupError if no interface has this
    address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return name
    raise LookupError(f"no network interface of this host has the address {address}")
