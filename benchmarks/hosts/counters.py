"""Reads the kernel's counters of bytes that the hosts' interfaces have sent and received."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Traffic:
    """The bytes of one interface since it was created."""

    received_bytes: int
    sent_bytes: int


def read(pid: int, interface: str) -> Traffic:
    """Returns the counters of an interface in the network namespace of a process. Raises OSError or ValueError."""
    return parse(Path(f"/proc/{pid}/net/dev").read_text(encoding="ascii"), interface)


def parse(text: str, interface: str) -> Traffic:
    """Returns an interface's counters from the text of /proc/net/dev. Raises ValueError if the interface is missing."""
    found = parse_all(text)
    if interface not in found:
        raise ValueError(f"no interface {interface} among the counters")
    return found[interface]


def parse_all(text: str) -> dict[str, Traffic]:
    """Returns each interface's counters, by the interface's name, from the text of /proc/net/dev."""
    lines = [line.partition(":") for line in text.splitlines() if ":" in line]
    fields = {name.strip(): numbers.split() for name, _, numbers in lines}
    return {name: Traffic(received_bytes=int(each[0]), sent_bytes=int(each[8])) for name, each in fields.items()}
