"""A port that stays free for whoever is going to listen on it."""

from __future__ import annotations

import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
TRIALS = 100


def pick_free_port() -> int:
    """One that the kernel gives nobody who asks for any: such a one could be taken before it is listened on."""
    least = int(RANGE.read_text().split()[0])
    for _ in range(TRIALS):
        port = random.randrange(least // 2, least)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no port below {least} is free")
