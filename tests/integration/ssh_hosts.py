"""Runs by ssh on two hosts, namespaces of this machine: `python -m tests.integration.ssh_hosts FOLDER [overrides]`.

Prints as JSON the results of the command of docs/clusters.md with `experiment=quick` under each of MODES, with the
bytes that each host has sent meanwhile, and of two runs with the overrides: one whose driver was killed, and one
without a login.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.hosts import agent, network
from benchmarks.hosts.cluster import Cluster
from benchmarks.hosts.network import Host, Link, Network
from tests.integration.cluster_page import HOSTS, commands, scripts
from tests.integration.conftest import ENDLESS
from tests.integration.runs import Running
from tests.integration.two_hosts import processes_on, wait_for_nobody

# sshd is not on every user's PATH, and must be called by its absolute path.
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
# The privilege separation folder of sshd.
EMPTY_FOLDER = Path("/run/sshd")
UP_SECS = 20
MODES = ("hybrid", "sharded")
QUICK = ("experiment=quick", "train.steps=20", "train.log_every=1")
SERVER = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
StrictModes no
UsePAM no
PermitRootLogin yes
PidFile none
"""
CLIENT = """
UserKnownHostsFile {folder}/known_hosts
StrictHostKeyChecking accept-new
BatchMode yes
"""


def missing() -> str | None:
    """Returns the reason why such hosts cannot be made here, or None if they can."""
    if SSHD is None or shutil.which("ssh") is None:
        return "ssh or sshd cannot be found (packages openssh-client and openssh-server)"
    if os.geteuid() != 0:
        return "only root can let others log in"
    return network.missing()


@contextlib.contextmanager
def reached_by_ssh(hosts: Sequence[Host], folder: Path) -> Iterator[str]:
    """Yields the remote shell that reaches the hosts, while their sshd run."""
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "server").write_text(SERVER.format(folder=folder))
    (folder / "client").write_text(CLIENT.format(folder=folder))
    EMPTY_FOLDER.mkdir(exist_ok=True)
    servers = [start_sshd(host, folder) for host in hosts]
    shell = f"ssh -F {folder / 'client'} -i {folder / 'key'}"
    try:
        for host in hosts:
            _wait_until_up(shell, host)
        yield shell
    finally:
        for server in servers:
            server.kill()
            server.wait()


def start_sshd(host: Host, folder: Path) -> subprocess.Popen[bytes]:
    """Starts the sshd of a host, whose files `reached_by_ssh` has written to the folder."""
    assert SSHD is not None
    argv = [*network.enter_host(host.pid), SSHD, "-D", "-E", folder / host.name, "-f", folder / "server"]
    return subprocess.Popen(argv)


def _wait_until_up(shell: str, host: Host) -> None:
    deadline = time.monotonic() + UP_SECS
    while True:
        tried = subprocess.run([*shell.split(), host.address, "hostname"], capture_output=True, text=True)
        if tried.stdout == f"{host.name}\n":
            return
        assert time.monotonic() < deadline, tried.stderr
        time.sleep(0.2)


def of_page(hosts: Sequence[Host], cwd: Path) -> list[str]:
    """Returns the arguments of the page's command, and writes the page's list of hosts into the folder."""
    (command,) = commands(HOSTS)
    (lines,) = scripts(HOSTS, {"first.example": hosts[0].address, "second.example": hosts[1].address}, "text")
    cwd.mkdir()
    (cwd / "hosts.txt").write_text(lines)
    python, _, module, *arguments = shlex.split(command)
    assert (python, module) == ("python", "parallax_runner")
    return arguments


def main(folder: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Makes the runs, one after the other."""
    with Network(2, Link(1000)) as made:
        hosts = tuple(made.hosts)
        with reached_by_ssh(hosts, folder) as shell:
            cluster = Cluster(2, hosts)
            given = [word for word in cluster.overrides() if agent.__file__ not in word]
            given += ["tracking=off"]

            def start(name: str, *more: str, shell: str = shell) -> Running:
                arguments = [*given, *more, f"cluster.remote_shell='{shell}'"]
                return Running(arguments, run_dir=folder / name, cwd=folder / f"{name}_cwd", python_path=None)

            quick = {}
            for mode in MODES:
                before = cluster.sent_bytes()
                summary = start(mode, *of_page(hosts, folder / f"{mode}_cwd"), *QUICK, f"comm={mode}").wait().summary
                sent = [after - early for early, after in zip(before, cluster.sent_bytes(), strict=True)]
                quick[mode] = {**summary, "sent_bytes": sent}
            killed = start("killed", *overrides, *ENDLESS)
            killed.wait_for_step()
            there = processes_on(hosts)
            killed.process.kill()
            killed.process.wait()
            closed = shell.replace(str(folder / "key"), str(folder / "host_key"))
            stranger = start("stranger", *overrides, shell=closed).wait()
        return {
            "quick": quick,
            "there": there,
            "left_by_killed": wait_for_nobody(hosts),
            "stranger": stranger.stderr,
        }


if __name__ == "__main__":
    network.enter([sys.executable, "-m", "tests.integration.ssh_hosts", *sys.argv[1:]])
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2:])))
