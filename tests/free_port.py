"""Picks ports that stay free until the test listens on them."""

from __future__ import annotations

import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
TRIALS = 100


def pick_free_port() -> int:
    """Returns a port outside the kernel's ephemeral range, because a port in that range could be taken before it is
    used."""
    least = int(RANGE.read_text().split()[0])
    for _ in range(TRIALS):
        port = random.SystemRandom().randrange(least // 2, least)
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))  # as TensorFlow's servers do
            except OSError:
                continue
            return port
    raise AssertionError(f"no port below {least} is free")


def pick_free_ports(count: int) -> list[int]:
    """Returns ports that differ from each other."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(pick_free_port())
    return list(ports)
