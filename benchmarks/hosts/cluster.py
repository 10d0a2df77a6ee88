"""The hosts of a benchmark. Starts our runs and the peers on the hosts, and reads the hosts' interface counters."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.hosts import counters
from benchmarks.hosts.network import INTERFACE, Host, Link, Network, agent_command
from parallax_runner.launch import guard
from parallax_runner.launch.hosts import Place, find_hosts
from parallax_runner.launch.job import thread_environment
from parallax_runner.launch.mpirun.command import ALLOW_ROOT, SHARE_CORES, YIELD_WHEN_IDLE, find_mpirun
from parallax_runner.launch.mpirun.over_hosts import mpirun_options
from parallax_runner.launch.remote import passed_on

# Ports of the peers' servers and workers on separate hosts. On loopback, free ports are used.
SERVER_PORT, WORKER_PORT = 2222, 2223
# The hosts share this machine's cores, so a rank that polls for messages continuously would slow down other ranks. On
# separate machines, it would not. All ranks, ours and the peers', therefore sleep 0.5 ms between polls.
SLEEP_WHEN_IDLE = (
    *("--mca", "threads_pthreads_yield_strategy", "nanosleep"),
    *("--mca", "threads_pthreads_nanosleep_time", "500000"),
)


@dataclass(frozen=True)
class Cluster:
    """`count` hosts with links of `link_mbit` Mbit/s, or, if `hosts` is empty, `count` workers on loopback."""

    count: int
    hosts: tuple[Host, ...] = ()
    link_mbit: int = 0

    def overrides(self) -> list[str]:
        """Returns the overrides for one of our runs, with a worker on each host, and a server if the mode has any."""
        if not self.hosts:
            return [f"cluster.workers={self.count}", f"cluster.servers={self.count}"]
        lines = ",".join(f"'{host.address}: 0'" for host in self.hosts)
        return [
            f"cluster.resource_info=[{lines}]",
            f"cluster.remote_shell='{agent_command(self.hosts)}'",
            f"comm.mpi.mpirun_options='{shlex.join(SLEEP_WHEN_IDLE)}'",
        ]

    def mpirun(self, argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """Returns the command that starts `argv` once on each host, and its environment variables. Ranks are started
        like our own."""
        env = thread_environment(1)
        placed: list[str] = []
        if self.hosts:
            found = find_hosts([Place(host.address, 1, False) for host in self.hosts], agent_command(self.hosts))
            assert found is not None
            placed = [*SLEEP_WHEN_IDLE, *mpirun_options(found)]
        names = dict.fromkeys((*env, *passed_on()))
        given = [word for name in names for word in ("-x", name)]
        command = [find_mpirun(), "-np", str(self.count), *YIELD_WHEN_IDLE, *SHARE_CORES, *placed, *given]
        return [*command, *argv], env | ALLOW_ROOT

    def on(self, number: int, argv: Sequence[str]) -> list[str]:
        """Returns the command that runs `argv` with one thread on host `number`, counted from 0."""
        env = thread_environment(1) | passed_on()
        words = ["exec", "env", *(f"{name}={value}" for name, value in env.items()), *argv]
        if not self.hosts:
            return words[1:]
        return [*shlex.split(agent_command(self.hosts)), self.hosts[number].address, shlex.join(words)]

    def addresses(self) -> tuple[list[str], list[str]]:
        """Returns the addresses of a peer's workers and servers, one of each per host."""
        if self.hosts:
            workers, servers = (
                [f"{host.address}:{port}" for host in self.hosts] for port in (WORKER_PORT, SERVER_PORT)
            )
            return workers, servers
        ports = free_ports(2 * self.count)
        named = [f"127.0.0.1:{port}" for port in ports]
        return named[: self.count], named[self.count :]

    def sent_bytes(self) -> tuple[int, ...]:
        """Returns the bytes that each host's interface has sent so far, or an empty tuple on loopback."""
        return tuple(counters.read(host.pid, INTERFACE).sent_bytes for host in self.hosts)

    def carried_bytes(self) -> tuple[int, ...]:
        """Returns the bytes sent and received so far over each host's link, all read at the bridge at the same time."""
        if not self.hosts:
            return ()
        there = counters.parse_all(Path("/proc/self/net/dev").read_text(encoding="ascii"))
        ends = [there[host.outer_interface] for host in self.hosts]
        return tuple(number for end in ends for number in (end.received_bytes, end.sent_bytes))


@contextmanager
def shaped(count: int, link: Link) -> Iterator[Cluster]:
    """Makes `count` hosts that are connected by links. Raises NoNetwork."""
    with Network(count, link) as network:
        yield Cluster(count, tuple(network.hosts), link.mbit)


def free_ports(count: int) -> list[int]:
    """Returns `count` different ports that are currently free."""
    with_open = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in with_open]
    for one in with_open:
        one.close()
    return ports


def python(module: str, *arguments: str) -> list[str]:
    """Returns the command line that runs a module."""
    return [sys.executable, "-m", module, *arguments]


def guarded(argv: Sequence[str], last_signal: signal.Signals) -> list[str]:
    """Wraps `argv` so that the kernel sends `last_signal` to its process when this process ends in any way."""
    return [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(int(last_signal)), *argv]
