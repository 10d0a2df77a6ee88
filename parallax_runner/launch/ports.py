"""Picks a TCP port that is free now. Another program can take the port before it is used: see
ControlClient.port_taken."""

import socket


def pick_port(host: str) -> int:
    """Returns a free port on `host`. Raises OSError if `host` is not an address of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
