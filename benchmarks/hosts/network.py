"""Emulates several hosts on one machine. Each host is a network namespace with a link of a given speed to a bridge.

The bridge and the links are in namespaces that `enter` makes for this process, so the machine's own interfaces do not
change. The kernel removes the namespaces when the last process in them ends in any way.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

INSIDE = "PARALLAX_BENCH_NETWORK"  # this variable is set in processes in a separate network
BRIDGE, INTERFACE = "br0", "e0"
DRIVER_ADDRESS = "10.9.0.1"
MAX_HOSTS = 200
HOLDER = "hostname {name} && echo ready && exec cat"
TIMEOUT_SECS = 10.0


class NoNetwork(Exception):
    """Raised if hosts cannot be made here. The message names the cause."""


@dataclass(frozen=True)
class Link:
    """The link between a host and the bridge: its speed each way in megabits per second, and the delay of the packets
    that the host sends, in microseconds."""

    mbit: int
    latency_us: int = 0

    @property
    def burst_bytes(self) -> int:
        """The burst size in bytes: the bytes of 10 ms at the link's speed, but at least 256 KiB."""
        return max(256 * 1024, self.mbit * 1_000_000 // 8 // 100)


@dataclass(frozen=True)
class Host:
    """A namespace that the process `pid` keeps alive."""

    number: int
    pid: int

    @property
    def name(self) -> str:
        """The host's name."""
        return f"h{self.number}"

    @property
    def outer_interface(self) -> str:
        """The interface at the bridge's end of the host's link."""
        return f"v{self.number}"

    @property
    def address(self) -> str:
        """The host's address on the bridge."""
        return f"10.9.0.{10 + self.number}"


def bridge_commands() -> list[list[str]]:
    """Returns the commands that make a bridge with the driver's address. The driver's own traffic is not limited."""
    return [
        ["ip", "link", "set", "lo", "up"],
        ["ip", "link", "add", BRIDGE, "type", "bridge"],
        ["ip", "address", "add", f"{DRIVER_ADDRESS}/24", "dev", BRIDGE],
        ["ip", "link", "set", BRIDGE, "up"],
    ]


def host_commands(host: Host, link: Link) -> list[list[str]]:
    """Returns the commands that join a host to the bridge and limit both ends of its link to the link's speed."""
    outer = host.outer_interface
    inside = enter_host(host.pid)
    shape = ["tbf", "rate", f"{link.mbit}mbit", "burst", str(link.burst_bytes), "latency", "100ms"]
    commands = [
        ["ip", "link", "add", outer, "type", "veth", "peer", "name", INTERFACE, "netns", str(host.pid)],
        ["ip", "link", "set", outer, "master", BRIDGE, "up"],
        ["tc", "qdisc", "add", "dev", outer, "root", *shape],
        [*inside, "ip", "link", "set", "lo", "up"],
        [*inside, "ip", "address", "add", f"{host.address}/24", "dev", INTERFACE],
        [*inside, "ip", "link", "set", INTERFACE, "up"],
        [*inside, "tc", "qdisc", "add", "dev", INTERFACE, "root", "handle", "1:", *shape],
    ]
    if link.latency_us:
        delay = ["netem", "delay", f"{link.latency_us}us", "limit", "100000"]
        commands.append([*inside, "tc", "qdisc", "add", "dev", INTERFACE, "parent", "1:", *delay])
    return commands


def enter_host(pid: int) -> list[str]:
    """Returns the prefix that runs a command on the host that the process `pid` keeps alive."""
    return ["nsenter", "--target", str(pid), "--net", "--uts"]


class Network:
    """A context manager that makes `count` hosts. Raises NoNetwork if a host cannot be made."""

    def __init__(self, count: int, link: Link) -> None:
        self._count = count
        self._link = link
        self._holders: list[subprocess.Popen[str]] = []
        self.hosts: list[Host] = []

    def __enter__(self) -> Self:
        try:
            for command in bridge_commands():
                _run(command)
            for number in range(1, self._count + 1):
                host = self._hold(number)
                self.hosts.append(host)
                for command in host_commands(host, self._link):
                    _run(command)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()
        subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True, check=False)

    def _hold(self, number: int) -> Host:
        # The holder ends when this process ends, because that closes its standard input.
        holder = subprocess.Popen(
            ["unshare", "--net", "--uts", "sh", "-c", HOLDER.format(name=f"h{number}")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._holders.append(holder)
        assert holder.stdout is not None and holder.stderr is not None
        if holder.stdout.readline() != "ready\n":
            raise NoNetwork(f"host {number} cannot be made: {holder.stderr.read().strip()}")
        return Host(number, holder.pid)


def enter(argv: Sequence[str]) -> None:
    """Replaces this process with `argv` in a separate network, without root if the kernel allows it.

    Returns if the process is already in a separate network. Raises NoNetwork.
    """
    if is_inside():
        return
    reason = missing()
    if reason is not None:
        raise NoNetwork(reason)
    unshare = unshare_command()
    os.environ[INSIDE] = "1"
    os.execvp(unshare[0], [*unshare, *argv])


def is_inside() -> bool:
    """Returns whether this process is in a network that `enter` made."""
    return INSIDE in os.environ


def unshare_command() -> list[str]:
    """Returns the prefix that runs a command in a separate network."""
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *as_root, "--net"]


def missing() -> str | None:
    """Returns the reason why networks cannot be created on this machine, or None if they can."""
    tools = [tool for tool in ("ip", "tc", "unshare", "nsenter") if shutil.which(tool) is None]
    if tools:
        return f"{', '.join(tools)} cannot be found (packages iproute2 and util-linux)"
    trial = [*unshare_command(), "unshare", "--net", "--uts", "tc", "qdisc", "add", "dev", "lo", "root"]
    tried = subprocess.run(
        [*trial, "tbf", "rate", "1mbit", "burst", "256kb", "latency", "100ms"], capture_output=True, text=True
    )
    return None if tried.returncode == 0 else f"no network namespace can be made: {tried.stderr.strip()}"


def has_netem() -> bool:
    """Returns whether this kernel can delay packets."""
    trial = [*unshare_command(), "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


def agent_command(hosts: Sequence[Host]) -> str:
    """Returns the command that replaces ssh between these hosts, as a value for `cluster.remote_shell`."""
    where = ",".join(f"{host.address}={host.pid}" for host in hosts)
    return f"{sys.executable} -I -S {Path(__file__).with_name('agent.py')} {where}"


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECS, check=False)
    if done.returncode:
        raise NoNetwork(f"{' '.join(command)}: {done.stderr.strip()}")
