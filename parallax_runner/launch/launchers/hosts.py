"""The `hosts` launcher: mpirun starts the workers on the hosts of `cluster.resource_info`, and a remote shell starts
the servers."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Self

from parallax_runner.config.launchers import names_other_hosts
from parallax_runner.config.resource_info import read_hosts
from parallax_runner.config.schema import RunConfig
from parallax_runner.config.worker_numbers import is_elastic
from parallax_runner.errors import LaunchError, Setting
from parallax_runner.launch import bind_address, preloaded, remote
from parallax_runner.launch.host_checks import check_hosts, memory_kills_on
from parallax_runner.launch.hosts import Hosts, Place, find_hosts
from parallax_runner.launch.job import Command, Job
from parallax_runner.launch.launchers.host_membership import HostMembership
from parallax_runner.launch.launchers.membership import Membership
from parallax_runner.launch.mpirun.command import has_other_order
from parallax_runner.launch.mpirun.mpirun_launcher import Mpirun, options_of_user
from parallax_runner.plan.plan import Plan


class OverHosts(Mpirun):
    """Fills the hosts with ranks in order. Server i runs on host i modulo the number of hosts."""

    hosts: Hosts
    has_options = False
    own_keys: ClassVar[tuple[str, ...]] = ("min_workers", "wait_secs")
    keys_are_for = "runs on other hosts"
    changes_size = True
    lost_exit_status = 255  # of ssh itself, if the connection ends

    def __init__(self, hosts: Hosts, options: Sequence[str] = ()) -> None:
        super().__init__(options, hosts)
        self._own_names: dict[str, str] = {}

    @classmethod
    def from_config(cls, config: RunConfig, plan: Plan) -> Self:
        """Returns the launcher. Raises LaunchError if there is no route to another host."""
        return cls(hosts_of(config, plan), options_of_user(config))

    @classmethod
    def membership(cls, config: RunConfig, plan: Plan) -> Membership:
        """Returns the hosts of `cluster.resource_info` that pass the checks."""
        return HostMembership(config, plan)

    @classmethod
    def unfit(cls, config: RunConfig, comm: str) -> str | None:
        """If the configuration names no other host, and none has been lost, returns why this launcher is unsuitable.
        Otherwise, returns None."""
        if not names_other_hosts(config) and not is_elastic(config):
            return "cluster.resource_info names no other host; choose auto or local"
        return None

    @property
    def address(self) -> str:
        """This machine's address on the network of the other hosts."""
        return self.hosts.address

    def check(self, folders: Sequence[Path], stopped: Callable[[], bool]) -> None:
        """Checks that each host can be reached, sees `folders`, and can reach the driver."""
        super().check(folders, stopped)
        here = {place.name: socket.gethostname() for place in self.hosts.places if place.is_here}
        self._own_names = here | check_hosts(self.hosts, folders, stopped)

    def misplaced(self, role: str, index: int, host: str) -> str | None:
        """Returns a description of the fault if the process runs on the wrong host: another host of the plan, or the
        driver's host. Otherwise, returns None.

        Hosts are compared by the names that they reported to `check`, so aliases and addresses do not matter. Hosts
        with the same name cannot be distinguished, and a name that no host has reported is accepted.
        """
        if role == "worker" and has_other_order(self.options):
            return None
        planned = self.hosts.of_worker(index) if role == "worker" else self.hosts.places[index % len(self.hosts.places)]
        name = self._own_names.get(planned.name)
        if name in (None, host) or host not in {*self._own_names.values(), socket.gethostname()}:
            return None
        also = "" if name == planned.name else f", whose hostname is {name}"
        return (
            f"it is running on {host}, but the plan assigns it to {planned.name}{also}: the launcher has placed "
            "processes on the wrong hosts. If comm.mpi.mpirun_options or Open MPI's parameters choose hosts, "
            "remove them"
        )

    def memory_kills(self, host: str) -> int | None:
        """Asks the host by the remote shell."""
        planned = next((place for place, own in self._own_names.items() if own == host), None)
        return None if planned is None else memory_kills_on(planned, self.hosts.remote_shell)

    def servers(self, job: Job) -> list[Command]:
        """Returns one command per server. The remote shell starts the servers on other hosts. It receives their
        environment, which contains the secret, on stdin."""
        here = super().servers(job)
        return [
            here[index] if host is None else self._remote(job, index, host)
            for index, host in enumerate(map(self.hosts.of_server, range(job.servers)))
        ]

    def _remote(self, job: Job, index: int, host: str) -> Command:
        # The libraries that this machine preloads may not exist on other hosts.
        env = {**remote.passed_on(), **job.env, **preloaded.environment({})}
        argv, said = remote.start_command(
            self.hosts.remote_shell, host, argv=job.server_argv(index), env=env, cwd=os.getcwd()
        )
        return Command(argv, env, said)


def places_of(config: RunConfig, plan: Plan) -> list[Place]:
    """Returns the hosts of `cluster.resource_info`, each with the number of workers that the plan assigns to it."""
    hosts = read_hosts(config.cluster.resource_info or ())
    workers = [len(host.slots) // plan.replicas_per_worker for host in hosts]
    return [Place(host.name, count, host.is_here) for host, count in zip(hosts, workers, strict=True)]


def hosts_of(config: RunConfig, plan: Plan) -> Hosts:
    """Returns the hosts where the processes of a plan run. Raises LaunchError if this machine is the only host and no
    other host is lost, or if there is no route to the first other host."""
    places, remote_shell = places_of(config, plan), config.cluster.remote_shell
    found = find_hosts(places, remote_shell)
    if found is None and is_elastic(config):
        return Hosts(tuple(places), remote_shell, bind_address.LOOPBACK, None)
    if found is None:
        raise LaunchError("cluster.resource_info names no other host").about(
            Setting("cluster.launcher", "hosts"), remedy="choose auto or local"
        )
    return found
