"""Runs on two hosts that are namespaces of this machine: `python -m tests.integration.two_hosts FOLDER [overrides]`.

Prints as JSON the results of two runs: one whose driver was killed, and one with a host that lost its link.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.hosts import agent, network
from benchmarks.hosts.cluster import Cluster
from benchmarks.hosts.network import Host, Link, Network
from tests.integration.listening import listening, with_descendants
from tests.integration.runs import Running

END_SECS = 75
# As with ssh, a process on a host is not the driver's own child: the kernel does not end it with the driver.
DETACHED = '#!/bin/sh\nexec 3<&0\n{agent} "$@" <&3 3<&- &\nwait $!\n'


def processes_on(hosts: Sequence[Host]) -> list[str]:
    """Returns command lines of all processes in the hosts' networks, except those that keep the networks."""
    found = []
    for process in found_on(hosts):
        with contextlib.suppress(psutil.Error):  # gone meanwhile
            found.append(" ".join(process.cmdline()))
    return found


def found_on(hosts: Sequence[Host]) -> list[psutil.Process]:
    """Returns all processes in the hosts' networks, except those that keep the networks."""
    networks = {os.readlink(f"/proc/{host.pid}/ns/net") for host in hosts}
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.pid not in {host.pid for host in hosts}
                and os.readlink(f"/proc/{process.pid}/ns/net") in networks
            ):
                found.append(process)
        except (OSError, psutil.Error):
            continue  # gone meanwhile
    return found


def wait_for_nobody(hosts: Sequence[Host]) -> list[str]:
    """Waits until no process is left; returns those that remain."""
    deadline = time.monotonic() + END_SECS
    while processes_on(hosts) and time.monotonic() < deadline:
        time.sleep(0.2)
    return processes_on(hosts)


def addresses_of(processes: Iterable[psutil.Process]) -> list[str]:
    """Returns the addresses at which these processes listen."""
    return sorted({one.address for one in listening(processes)})


def main(folder: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Makes both runs, one after the other."""
    with Network(2, Link(1000)) as made:
        hosts = tuple(made.hosts)
        shell = folder / "shell"
        shell.write_text(DETACHED.format(agent=network.agent_command(hosts)))
        shell.chmod(0o755)
        given = [*Cluster(2, hosts).overrides(), f"cluster.remote_shell={shell}", "tracking=off", *overrides]
        given = [word for word in given if agent.__file__ not in word]

        def start(name: str, *more: str) -> Running:
            return Running([*given, *more], run_dir=folder / name, cwd=folder / f"{name}_cwd", python_path=None)

        killed = start("killed")
        killed.wait_for_step()
        there = processes_on(hosts)
        addresses = {host.name: addresses_of(found_on([host])) for host in hosts}
        addresses["driver"] = addresses_of(with_descendants(psutil.Process(killed.process.pid)))
        killed.process.kill()
        killed.process.wait()
        left = wait_for_nobody(hosts)

        cut = start("cut", "train.hang_timeout_secs=10")
        cut.wait_for_step()
        subprocess.run(["ip", "link", "set", "v2", "down"], check=True)
        ended = cut.wait()
        # Cut off, an mpirun daemon waits until TCP gives up, a quarter of an hour: it ends once the link is up again.
        subprocess.run(["ip", "link", "set", "v2", "up"], check=True)
        return {
            "there": there,
            "addresses": addresses,
            "left_by_killed": left,
            "exit_status": ended.exit_status,
            "secs": ended.secs,
            "error": ended.summary["error"],
            "stderr": ended.stderr,
            "left_by_cut": wait_for_nobody(hosts),
        }


if __name__ == "__main__":
    network.enter([sys.executable, "-m", "tests.integration.two_hosts", *sys.argv[1:]])
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2:])))
