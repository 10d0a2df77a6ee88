"""Finds the addresses at which processes listen, from the kernel's lists, also in other network namespaces."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import psutil

LISTEN = "0A"


class Socket(NamedTuple):
    """A listening TCP socket. An IPv4 address on an IPv6 socket is given as IPv4."""

    address: str
    port: int


def with_descendants(process: psutil.Process) -> list[psutil.Process]:
    """Returns a run's driver and all processes that it has started on its machine."""
    return [process, *process.children(recursive=True)]


def listening(processes: Iterable[psutil.Process]) -> list[Socket]:
    """Returns the sockets of all these processes."""
    return [found for process in processes for found in _of(process)]


def _of(process: psutil.Process) -> list[Socket]:
    inodes = set()
    with contextlib.suppress(OSError):  # the process has ended meanwhile
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(descriptor))
        tables = [Path(f"/proc/{process.pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
        lines = [line.split() for table in tables for line in table.splitlines()]
        return [_read(line[1]) for line in lines if line[3] == LISTEN and f"socket:[{line[9]}]" in inodes]
    return []


def _read(text: str) -> Socket:
    """Parses «0100007F:1F90»: 32-bit words in the machine's byte order, then the port."""
    address, port = text.split(":")
    words = bytes.fromhex(address)
    packed = b"".join(words[at : at + 4][::-1] for at in range(0, len(words), 4))
    if len(packed) == 4:
        return Socket(socket.inet_ntop(socket.AF_INET, packed), int(port, 16))
    six = ipaddress.IPv6Address(packed)
    return Socket(str(six.ipv4_mapped or six), int(port, 16))
