"""The `slurm` launcher: within an allocation, mpirun starts workers and srun starts servers. This launcher does not use
ssh."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Self

from parallax_runner.config.cluster_size import size_cluster
from parallax_runner.config.comm_mode import mode_of
from parallax_runner.config.explain import refusal
from parallax_runner.config.launched_processes import World, is_sruns_step
from parallax_runner.config.origins import Origins
from parallax_runner.config.resource_info import read_hosts
from parallax_runner.config.rules.cluster import check_even, refuse_numbers
from parallax_runner.config.schema import ClusterConfig, RunConfig
from parallax_runner.errors import LaunchError, Setting
from parallax_runner.launch import bind_address
from parallax_runner.launch.control import wire
from parallax_runner.launch.hosts import Hosts
from parallax_runner.launch.job import Command, Job
from parallax_runner.launch.launchers.hosts import OverHosts, places_of
from parallax_runner.launch.launchers.membership import Membership
from parallax_runner.launch.launchers.slurm import allocation, batch_job
from parallax_runner.launch.launchers.slurm.node_membership import NodeMembership, is_this_node, way_to_node
from parallax_runner.launch.launchers.submission import Submission
from parallax_runner.launch.mpirun.mpirun_launcher import options_of_user
from parallax_runner.plan.plan import Plan

# mpirun starts its daemons with srun, which must not wait for the CPUs that the step of this process occupies. If the
# job was submitted with --export=NONE, srun would also start the daemons without this process's environment.
OF_DAEMONS = {"SLURM_OVERLAP": "1", "SLURM_EXPORT_ENV": "ALL"}
# Sites prescribe this variable for srun. The single daemon of a node, and so all its ranks, would get the CPUs of
# one task only.
WITHOUT_CPUS = ("env", "--unset=SRUN_CPUS_PER_TASK")
TIME_LIMIT = re.compile(r"(\d+-)?\d+(:\d+){0,2}")


class Slurm(OverHosts):
    """Fills the nodes with ranks in order. Server i runs on node i modulo the number of nodes. Only the driver acts on
    the signals that Slurm sends to end a job."""

    own_keys = (
        *("nodes", "tasks_per_node", "time_limit", "submit", "follow", "sbatch_options"),
        *("min_workers", "max_workers", "wait_secs"),
    )
    keys_are_for = "Slurm jobs"
    runs_slurm_job = True

    @classmethod
    def check_config(cls, config: RunConfig, origins: Origins) -> None:
        """Raises ConfigError for settings that Slurm determines, and for options that sbatch would reject."""
        _check_what_slurm_determines(config, origins)
        _check_sbatch_options(config, origins)
        check_even(read_hosts(cls.host_lines(config.cluster)), config, origins)

    @classmethod
    def host_lines(cls, cluster: ClusterConfig) -> tuple[str, ...]:
        """Returns the nodes of the allocation, or outside of one, of the job that the configuration requests. Raises
        ConfigError if Slurm's variables cannot be read."""
        return allocation.host_lines(cluster)

    @classmethod
    def requested_lines(cls, cluster: ClusterConfig) -> tuple[str, ...] | None:
        """Returns the nodes that the configuration requests."""
        return allocation.requested_lines(cluster)

    @classmethod
    def membership(cls, config: RunConfig, plan: Plan) -> Membership:
        """Returns the nodes of the allocation that answer."""
        return NodeMembership(config, plan)

    @classmethod
    def takes_one_of(cls, world: World, environ: Mapping[str, str]) -> bool:
        """Returns whether these are the tasks of the current step of `srun`."""
        return is_sruns_step(world, environ)

    @classmethod
    def is_surplus(cls) -> bool:
        """Returns whether this process is a task of `srun` other than the first one."""
        return allocation.is_surplus_task()

    @classmethod
    def submission(cls, config: RunConfig) -> Submission | None:
        """Returns the submission with sbatch, or None in a Slurm job."""
        return batch_job.Sbatch() if batch_job.is_to_submit(config) else None

    @classmethod
    def from_config(cls, config: RunConfig, plan: Plan) -> Self:
        """Returns the launcher. Raises LaunchError outside an allocation, or if there is no route to another node."""
        if allocation.job_id() is None:
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


def _check_what_slurm_determines(config: RunConfig, origins: Origins) -> None:
    """Raises ConfigError if the user sets the hosts or a number of processes, or chooses a mode with one process."""
    source = "the job's allocation, or from cluster.nodes and cluster.tasks_per_node"
    refuse_numbers(config, origins, f"under Slurm, this number follows from {source}; omit this key")
    lines = config.cluster.resource_info
    if lines is not None:
        needed = "under Slurm the job determines the hosts; omit this key"
        raise refusal("cluster.resource_info", origins, needed, value=lines)
    if mode_of(config.comm).is_one_process:
        needed = "this mode runs one process, but a Slurm job has several tasks"
        raise refusal("comm.name", origins, needed, value=config.comm.name, hint="cluster=local, in your own Slurm job")


def _check_sbatch_options(config: RunConfig, origins: Origins) -> None:
    limit, options = config.cluster.time_limit, config.cluster.sbatch_options
    if limit is not None and not TIME_LIMIT.fullmatch(str(limit)):
        expected = (
            "expected sbatch's format, such as minutes, hours:minutes:seconds or days-hours; quote a value that "
            "contains a colon"
        )
        raise refusal("cluster.time_limit", origins, expected, value=limit)
    if not isinstance(options, str) and not all(isinstance(one, str) for one in options):
        raise refusal("cluster.sbatch_options", origins, "expected a string or a list of strings", value=options)


def _signals_blocked(job: Job) -> Job:
    return dataclasses.replace(job, env={**job.env, wire.BLOCK_SIGNALS: "1"})


def allocated_hosts(config: RunConfig, plan: Plan) -> Hosts:
    """Returns the hosts of this allocation where the processes of a plan run. Raises LaunchError if there is no route
    to another node."""
    places = [
        dataclasses.replace(place, is_here=is_this_node(place.name)) for place in places_of(size_cluster(config), plan)
    ]
    others = [place.name for place in places if not place.is_here]
    # Open MPI's daemons refuse to use only the loopback interface.
    address, network = way_to_node(others[0]) if others else (bind_address.LOOPBACK, None)
    network = None if address == bind_address.LOOPBACK else network
    return Hosts(tuple(places), config.cluster.remote_shell, address, network, is_allocated=True)
