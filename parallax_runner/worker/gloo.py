"""Lets ranks that were started without mpirun find each other through Horovod's own store, which rank 0 runs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from parallax_runner.launch import bind_address
from parallax_runner.launch.control.client import ControlClient
from parallax_runner.rewrite.exchange import collectives


@contextmanager
def ranks_found(client: ControlClient) -> Iterator[None]:
    """Sets the variables that make Horovod connect the ranks through Gloo. Horovod must be initialized within the
    block. The launcher must already have chosen Gloo and set the variables that contain this rank's position.

    Gloo listens only on this host's address on the route to the driver. Blocks until rank 0 runs the store. Raises
    LaunchError if the `bind_address` library is not loaded.
    """
    if os.environ["HOROVOD_RANK"] == "0":
        client.publish_store(f"{client.own_address}:{collectives.start_store()}")
    host, _, port = client.store_address().rpartition(":")
    os.environ |= {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_GLOO_IFACE": interface_of(client.own_address),
    }
    # Horovod ignores HOROVOD_GLOO_IFACE for its second Gloo device, which binds to the address of the host's name.
    with bind_address.host_named(client.own_address):
        yield


def interface_of(address: str) -> str:
    """Returns the name of the network interface that has an address. Raises LookupError if no interface has this
    address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return name
    raise LookupError(f"no network interface of this host has the address {address}")
