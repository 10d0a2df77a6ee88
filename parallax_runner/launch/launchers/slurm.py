"""The launcher `slurm`: within an allocation, workers by mpirun and servers by srun; no ssh."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import subprocess
from contextlib import ExitStack
from typing import Self

from parallax_runner.config.cluster_size import size_cluster
from parallax_runner.config.resource_info import is_this_machine
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.slurm_allocation import job_id
from parallax_runner.errors import LaunchError
from parallax_runner.launch import bind_address
from parallax_runner.launch.control import wire
from parallax_runner.launch.hosts import Hosts, Place, way_to
from parallax_runner.launch.job import Command, Job
from parallax_runner.launch.launchers.hosts import OverHosts, places_of
from parallax_runner.launch.mpirun.launcher import options_of_user
from parallax_runner.plan.plan import Plan

# The srun by which mpirun starts its daemons must not wait for CPUs that this process's own step has.
OVERLAP = {"SLURM_OVERLAP": "1"}


class Slurm(OverHosts):
    """Ranks fill the nodes in order; server i is on node i. Of what Slurm sends to end a job, only the driver takes
    notice."""

    @classmethod
    def from_config(cls, config: RunConfig, plan: Plan) -> Self:
        """Raises LaunchError outside an allocation, and where the way to another node is not known."""
        if job_id() is None:
            raise LaunchError(
                "cluster.launcher=slurm: this process is in no job of Slurm: SLURM_JOB_ID is not set; start it by "
                "sbatch or salloc"
            )
        return cls(allocated_hosts(config, plan), options_of_user(config))

    @classmethod
    def unfit(cls, config: RunConfig, comm: str) -> str | None:
        """Its hosts are Slurm's, so a configuration cannot be wrong about them."""
        return None

    def workers(self, job: Job, cleanup: ExitStack) -> list[Command]:
        """mpirun, whose daemons Open MPI starts by an srun of its own."""
        return [command._replace(env=command.env | OVERLAP) for command in super().workers(_deaf(job), cleanup)]

    def servers(self, job: Job) -> list[Command]:
        """By srun, but for those of this node."""
        return super().servers(_deaf(job))


def _deaf(job: Job) -> Job:
    return dataclasses.replace(job, env={**job.env, wire.DEAF: "1"})


def allocated_hosts(config: RunConfig, plan: Plan) -> Hosts:
    """Where the processes of a plan go in this allocation. Raises LaunchError."""
    places = [_on_node(place) for place in places_of(size_cluster(config), plan)]
    others = [place.name for place in places if not place.is_here]
    # Open MPI's daemons refuse to use the loopback interface alone.
    address, network = _way_to_node(others[0]) if others else (bind_address.LOOPBACK, None)
    network = None if address == bind_address.LOOPBACK else network
    return Hosts(tuple(places), config.cluster.remote_shell, address, network, is_allocated=True)


def _on_node(place: Place) -> Place:
    """Slurm's name of a node need not be the name of its host."""
    here = os.environ.get("SLURMD_NODENAME")
    return dataclasses.replace(place, is_here=place.name == here if here else is_this_machine(place.name))


def _way_to_node(name: str) -> tuple[str, str | None]:
    """As `way_to`; where no name server knows the node, by the address that Slurm has of it."""
    try:
        socket.getaddrinfo(name, None, socket.AF_INET)
    except OSError:
        name = _slurms_address(name)
    return way_to(name)


def _slurms_address(name: str) -> str:
    argv = ["scontrol", "show", "node", "--oneliner", name]
    try:
        shown = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return name
    found = re.search(r"\bNodeAddr=(\S+)", shown)
    return name if found is None else found[1]
