"""Lets ranks that were started without mpirun find each other through Horovod's own store, which rank 0 runs."""

import os

import psutil

from parallax_runner.launch.control.client import ControlClient
from parallax_runner.rewrite.exchange import collectives


def find_ranks(client: ControlClient) -> None:
    """Sets the environment variables that Horovod needs to connect the ranks through Gloo. The launcher has already set
    the variables with each rank's numbers.

    Gloo listens only at this host's address on the route to the driver. This function blocks until rank 0 runs the
    store.
    """
    if os.environ["HOROVOD_RANK"] == "0":
        client.publish_store(f"{client.own_address}:{collectives.start_store()}")
    host, _, port = client.store_address().rpartition(":")
    os.environ |= {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
        "HOROVOD_GLOO_IFACE": interface_of(client.own_address),
    }


def interface_of(address: str) -> str:
    """Returns the name of the network interface that has an address. Raises LookupError if no interface has this
    address."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return name
    raise LookupError(f"no network interface of this host has the address {address}")
