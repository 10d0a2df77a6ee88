"""Which nodes of a Slurm job can be used now."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Sequence

from parallax_runner.config.resource_info import Host, is_this_machine, parse_hosts
from parallax_runner.launch.hosts import way_to
from parallax_runner.launch.launchers.host_membership import HostMembership
from parallax_runner.launch.launchers.slurm import allocation

ANSWER_SECS = 60.0
# A line of `scontrol show job`.
NODE_LIST = re.compile(r"^ +NodeList=(\S+)", re.MULTILINE)


class NodeMembership(HostMembership):
    """The nodes that the job still has, if they answer. Slurm's variables name the nodes with which the job began."""

    def _hosts(self) -> Sequence[Host]:
        lines = allocation.host_lines(self._config.cluster)
        hosts = parse_hosts(lines, where="SLURM_JOB_NODELIST")
        names = nodes_of_job(allocation.job_id())
        return hosts if names is None else [host for host in hosts if host.name in names]

    def _is_here(self, host: Host) -> bool:
        return is_this_node(host.name)

    def _address_towards(self, name: str) -> str:
        return way_to_node(name)[0]


def nodes_of_job(job: str | None) -> frozenset[str] | None:
    """Returns the nodes that a job has now. Returns None if Slurm's controller does not answer, for example while it
    restarts."""
    try:
        argv = ["scontrol", "show", "job", str(job)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=ANSWER_SECS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = None if done.returncode else NODE_LIST.search(done.stdout)
    return None if found is None else frozenset(allocation.expand(found[1]))


def is_this_node(name: str) -> bool:
    """Returns whether a node is the one of this process. Slurm's node name may differ from the host name."""
    here = os.environ.get("SLURMD_NODENAME")
    return name == here if here else is_this_machine(name)


def way_to_node(name: str) -> tuple[str, str | None]:
    """Like `way_to`, but uses Slurm's address for the node if its name cannot be looked up."""
    try:
        socket.getaddrinfo(name, None, socket.AF_INET)
    except OSError:
        name = _slurms_address(name)
    return way_to(name)


def _slurms_address(name: str) -> str:
    argv = ["scontrol", "show", "node", name]
    try:
        shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return name
    found = re.search(r"^ +NodeAddr=(\S+)", shown, re.MULTILINE)
    return name if found is None else found[1]
