"""Bytes that the hosts' interfaces have sent and received, as the kernel counts them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Traffic:
    """Of one interface since it is there."""

    received_bytes: int
    sent_bytes: int


def read(pid: int, interface: str) -> Traffic:
    """The counters of an interface in the network namespace of a process. Raises OSError or ValueError."""
    return parse(Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii"), interface)


def parse(text: str, interface: str) -> Traffic:
    """The counters of an interface in what /proc/net/dev shows. Raises ValueError where it is not there."""
    for line in text.splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == interface:
            fields = numbers.split()
            return Traffic(received_bytes=int(fields[0]), sent_bytes=int(fields[8]))
    raise ValueError(f"no interface {interface} among the counters")
