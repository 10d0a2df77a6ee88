"""Picks a TCP port that is free now. Another program may take it before it is used: see ControlClient.port_taken."""

import socket


def pick_port(host: str) -> int:
    """Returns a free port on `host`, which must be an address of this machine. Raises OSError if it is not."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
