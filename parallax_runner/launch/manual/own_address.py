"""The address by which another machine reaches this one, as the kernel's routes tell it."""

from __future__ import annotations

import socket

from parallax_runner.launch import bind_address

# Nothing is sent there: the kernel only says by which of its addresses it would (RFC 5737).
ELSEWHERE = ("192.0.2.1", 9)


def towards(host: str, port: int) -> str | None:
    """From which address this machine would send there; nobody needs to listen. None where there is no way."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def on_the_way_out() -> str:
    """The loopback address where the machine has no network."""
    return towards(*ELSEWHERE) or bind_address.LOOPBACK
