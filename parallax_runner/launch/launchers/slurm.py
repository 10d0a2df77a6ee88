"""The `slurm` launcher: within an allocation, mpirun starts workers and srun starts servers. This launcher does not use
ssh."""

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
from parallax_runner.errors import LaunchError, Setting
from parallax_runner.launch import bind_address
from parallax_runner.launch.control import wire
from parallax_runner.launch.hosts import Hosts, Place, way_to
from parallax_runner.launch.job import Command, Job
from parallax_runner.launch.launchers.hosts import OverHosts, places_of
from parallax_runner.launch.mpirun.launcher import options_of_user
from parallax_runner.plan.plan import Plan

# mpirun starts its daemons with srun, which must not wait for the CPUs that the step of this process occupies. If the
# job was submitted with --export=NONE, srun would also start the daemons without this process's environment.
OF_DAEMONS = {"SLURM_OVERLAP": "1", "SLURM_EXPORT_ENV": "ALL"}
# Sites prescribe this variable for srun. The single daemon of a node, and so all its ranks, would get the CPUs of
# one task only.
WITHOUT_CPUS = ("env", "--unset=SRUN_CPUS_PER_TASK")


class Slurm(OverHosts):
    """Fills the nodes with ranks in order. Server i runs on node i modulo the number of nodes. Only the driver acts on
    the signals that Slurm sends to end a job."""

    @classmethod
    def from_config(cls, config: RunConfig, plan: Plan) -> Self:
        """Returns the launcher. Raises LaunchError outside an allocation, or if there is no route to another node."""
        if job_id() is None:
            raise LaunchError("this process is not in a Slurm job (SLURM_JOB_ID is not set)").about(
                Setting("cluster.launcher", "slurm"), remedy="start it with sbatch or salloc"
            )
        return cls(allocated_hosts(config, plan), options_of_user(config))

    @classmethod
    def unfit(cls, config: RunConfig, comm: str) -> str | None:
        """Returns None: Slurm provides the hosts, so the configuration cannot name the wrong ones."""
        return None

    def workers(self, job: Job, cleanup: ExitStack) -> list[Command]:
        """Returns the mpirun command. Open MPI starts its daemons with srun."""
        commands = super().workers(_signals_blocked(job), cleanup)
        return [
            command._replace(argv=[*WITHOUT_CPUS, *command.argv], env=command.env | OF_DAEMONS) for command in commands
        ]

    def servers(self, job: Job) -> list[Command]:
        """Returns the commands of the servers. The commands for servers on other nodes use srun."""
        return super().servers(_signals_blocked(job))


def _signals_blocked(job: Job) -> Job:
    return dataclasses.replace(job, env={**job.env, wire.BLOCK_SIGNALS: "1"})


def allocated_hosts(config: RunConfig, plan: Plan) -> Hosts:
    """Returns the hosts of this allocation where the processes of a plan run. Raises LaunchError if there is no route
    to another node."""
    places = [_on_node(place) for place in places_of(size_cluster(config), plan)]
    others = [place.name for place in places if not place.is_here]
    # Open MPI's daemons refuse to use only the loopback interface.
    address, network = _way_to_node(others[0]) if others else (bind_address.LOOPBACK, None)
    network = None if address == bind_address.LOOPBACK else network
    return Hosts(tuple(places), config.cluster.remote_shell, address, network, is_allocated=True)


def _on_node(place: Place) -> Place:
    """Returns the place, with `is_here` set if the place is this node. Slurm's node name may differ from the host
    name."""
    here = os.environ.get("SLURMD_NODENAME")
    return dataclasses.replace(place, is_here=place.name == here if here else is_this_machine(place.name))


def _way_to_node(name: str) -> tuple[str, str | None]:
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
