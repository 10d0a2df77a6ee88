"""The address at which another machine reaches this machine, according to the kernel's routes."""

from __future__ import annotations

import socket

from parallax_runner.launch import bind_address

# Nothing is sent to this address (RFC 5737). The kernel only reports the local address from which it would send.
ELSEWHERE = ("192.0.2.1", 9)


def towards(host: str, port: int) -> str | None:
    """Returns the address from which this machine would send to a host, or None if there is no route. No process needs
    to listen there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def on_the_way_out() -> str:
    """Returns the address from which this machine would send to the internet, or the loopback address if it has no
    network."""
    return towards(*ELSEWHERE) or bind_address.LOOPBACK
